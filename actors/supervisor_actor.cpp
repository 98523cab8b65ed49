#include "troupe/actors/supervisor_actor.hpp"

#include <algorithm>

namespace troupe {

Supervisor::Supervisor(caf::actor_config& config, const Routing& routing, RankState& state)
    : Routed(config,
             routing,
             {ActorTag::Kind::supervisor, state.config.rank},
             nullptr,
             state.alive,
             *state.config.waiter),
      state_(state) {}

void Supervisor::connect(CommActor comm, std::vector<SupervisorActor> peers) {
  comm_ = std::move(comm);
  peers_ = std::move(peers);
}

Supervisor::behavior_type Supervisor::make_behavior() {
  return {
      [this](const Failed& message) { fail(message.failure, true); },
      [this](const PeerFailed& message) { fail(message.failure, false); },
      [this](const Connect& message) { peers_ = message.peers; },
      [this](const RegisterRuntime& runtime) {
        runtimes_.push_back(runtime);
        if (state_.failed.load()) {
          stop(runtime);
        }
      },
      [this](const UnregisterRuntime& message) {
        std::erase_if(runtimes_,
                      [&](const RegisterRuntime& each) { return each.runtime == message.runtime; });
      },
  };
}

void Supervisor::fail(const Failure& failure, bool tell_peers) {
  if (state_.failed.load()) {
    return;  // the first failure stands
  }
  state_.failure = state_.config.report_failure(failure);
  state_.failed.store(true);
  state_.config.abort(state_.failure);
  if (tell_peers) {
    for (const SupervisorActor& peer : peers_) {
      send(peer, PeerFailed{state_.failure});
    }
  }
  if (comm_) {
    send(comm_, Stop{});
  }
  for (const RegisterRuntime& runtime : runtimes_) {
    stop(runtime);
  }
  state_.config.waiter->notify();
}

void Supervisor::stop(const RegisterRuntime& runtime) {
  send(runtime.scheduler, Stop{});
  for (const BucketActor& bucket : runtime.buckets) {
    send(bucket, Stop{});
  }
}

void Supervisor::on_exit() {
  comm_ = nullptr;  // supervisors know each other: handles would keep all of them for ever
  peers_.clear();
  runtimes_.clear();
  Routed::on_exit();
}

}  // namespace troupe
