// What may happen next, and letting it happen.
#include "simulation_parts.hpp"

#include <algorithm>
#include <utility>

namespace troupe::test {

namespace {

/// Hosts get something done before this much time has passed: only what devices do comes before
/// them, no deadline (unless the world is hasty).
constexpr Duration patience_limit = std::chrono::milliseconds{50};
constexpr std::uint64_t steps_limit = 5'000'000;

enum PaceKind : std::size_t {
  pace_trainer,
  pace_supervisor,
  pace_comm,
  pace_scheduler,
  pace_bucket,
  pace_time
};

PaceKind pace_of(ActorTag::Kind kind) {
  switch (kind) {
    case ActorTag::Kind::supervisor:
      return pace_supervisor;
    case ActorTag::Kind::comm:
      return pace_comm;
    case ActorTag::Kind::scheduler:
      return pace_scheduler;
    case ActorTag::Kind::bucket:
      return pace_bucket;
  }
  return pace_bucket;
}

}  // namespace

void Simulation::drive(const std::function<bool()>& until) {
  while (!until()) {
    step();
  }
}

std::uint32_t Simulation::weight(int rank, std::size_t kind) const {
  return options_.weights.empty() ? 1 : options_.weights[static_cast<std::size_t>(rank)][kind];
}

void Simulation::collect() {
  candidates_.clear();
  what_.clear();
  const bool timed = options_.pace == Pace::timed;
  const auto add = [&](Candidate candidate, std::uint64_t id, std::uint32_t likely) {
    what_.push_back(candidate);
    candidates_.push_back({id, likely});
  };
  for (std::size_t index = 0; index < actors_.runnable(); ++index) {
    const ActorTag& tag = actors_.runnable_tag(index);
    if (!frozen(tag.rank)) {
      add({Candidate::Kind::actor, index}, id_of(tag), weight(tag.rank, pace_of(tag.kind)));
      if (timed) {
        return;
      }
    }
  }
  for (std::size_t rank = 0; rank < trainers_.size(); ++rank) {
    if (!trainers_[rank]->ended() && !frozen_[rank] && waiters_[rank]->may_go_on()) {
      add({Candidate::Kind::trainer, rank}, id_trainer | rank,
          weight(static_cast<int>(rank), pace_trainer));
      if (timed) {
        return;
      }
    }
  }
  // What is due now ends in any order on real devices; `timed` keeps the order of planning.
  const std::size_t next =
      timed ? std::min<std::size_t>(timeline_.next_count(), 1) : timeline_.next_count();
  const Duration ahead = next > 0 ? timeline_.due(0) - timeline_.now() : Duration::zero();
  const Duration patience = options_.pace == Pace::instant ? Duration::zero() : patience_limit;
  if (ahead > patience && (!candidates_.empty() || exploring_)) {
    return add_haste(next);
  }
  for (std::size_t index = 0; index < next; ++index) {
    add({Candidate::Kind::time, index},
        options_.pace == Pace::instant ? stable_id(timeline_.owner(index)) : id_world,
        weight(0, pace_time));
  }
  add_haste(next);
}

/// Points of time beyond the first `passed` may come first: what was planned earlier takes longer.
/// Not after a failure, nor once a runtime ends its actors: what follows is quick on any machine.
void Simulation::add_haste(std::size_t passed) {
  if (options_.hasty && timeline_.size() > passed) {
    what_.push_back({Candidate::Kind::late_time, passed});
    candidates_.push_back({~std::uint64_t{0}, 1});
  }
}

void Simulation::step() {
  collect();
  if (candidates_.empty() && exploring_ && entered_ == 0) {
    exploring_ = false;
    for (const auto& waiter : waiters_) {
      waiter->notify();
    }
    return;
  }
  if (candidates_.empty()) {
    if (std::ranges::find(frozen_, true) != frozen_.end()) {
      thaw();
      return;
    }
    violated("L: every step ends", "nothing can happen any more, and not all ranks have ended");
    std::abort();  // there is no way on
  }
  std::size_t index = 0;
  if (options_.pace == Pace::instant ? exploring_ : candidates_.size() > 1) {
    index = chooser_.choose(candidates_);
  }
  hash_ = mix(mix(hash_, index), candidates_.size());
  const Candidate chosen = what_[index];
  happen(chosen);
  for (std::size_t rank = 0; rank < waiters_.size(); ++rank) {
    if (waiters_[rank]->overlooked()) {
      violated("W: who waits is told", "rank " + std::to_string(rank) +
                                           " waits for something that is so, and was not notified");
    }
  }
  const bool others_ended = [&] {
    for (std::size_t rank = 0; rank < trainers_.size(); ++rank) {
      if (!frozen_[rank] && !trainers_[rank]->ended()) {
        return false;
      }
    }
    return true;
  }();
  if (others_ended) {
    thaw();
  }
  ++steps_;
  if (steps_ > steps_limit || timeline_.now() > TimePoint{} + simulated_time_limit) {
    violated("L: every step ends",
             "after " + std::to_string(steps_) + " steps and " +
                 std::to_string(std::chrono::duration_cast<std::chrono::seconds>(
                                    timeline_.now().time_since_epoch())
                                    .count()) +
                 " s of virtual time not all ranks have ended");
    std::abort();
  }
}

/// A name for an object that is the same in every run; addresses are not.
std::uint64_t Simulation::stable_id(const void* object) const {
  for (std::size_t rank = 0; rank < waiters_.size(); ++rank) {
    if (waiters_[rank].get() == object) {
      return id_trainer | rank;
    }
  }
  for (std::size_t rank = 0; rank < devices_.size(); ++rank) {
    const auto& streams = devices_[rank]->streams();
    for (std::size_t index = 0; index < streams.size(); ++index) {
      if (streams[index].get() == object) {
        return id_stream | static_cast<std::uint64_t>(rank) << 16 | index;
      }
    }
  }
  const auto group = fabric_.group_index(object);
  return group ? id_group | *group : id_world;
}

void Simulation::happen(Candidate candidate) {
  Happening happening{.kind = candidate.kind, .message = {}, .at = timeline_.now()};
  switch (candidate.kind) {
    case Candidate::Kind::actor: {
      const ActorTag tag = actors_.runnable_tag(candidate.index);
      happening.message.to = tag;
      note(happening);
      touched(id_of(tag));
      actors_.run(candidate.index);
      if (watcher_ != nullptr) {
        watcher_->handled(tag);
      }
      break;
    }
    case Candidate::Kind::trainer:
      happening.rank = static_cast<int>(candidate.index);
      note(happening);
      touched(id_trainer | candidate.index);
      trainers_[candidate.index]->resume();
      break;
    case Candidate::Kind::time:
      timeline_.run(candidate.index);
      happening.at = timeline_.now();
      note(happening);
      break;
    case Candidate::Kind::late_time:
      timeline_.run(candidate.index + chooser_.draw(timeline_.size() - candidate.index));
      happening.at = timeline_.now();
      note(happening);
      break;
  }
}

void Simulation::note(const Happening& happening) {
  history_[happened_++ % history_.size()] = happening;
}

std::vector<std::string> Simulation::history() const {
  std::vector<std::string> lines;
  const std::size_t first = happened_ > history_.size() ? happened_ - history_.size() : 0;
  for (std::size_t i = first; i < happened_; ++i) {
    const Happening& each = history_[i % history_.size()];
    const auto time =
        std::chrono::duration_cast<std::chrono::microseconds>(each.at.time_since_epoch());
    std::string line = std::to_string(time.count()) + " us  ";
    if (each.is_message) {
      line += "  to " + to_string(each.message);
    } else if (each.kind == Candidate::Kind::actor) {
      line += to_string(each.message.to) + " handles its oldest message";
    } else if (each.kind == Candidate::Kind::trainer) {
      line += "trainer of rank " + std::to_string(each.rank) + " goes on";
    } else {
      line += each.kind == Candidate::Kind::time ? "time passes" : "time passes, out of turn";
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace troupe::test
