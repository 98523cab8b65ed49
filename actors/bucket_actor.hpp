/// A bucket on one rank: owns its state, and turns the scheduler's messages into launches.
///
/// Its state advances by the scheduler's messages in program order, by the rows of
/// core/bucket_state.hpp; completions only retire tickets. A message without a row is a fault of
/// Troupe: an error on all ranks, and an abort in debug builds.
#pragma once

#include "troupe/actors/caf.hpp"
#include "troupe/actors/rank_state.hpp"
#include "troupe/actors/runtime_setup.hpp"
#include "troupe/core/bucket_state.hpp"

#include <optional>
#include <string>
#include <vector>

namespace troupe {

class BucketLife final : public Routed<BucketActor> {
 public:
  BucketLife(caf::actor_config& config,
             const Routing& routing,
             RankState& state,
             BucketSetup setup,
             SlotTable& table,
             RuntimeWords& words,
             CommActor comm,
             SupervisorActor supervisor);
  const char* name() const override { return "bucket"; }

 protected:
  behavior_type make_behavior() override;
  void on_exit() override;

 private:
  void trace(std::optional<BucketState> from, std::optional<BucketState> to) const;
  /// False if the bucket has failed or the table has no row.
  bool advance(BucketEvent event);
  void gather(const Gather& message);
  void reduce(const Reduce& message);
  void sum_replicas(const SumReplicas& message);
  Launch launch_of(Channel channel, const Group& group, Collective op, Ticket ticket);
  void complete(const Completed& message);
  void retire(int tickets);
  void fault(const std::string& what, Ticket ticket);

  RankState& state_;
  const BucketSetup setup_;
  SlotTable& table_;
  RuntimeWords& words_;
  CommActor comm_;
  SupervisorActor supervisor_;
  BucketState life_ = BucketState::sharded;
  GradientState gradient_ = GradientState::empty;
  std::uint32_t uses_ = 0;
  std::vector<Ticket> open_;  ///< requested, completion not heard yet
};

}  // namespace troupe
