// A step given up: one rank's way from a failed world to one as new.
//
// What is renewed: communicators (those of groups, too), tickets, supervisor, comm actor and comm
// thread; of each runtime what runtime_renewal.cpp says. What stays: device, its streams and
// memory, waiter, clock, what was counted, and the runtimes themselves.
#include "troupe/comm/call_check.hpp"
#include "troupe/runtime/rank_context.hpp"
#include "troupe/runtime/runtime_impl.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

namespace troupe {

namespace {

/// A rank says that its own work does not end after the world's timeout; the others wait a little
/// longer, to hear that.
Duration meeting_limit(Duration timeout) {
  return timeout + std::max<Duration>(timeout / 4, std::chrono::seconds{2});
}

}  // namespace

void RankContext::abort_step(std::uint64_t step, const std::string& reason) {
  const Turn turn(*this, "Runtime::abort_step");
  refuse_open_scopes();
  fail_world(step, reason);
  const std::uint64_t first_meeting = 2 * epoch_ - 1;  // two in each epoch
  const Rendezvous::Words words =
      meet(first_meeting, encode(settle()), "to give up the step, too (Runtime::abort_step)");
  std::vector<RankStatement> statements;
  statements.reserve(words.size());
  for (const std::string& word : words) {
    statements.push_back(decode(word));
  }
  if (auto failure = verdict(statements)) {
    failure->text += because();
    fail_for_good(*std::move(failure));
  }
  try {
    rebuild(statements);
  } catch (const std::exception& exception) {
    const Failure failure{.code = ErrorCode::device,
                          .text = "rank " + std::to_string(rank()) +
                                  " cannot go on after the step given up: " + exception.what(),
                          .rank = rank()};
    static_cast<void>(environment_.fabric->rendezvous().close(first_meeting + 1, failure));
  }
  meet(first_meeting + 1, "", "to go on after the step given up");
  actors_->reconnect();
  ++epoch_;
  abandoned_.reset();
  for (RuntimeImpl* runtime : runtimes_) {
    runtime->resume();
  }
}

/// Before anything is done: what is under way in a scope cannot be taken back.
void RankContext::refuse_open_scopes() const {
  actors_->throw_if_failed_for_good();
  for (const RuntimeImpl* runtime : runtimes_) {
    if (const std::string scope = runtime->open_scope(); !scope.empty()) {
      throw Error({.code = ErrorCode::misuse,
                   .text = "Runtime::abort_step: " + scope + " is still open on rank " +
                           std::to_string(rank()) +
                           "; end the scope first, or let the exception leave it",
                   .rank = rank()});
    }
  }
}

void RankContext::note_update() {
  environment_.fabric->rendezvous().note_updates(rank(), ++updates_);
}

/// Unless it has failed already: the others hear of it from their next call. One that is still on
/// its way to an update that this rank has made comes to its end without this rank, and has to.
void RankContext::fail_world(std::uint64_t step, const std::string& reason) {
  Rendezvous& place = environment_.fabric->rendezvous();
  static_cast<void>(await([&] { return actors_->failed() || place.all_have_made(updates_); },
                          clock().now() + timeout()));
  if (actors_->failed()) {
    return;
  }
  if (abandoned_) {
    report({.code = ErrorCode::peer_failed,
            .text = reason.empty() ? "an exception was thrown there" : reason});
    return;
  }
  actors_->fail({.code = ErrorCode::peer_failed,
                 .text = "rank " + std::to_string(rank()) + " has given up step " +
                         std::to_string(step) + (reason.empty() ? "" : ": " + reason),
                 .rank = rank()});
}

/// Ends what is under way. From here on nothing of this rank can disturb the next epoch.
RankStatement RankContext::settle() {
  remains_.clear();
  RankStatement statement{.refusal = refusal(), .runtimes = {}};
  for (const RuntimeImpl* runtime : runtimes_) {
    statement.runtimes.push_back(runtime->statement());
  }
  return statement;
}

/// Why this rank cannot go on; empty: it can, its actors have ended, and its streams are as new.
std::string RankContext::refusal() {
  const TimePoint deadline = clock().now() + timeout();
  for (RuntimeImpl* runtime : runtimes_) {
    if (const std::string why = runtime->settle(deadline); !why.empty()) {
      return why;
    }
  }
  std::vector<Stream*> streams;
  for (const RankConfig::Queue& queue : actors_->config().queues) {
    streams.push_back(queue.stream);
  }
  if (!actors_->quiesce(std::max(deadline - clock().now(), Duration::zero()))) {
    return "its collectives did not end after the failure";
  }
  for (const RuntimeImpl* runtime : runtimes_) {
    streams.insert(streams.end(), runtime->streams().begin(), runtime->streams().end());
  }
  for (const Stream* stream : streams) {
    if (!await([&] { return stream->idle(); }, deadline)) {
      return "work on stream '" + stream->name() + "' did not end in time";
    }
  }
  for (const RuntimeImpl* runtime : runtimes_) {
    if (runtime->half_updated()) {
      return "it was inside an update, so its shards may be half written";
    }
  }
  for (RuntimeImpl* runtime : runtimes_) {
    if (!runtime->end_actors()) {
      return "the actors of a runtime did not end";
    }
  }
  if (!actors_->end()) {
    return "its actors did not end";
  }
  for (Stream* stream : streams) {
    if (const auto recovered = stream->recover(); !recovered) {
      return recovered.failure().text;
    }
  }
  return {};
}

/// For what does not notify our waiter: it looks now and then.
bool RankContext::await(FunctionRef<bool()> ready, TimePoint deadline) const {
  constexpr std::chrono::milliseconds look_interval{1};
  for (TimePoint now = clock().now(); !ready(); now = clock().now()) {
    if (now >= deadline) {
      return false;
    }
    static_cast<void>(
        environment_.waiter->wait(ready, std::min<TimePoint>(deadline, now + look_interval)));
  }
  return true;
}

/// What all ranks have said, or the failure that ends the world, on all ranks that are here.
Rendezvous::Words RankContext::meet(std::uint64_t meeting,
                                    const std::string& word,
                                    const char* what) {
  Rendezvous& place = environment_.fabric->rendezvous();
  const TimePoint began = clock().now();
  place.arrive(rank(), meeting, word, environment_.waiter);
  static_cast<void>(environment_.waiter->wait([&] { return place.over(meeting); },
                                              began + meeting_limit(timeout())));
  Result<Rendezvous::Words> outcome =
      place.close(meeting, absence(place.absent(meeting), clock().now() - began, what));
  if (!outcome) {
    fail_for_good(outcome.failure());
  }
  return std::move(outcome).value();
}

/// Looked at only if somebody is absent.
Failure RankContext::absence(const Rendezvous::Absence& absent,
                             Duration waited,
                             const char* what) const {
  if (!absent.left.empty()) {
    const auto& [other, text] = *absent.left.begin();
    return {.code = ErrorCode::peer_failed,
            .text = text + "; it did not come " + what + because(),
            .rank = other};
  }
  const auto waited_ms = std::chrono::duration_cast<std::chrono::milliseconds>(waited).count();
  return {.code = ErrorCode::timeout,
          .text = "rank " + std::to_string(rank()) + " waited " + std::to_string(waited_ms) +
                  " ms for " + describe_ranks(absent.ranks) + " " + what + because(),
          .rank = absent.ranks.empty() ? -1 : absent.ranks.front()};
}

/// What made the world fail in the epoch at its end.
std::string RankContext::because() const {
  return actors_->failed() ? "; what failed first: " + actors_->state().failure.text : "";
}

/// The same failure on every rank: that of a meeting, or the verdict on what all have said.
void RankContext::fail_for_good(Failure failure) {
  environment_.fabric->end(failure);
  actors_->fail_for_good(failure);
  throw Error(std::move(failure));
}

void RankContext::rebuild(std::span<const RankStatement> statements) {
  environment_.fabric->renew(epoch_ + 1);
  groups_.clear();
  make_communicators();
  actors_->renew(communicators());
  for (std::size_t index = 0; index < runtimes_.size(); ++index) {
    runtimes_[index]->renew(common_steps(statements, index), all_save(statements, index));
  }
}

}  // namespace troupe
