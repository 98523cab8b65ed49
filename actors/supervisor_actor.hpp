/// The supervisor of a rank: the first failure wins, everybody hears of it once.
///
/// Anyone tells it `Failed`. It agrees with the world on which failure was the first, sets the
/// rank's words (so that the trainer's next call throws), aborts the communicators, tells the
/// peers' supervisors, and stops the rank's actors, which then answer what is still open.
#pragma once

#include "troupe/actors/caf.hpp"
#include "troupe/actors/rank_state.hpp"

namespace troupe {

class Supervisor final : public Routed<SupervisorActor> {
 public:
  Supervisor(caf::actor_config& config, const Routing& routing, RankState& state);
  const char* name() const override { return "supervisor"; }

  /// Before the first step: the comm actor to stop, and the supervisors of the other ranks.
  void connect(CommActor comm, std::vector<SupervisorActor> peers);

 protected:
  behavior_type make_behavior() override;
  void on_exit() override;

 private:
  void fail(const Failure& failure, bool tell_peers);
  void stop(const RegisterRuntime& runtime);

  RankState& state_;
  CommActor comm_;
  std::vector<SupervisorActor> peers_;
  std::vector<RegisterRuntime> runtimes_;
};

}  // namespace troupe
