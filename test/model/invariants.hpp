/// What is always true, one function each, looked at after messages. Numbers are those of
/// README.md. Written from the rules; of the code under test it uses names and views only.
///
/// Here are those that messages show. Invariant 5 is the access log's, 6, 7 and 9 are found by the
/// trainers (model_trainer.cpp), the end of a run by outcome.cpp.
#pragma once

#include "simulation.hpp"
#include "troupe/runtime/runtime.hpp"
#include "troupe/test/core/schedule_reference.hpp"

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::test {

class Invariants final : public Watcher {
 public:
  /// The schedule is compared with the reference on one rank (that is slow); the others launch the
  /// same. Nothing: the ranks make different calls, so that neither is so.
  Invariants(Simulation& simulation, std::optional<int> reference_rank);

  /// From here to `runtime_ends` a runtime of the rank is looked at. `number` counts them, from 1.
  void runtime_begins(int rank, std::uint32_t number, Runtime& runtime);
  void runtime_ends(int rank, std::uint32_t number);

  // Watcher
  void sent(const Sent& message) override;
  void launched(int rank, const LaunchRecord& record) override;
  void handled(const ActorTag& actor) override;

  /// Once all ranks have ended.
  void expect_all_answered();
  /// The common list of launches, epoch by epoch.
  std::vector<LaunchRecord> launches() const;
  std::uint64_t messages() const { return messages_; }
  /// When the first message was sent after the world had failed.
  std::optional<TimePoint> failed_at() const { return failed_at_; }

 private:
  enum class Life : std::uint8_t { sharded, gathering, in_use, ready, failed };
  struct BucketView {
    // As of the messages handled.
    Life life = Life::sharded;
    int uses = 0;
    std::deque<Sent> mail;
    // As of the messages sent, that is in the scheduler's view.
    SlotId slot = no_slot;
    int pins = 0;
    bool used = false;
    SlotId gradient_slot = no_slot;
  };
  struct RuntimeView {
    Runtime* runtime = nullptr;
    std::vector<BucketView> buckets;
    std::deque<Sent> scheduler_mail;
    std::vector<Sent> decisions;  ///< of the event at hand
    std::unique_ptr<SchedulePlan> plan;
    std::unique_ptr<testing::ReferenceSchedule> reference;
    std::vector<AgreedOrder> recorded;  ///< per step, by the reference
    std::size_t adopted = 0;            ///< orders, so far
  };
  struct RankView {
    std::array<RuntimeView, 2> runtimes;
    std::map<Ticket, ActorTag> open;   ///< requested from a bucket, not completed
    std::map<Ticket, bool> streaming;  ///< launched; whether the end on the stream was reported
    Ticket last_requested = 0;
    std::size_t launched = 0;  ///< in this epoch
    bool stopped = false;      ///< it has failed, or a trainer's exception has abandoned a use
  };

  RankView& view(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  RuntimeView& view(const ActorTag& tag) { return view(tag.rank).runtimes.at(tag.runtime - 1); }
  BucketView& bucket(const ActorTag& tag);
  static std::string place(const ActorTag& tag);

  void epoch_begins(int rank);
  void expect_ended(int rank);

  // 1
  void state_changes_by_the_table(const ActorTag& tag, const Sent& message);
  // 2
  void slots_as_planned(const Sent& message);
  void bytes_as_planned(int rank);
  void ahead_as_planned(const ActorTag& scheduler);
  // 3
  void launches_follow_one_list(int rank, const LaunchRecord& record);
  void decisions_follow_the_rules(const Sent& event);
  void order_is_of_rank_0(const Sent& event);
  void waited_without_overlap(const Sent& event);
  // 4
  void tickets_retire_once(const Sent& message);

  Simulation& simulation_;
  const std::optional<int> reference_rank_;
  std::vector<RankView> ranks_;
  std::uint64_t epoch_ = 1;
  std::vector<std::vector<LaunchRecord>> launches_{{}};  ///< per epoch
  std::uint64_t messages_ = 0;
  std::optional<TimePoint> failed_at_;
};

}  // namespace troupe::test
