/// The scheduler of a runtime: turns the trainer's calls into messages to the buckets.
///
/// All decisions are core/schedule.hpp's. What is added here are events: which uses a slot's next
/// gather waits for, which contributions a reduce waits for, which update a bucket's gather waits
/// for. It answers every trainer event once, in `RuntimeWords`, normally before the trainer's call
/// to it returns, since it runs on the trainer's thread.
#pragma once

#include "troupe/actors/caf.hpp"
#include "troupe/actors/rank_state.hpp"
#include "troupe/actors/runtime_setup.hpp"

#include <vector>

namespace troupe {

class Scheduler final : public Routed<SchedulerActor> {
 public:
  Scheduler(caf::actor_config& config,
            const Routing& routing,
            RankState& state,
            SchedulerSetup setup,
            RuntimeWords& words,
            std::vector<BucketActor> buckets,
            const caf::execution_unit* trainer);
  const char* name() const override { return "scheduler"; }

 protected:
  behavior_type make_behavior() override;
  void on_exit() override;

 private:
  void handle(const TrainerEvent& event);
  Result<void> decide(const TrainerEvent& event);
  void note_last_use(const TrainerEvent& event);
  static Ranges unwritten_of(BucketId bucket, const TrainerEvent& event);
  void carry_out(const Decision& decision, const TrainerEvent& event);
  void abandon(const TrainerEvent& event);
  void hold_unsharded(std::int64_t change);
  void hold_gradient(std::int64_t change);
  void hold(TraceCounter counter,
            HeldBytes& own,
            std::atomic<std::int64_t>& bytes,
            std::atomic<std::int64_t>& peak,
            std::int64_t change);

  RankState& state_;
  SchedulerSetup setup_;
  RuntimeWords& words_;
  std::vector<BucketActor> buckets_;
  const caf::execution_unit* trainer_;  ///< the trainer's unit: it needs no waking
  Schedule schedule_;
  std::vector<EventSet> last_uses_;      ///< per slot, since its gather
  std::vector<EventSet> contributions_;  ///< per gradient slot, since its reduce
  std::vector<Event> updates_;           ///< per bucket, of its last update
  std::vector<SlotId> gradient_slots_;   ///< per bucket; no_slot: not filling
  std::vector<Ranges> unwritten_;        ///< per bucket, of a gradient being filled
  std::vector<std::uint32_t> reduces_;   ///< per bucket, in this step
  bool stopped_ = false;
};

}  // namespace troupe
