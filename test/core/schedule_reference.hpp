/// The twelve rules written down as plainly as possible: every question is answered by walking over
/// everything, nothing is remembered that could be looked up. Slow; the schedule has to agree with
/// it in every decision. For a plan with an agreed order it asks `AgreedReference`.
#pragma once

#include "schedule_random.hpp"
#include "schedule_reference_agreed.hpp"
#include "troupe/core/schedule.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace troupe::testing {

class ReferenceSchedule {
 public:
  explicit ReferenceSchedule(const SchedulePlan& plan);

  /// The decisions that the rules ask for. Precondition: the event need not be refused.
  std::vector<Decision> decide(const Event& event);

  // Where ranks agree on an order; without one, empty. An adoption decides nothing.

  void adopt(AgreedOrder order);
  AgreedOrder agreed_order() const { return agreed_ ? agreed_->order() : AgreedOrder{}; }
  AgreedOrder recorded() const { return agreed_ ? agreed_->recorded() : AgreedOrder{}; }

 private:
  using Uses = std::vector<PredictedUse>;

  /// One phase: its order in segments, what is recorded of the next one, and the place reached.
  struct Phase {
    std::vector<Uses> order;
    std::vector<Uses> record;
    std::size_t segment = 0;
    std::size_t cursor = 0;  ///< counted over all segments
  };
  struct Held {
    SlotId slot = no_slot;
    bool used = false;
    bool in_eval = false;
    std::uint64_t last = 0;  ///< the event of the last release, or of the gather
  };
  struct OpenUse {
    PredictedUse use;
    bool in_eval = false;
  };

  Phase& phase() { return in_eval_ ? eval_ : train_; }
  static Uses flat(const Phase& phase);
  static std::size_t start_of(const Phase& phase, std::size_t segment);
  static void restart(Phase& phase);
  bool uses(UnitId unit, BucketId bucket) const;
  bool pinned(BucketId bucket) const;
  std::optional<std::size_t> position_in(const Phase& phase, BucketId bucket) const;
  std::size_t next_use(BucketId bucket);
  std::optional<BucketId> victim_for(BucketId bucket);
  bool has_room(BucketId bucket) const;

  void tell(Command command, BucketId bucket, SlotId slot, Ticket ticket = 0);
  void give_back(BucketId bucket, Command command);
  void give_back_all();
  void gather(BucketId bucket);
  void reduce(BucketId bucket);
  void prefetch();
  void seek(PredictedUse use);
  void begin(UnitId unit, bool backward);
  void end(UnitId unit, bool backward);
  void end_eval();
  void end_micro_batch();
  void reduce_all();
  void sum_replicas();
  void reshard();

  const SchedulePlan& plan_;
  std::optional<AgreedReference> agreed_;
  Phase train_;
  Phase eval_;
  bool in_eval_ = false;
  bool reduces_ = true;  ///< this micro-batch does
  std::map<BucketId, Held> held_;
  std::map<BucketId, SlotId> filling_;
  std::vector<std::deque<SlotId>> free_;
  std::vector<std::deque<SlotId>> free_gradient_;
  std::vector<bool> stale_;
  std::set<BucketId> gathered_;  ///< since everything was stale
  std::set<BucketId> reduced_in_step_;
  std::vector<OpenUse> open_;
  Uses begun_;  ///< uses of training that began in this micro-batch
  Uses ended_;  ///< … and those that ended
  std::uint64_t event_ = 0;
  Ticket next_ticket_ = 1;
  std::vector<Decision> told_;
};

}  // namespace troupe::testing
