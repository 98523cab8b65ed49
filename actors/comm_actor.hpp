/// The comm actor of a device: issues every collective, strictly in ticket order.
///
/// A launch that arrives early is held back until its turn; a ticket that never arrives has a
/// deadline. It runs on one thread (`HomeUnit`), so no two launches of a device overlap. After a
/// failure it launches nothing and answers everything that is open.
#pragma once

#include "troupe/actors/caf.hpp"
#include "troupe/actors/rank_state.hpp"

#include <deque>
#include <map>

namespace troupe {

class Comm final : public Routed<CommActor> {
 public:
  Comm(caf::actor_config& config,
       const Routing& routing,
       RankState& state,
       SupervisorActor supervisor);
  const char* name() const override { return "comm"; }

 protected:
  behavior_type make_behavior() override;
  void on_exit() override;

 private:
  static constexpr std::size_t launch_log_size = 64;

  void receive(const Launch& launch);
  void issue(const Launch& launch);
  void trace(Stream& stream, const Launch& launch, const char* what) const;
  void follow(Stream& stream, const Launch& launch, bool launched);
  void complete(const StreamDone& message);
  void check_held_back();
  void stop();
  void dump_log();
  /// Whom to tell when a ticket is over.
  struct Asker {
    BucketActor bucket;
    std::shared_ptr<OwnCollective> own;
    bool launched = false;  ///< false: the launch failed, what stands before it is on the stream
  };
  void answer(const Asker& asker, Ticket ticket, std::optional<Failure> failure);
  void note(const Launch& launch, const Communicator& group);
  void observer_failed(const std::string& what);

  RankState& state_;
  SupervisorActor supervisor_;
  Ticket next_ = 1;
  std::map<Ticket, Launch> held_back_;
  TimePoint held_since_{};
  std::map<Ticket, Asker> in_flight_;   ///< issued, completion not heard yet
  std::deque<LaunchDump::Launch> log_;  ///< the last launches, for failure dumps
  bool stopped_ = false;
  Failure failure_;  ///< why; `RankState::failure` may still be being written
  bool dumped_ = false;
};

}  // namespace troupe
