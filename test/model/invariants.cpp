#include "invariants.hpp"

#include "troupe/runtime/runtime_impl.hpp"

#include <algorithm>
#include <utility>

namespace troupe::test {

namespace {

constexpr const char* table = "1: every state change is a row of the table";
constexpr const char* one_list = "3: launches are a function of the program";
constexpr const char* retire_once = "4: a completion retires exactly its own ticket";
constexpr const char* answered = "8: every request is answered once";

/// What the options make of the schedule, written down once more.
SchedulePlan schedule_plan_of(const Runtime& runtime) {
  const Options& options = runtime.options();
  ScheduleRules rules{.agreed = options.strategy != Strategy::full_shard,
                      .regather = options.regather_group_size > 0};
  if (options.mesh.replicate > 1) {
    rules.replica_sum =
        options.sum_replicas_at_step_end ? ReplicaSum::at_step_end : ReplicaSum::every_reduce;
  }
  return make_schedule_plan(runtime.model(), runtime.bucket_plan(), runtime.memory_plan(), rules);
}

bool is_decision(Sent::Kind kind) {
  return kind == Sent::Kind::gather || kind == Sent::Kind::begin_use ||
         kind == Sent::Kind::end_use || kind == Sent::Kind::evict ||
         kind == Sent::Kind::contribute || kind == Sent::Kind::reduce ||
         kind == Sent::Kind::sum_replicas || kind == Sent::Kind::step_end;
}

}  // namespace

Invariants::Invariants(Simulation& simulation, std::optional<int> reference_rank)
    : simulation_(simulation),
      reference_rank_(reference_rank),
      ranks_(static_cast<std::size_t>(simulation.ranks())) {}

void Invariants::runtime_begins(int rank, std::uint32_t number, Runtime& runtime) {
  RuntimeView& own = view({ActorTag::Kind::scheduler, rank, number});
  own.runtime = &runtime;
  own.buckets.resize(runtime.bucket_plan().buckets.size());
  if (rank == reference_rank_) {
    own.plan = std::make_unique<SchedulePlan>(schedule_plan_of(runtime));
    own.reference = std::make_unique<testing::ReferenceSchedule>(*own.plan);
  }
}

void Invariants::runtime_ends(int rank, std::uint32_t number) {
  RuntimeView& own = view({ActorTag::Kind::scheduler, rank, number});
  own.runtime = nullptr;
  own.reference.reset();
}

Invariants::BucketView& Invariants::bucket(const ActorTag& tag) {
  std::vector<BucketView>& buckets = view(tag).buckets;
  if (tag.bucket >= buckets.size()) {
    buckets.resize(tag.bucket + 1);
  }
  return buckets[tag.bucket];
}

std::string Invariants::place(const ActorTag& tag) {
  return to_string(tag) + ": ";
}

void Invariants::sent(const Sent& message) {
  ++messages_;
  if (!failed_at_ && simulation_.fabric().first_failure().get()) {
    failed_at_ = simulation_.timeline().now();
  }
  if (std::exchange(epoch_, simulation_.fabric().epoch()) != simulation_.fabric().epoch()) {
    launches_.emplace_back();
    for (int rank = 0; rank < simulation_.ranks(); ++rank) {
      epoch_begins(rank);
    }
  }
  RankView& own = view(message.to.rank);
  if (message.to.kind == ActorTag::Kind::bucket) {
    bucket(message.to).mail.push_back(message);
    own.stopped =
        own.stopped || message.kind == Sent::Kind::abandon || message.kind == Sent::Kind::stop;
    if (is_decision(message.kind)) {
      view(message.to).decisions.push_back(message);
      slots_as_planned(message);
    }
  } else if (message.to.kind == ActorTag::Kind::scheduler) {
    view(message.to).scheduler_mail.push_back(message);
    waited_without_overlap(message);
  }
  tickets_retire_once(message);
}

/// Its actors are new, or will be; of those before nothing is left.
void Invariants::epoch_begins(int rank) {
  expect_ended(rank);
  RankView& own = view(rank);
  for (std::size_t index = 0; index < own.runtimes.size(); ++index) {
    RuntimeView& runtime = own.runtimes[index];
    const auto mail = [](const BucketView& bucket) { return bucket.mail.size(); };
    if (!runtime.scheduler_mail.empty() || std::ranges::any_of(runtime.buckets, mail)) {
      simulation_.violated(answered, "rank " + std::to_string(rank) +
                                         ": an actor of the epoch before still has mail");
    }
    Runtime* const living = runtime.runtime;
    runtime = {};
    if (living != nullptr) {
      runtime_begins(rank, static_cast<std::uint32_t>(index) + 1, *living);
    }
  }
  own.open.clear();
  own.streaming.clear();
  own.last_requested = 0;
  own.launched = 0;
  own.stopped = false;
}

std::vector<LaunchRecord> Invariants::launches() const {
  std::vector<LaunchRecord> all;
  for (const auto& epoch : launches_) {
    all.insert(all.end(), epoch.begin(), epoch.end());
  }
  return all;
}

void Invariants::launched(int rank, const LaunchRecord& record) {
  launches_follow_one_list(rank, record);
  view(rank).streaming.emplace(record.ticket, false);
}

void Invariants::handled(const ActorTag& actor) {
  if (actor.kind == ActorTag::Kind::bucket) {
    std::deque<Sent>& mail = bucket(actor).mail;
    const Sent message = mail.front();
    mail.pop_front();
    state_changes_by_the_table(actor, message);
  } else if (actor.kind == ActorTag::Kind::scheduler) {
    RuntimeView& own = view(actor);
    const Sent event = own.scheduler_mail.front();
    own.scheduler_mail.pop_front();
    if (event.kind == Sent::Kind::trainer_event && own.runtime != nullptr &&
        !view(actor.rank).stopped) {
      bytes_as_planned(actor.rank);
      ahead_as_planned(actor);
      order_is_of_rank_0(event);
      decisions_follow_the_rules(event);
    }
    own.decisions.clear();
  }
}

/// The table of design section 2, written down once more: what a message makes of a state.
void Invariants::state_changes_by_the_table(const ActorTag& tag, const Sent& message) {
  using Kind = Sent::Kind;
  BucketView& own = bucket(tag);
  const Life before = own.life;
  const bool full = before == Life::gathering || before == Life::ready;
  bool row = true;
  if (message.kind == Kind::abandon || message.kind == Kind::stop) {
    own.life = Life::failed;
  } else if (before == Life::failed || !is_decision(message.kind) ||
             message.kind == Kind::contribute || message.kind == Kind::reduce ||
             message.kind == Kind::sum_replicas) {
    // stays
  } else if (message.kind == Kind::gather) {
    row = before == Life::sharded;
    own.life = Life::gathering;
  } else if (message.kind == Kind::begin_use) {
    row = full || before == Life::in_use;
    own.life = Life::in_use;
    ++own.uses;
  } else if (message.kind == Kind::end_use) {
    row = before == Life::in_use;
    own.life = --own.uses == 0 ? Life::ready : Life::in_use;
  } else {
    row = full;
    own.life = Life::sharded;
  }
  if (!row) {
    simulation_.violated(table, place(tag) + "no row for '" + to_string(message) + "'");
  }
  if (Runtime* runtime = view(tag).runtime; runtime != nullptr) {
    const auto right = static_cast<int>(own.life);
    const auto found = static_cast<int>(runtime->impl().state(tag.bucket));
    if (found != right) {
      simulation_.violated(table, place(tag) + "is in state " + std::to_string(found) + ", not " +
                                      std::to_string(right) + ", after '" + to_string(message) +
                                      "'");
    }
  }
}

void Invariants::launches_follow_one_list(int rank, const LaunchRecord& record) {
  const std::size_t place = view(rank).launched++;
  std::vector<LaunchRecord>& list = launches_.back();
  if (record.ticket != place + 1) {
    simulation_.violated(one_list, "rank " + std::to_string(rank) + " launches ticket " +
                                       std::to_string(record.ticket) + " in place " +
                                       std::to_string(place + 1));
  }
  if (place == list.size()) {
    list.push_back(record);
  } else if (reference_rank_ && !(list[place] == record)) {
    simulation_.violated(one_list, "rank " + std::to_string(rank) + " launches " +
                                       to_string(record) + ", another rank " +
                                       to_string(list[place]));
  }
}

void Invariants::tickets_retire_once(const Sent& message) {
  RankView& own = view(message.to.rank);
  const auto wrong = [&](const std::string& what) {
    simulation_.violated(
        retire_once, place(message.to) + "ticket " + std::to_string(message.ticket) + " " + what);
  };
  switch (message.kind) {
    case Sent::Kind::gather:
    case Sent::Kind::reduce:
    case Sent::Kind::sum_replicas: {
      if (message.ticket <= own.last_requested) {
        wrong("comes after ticket " + std::to_string(own.last_requested));
      }
      const Runtime* runtime = view(message.to).runtime;
      const bool summed = message.kind == Sent::Kind::reduce && runtime != nullptr &&
                          runtime->options().mesh.replicate > 1 &&
                          !runtime->options().sum_replicas_at_step_end;
      own.last_requested = message.ticket + (summed ? 1 : 0);  // the second sums the replicas
      for (Ticket ticket = message.ticket; ticket <= own.last_requested; ++ticket) {
        own.open.emplace(ticket, message.to);
      }
      break;
    }
    case Sent::Kind::stream_done: {
      const auto found = own.streaming.find(message.ticket);
      if (found != own.streaming.end() && std::exchange(found->second, true)) {
        wrong("ends twice on its stream");
      }
      break;
    }
    case Sent::Kind::completed: {
      const auto found = own.open.find(message.ticket);
      if (found == own.open.end() || found->second != message.to) {
        wrong("is completed, but was not requested from this bucket, or twice");
        break;
      }
      own.open.erase(found);
      const auto streaming = own.streaming.find(message.ticket);
      if (streaming != own.streaming.end() && !streaming->second) {
        wrong("is completed before its end on the stream");
      }
      break;
    }
    default:
      break;
  }
}

void Invariants::expect_all_answered() {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    expect_ended(static_cast<int>(rank));
  }
}

void Invariants::expect_ended(int rank) {
  const RankView& own = view(rank);
  const std::string place = "rank " + std::to_string(rank);
  for (const auto& [ticket, done] : own.streaming) {
    if (!done) {
      simulation_.violated(
          answered, place + ": ticket " + std::to_string(ticket) + " was launched and never ended");
    }
  }
  if (!own.open.empty() && !own.stopped) {
    simulation_.violated(answered, place + ": ticket " + std::to_string(own.open.begin()->first) +
                                       " was requested and never completed");
  }
}

}  // namespace troupe::test
