#include "troupe/comm/gloo/gloo_communicator.hpp"

#include "troupe/comm/call_check.hpp"
#include "troupe/comm/gloo/sigpipe.hpp"
#include "troupe/comm/gloo/transfer_run.hpp"
#include "troupe/comm/host_stream.hpp"

#include <gloo/context.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <string>
#include <utility>

namespace troupe {

namespace {

// ---- what the collectives of one communicator share -------------------------------------------

class GlooGroup final : public WatchedGroup {
 public:
  GlooGroup(GlooGroupOptions options,
            std::shared_ptr<gloo::Context> context,
            WorldLink& link,
            Alarm& alarm)
      : options_(std::move(options)),
        member_(static_cast<int>(std::ranges::find(options_.name.ranks, link.rank()) -
                                 options_.name.ranks.begin())),
        link_(link),
        alarm_(alarm),
        log_(options_.name),
        context_(std::move(context)),
        watch_(context_ ? std::make_unique<ConnectionWatch>(*context_) : nullptr) {
    link_.watch(*this);
  }
  GlooGroup(const GlooGroup&) = delete;
  GlooGroup& operator=(const GlooGroup&) = delete;
  ~GlooGroup() override { link_.forget(*this); }

  int member() const { return member_; }
  int size() const { return static_cast<int>(options_.name.ranks.size()); }
  WorldLink& link() { return link_; }

  void interrupt() override { interruption_.raise(); }
  const LaunchLog& log() const override { return log_; }

  std::uint64_t launch(const CollectiveCall& call) { return log_.launch(call); }
  /// Whether the collectives before `turn` have ended.
  bool is_next(std::uint64_t turn) const { return next_.load(std::memory_order_acquire) >= turn; }
  void end(std::uint64_t turn) {
    log_.end(turn);
    next_.store(turn + 1, std::memory_order_release);
  }

  /// Blocks. The world's failure, if it does not come about.
  std::optional<Failure> run(const CollectiveCall& call, std::uint64_t turn) {
    log_.begin(turn);
    if (auto failure = link_.failure()) {
      return failure;
    }
    const LoggedLaunch launch{.turn = turn, .call = logged(call), .stage = LaunchStage::begun};
    if (auto failure = link_.begins(options_.name, launch)) {
      return failure;
    }
    const TransferPlan plan =
        plan_transfer({.op = call.op,
                       .rank = member_,
                       .size = size(),
                       .numel = call.numel,
                       .element_bytes = static_cast<std::int64_t>(size_of(call.dtype)),
                       .root = call.root},
                      options_.tuning);
    const TimePoint begun = std::chrono::steady_clock::now();
    const TimePoint deadline = begun + options_.timeout;
    const SigpipeBlocked sigpipe_blocked;
    TransferRun run(context_.get(), watch_.get(), call, turn, plan, staging_, interruption_);
    std::optional<Suspicion> suspicion;
    const Alarm::Id alarm = alarm_.set(deadline, interruption_);
    try {
      suspicion = suspicion_of(run.execute(), run, deadline);
    } catch (const std::exception& exception) {
      suspicion = seen(Suspicion::Kind::connection, exception.what());
    }
    alarm_.clear(alarm);
    if (!suspicion) {
      return std::nullopt;
    }
    suspicion->waited_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                               std::chrono::steady_clock::now() - begun)
                               .count();
    suspicion->peer = run.peer() < 0 ? -1 : world_rank(run.peer());
    std::optional<Failure> failure = suspect(*std::move(suspicion), call, turn);
    if (context_) {
      context_->closeConnections();
    }
    return failure;
  }

  /// The stream has failed or was stopped before it came to this call.
  void dropped(const CollectiveCall& call, std::uint64_t turn, const HostStream& stream) {
    if (!link_.failure()) {
      const auto failure = stream.failure();
      suspect(seen(Suspicion::Kind::dropped, failure ? failure->text : "its stream ended"), call,
              turn);
    }
  }

 private:
  int world_rank(int member) const { return options_.name.ranks[static_cast<std::size_t>(member)]; }

  static Suspicion seen(Suspicion::Kind kind, std::string text) {
    Suspicion suspicion;
    suspicion.kind = kind;
    suspicion.text = std::move(text);
    return suspicion;
  }

  Failure suspect(Suspicion suspicion, const CollectiveCall& call, std::uint64_t turn) {
    if (auto failure = link_.failure()) {
      return *std::move(failure);
    }
    suspicion.rank = link_.rank();
    suspicion.group = options_.name;
    suspicion.turn = turn;
    suspicion.call = logged(call);
    return link_.suspect(std::move(suspicion));
  }

  /// What to tell the world after a run; interrupted and before its deadline, it knows already.
  std::optional<Suspicion> suspicion_of(RunEnd end, const TransferRun& run, TimePoint deadline) {
    switch (end) {
      case RunEnd::done:
        return std::nullopt;
      case RunEnd::mismatch: {
        const LoggedCall other = run.other_call();
        return seen(Suspicion::Kind::mismatch, "rank " + std::to_string(world_rank(run.peer())) +
                                                   " brings " + describe_exactly(other.view()));
      }
      case RunEnd::interrupted:
        break;
    }
    const bool late = std::chrono::steady_clock::now() >= deadline;
    return late ? seen(Suspicion::Kind::timeout, "")
                : seen(Suspicion::Kind::dropped, "the world ended it");
  }

  const GlooGroupOptions options_;
  const int member_;
  WorldLink& link_;
  Alarm& alarm_;
  LaunchLog log_;
  Interruption interruption_;
  std::atomic<std::uint64_t> next_{0};

  // Of the stream that runs the collective whose turn it is.
  const std::shared_ptr<gloo::Context> context_;
  const std::unique_ptr<const ConnectionWatch> watch_;
  StagingMemory staging_;
};

// ---- one collective -----------------------------------------------------------------------------

class Operation {
 public:
  Operation(std::shared_ptr<GlooGroup> group,
            std::uint64_t turn,
            const CollectiveCall& call,
            const HostStream& stream)
      : group_(std::move(group)), turn_(turn), call_(call), stream_(stream) {}
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  ~Operation() {
    if (!ended_) {
      group_->dropped(call_, turn_, stream_);
      group_->end(turn_);
    }
  }

  Result<Progress> run() {
    if (!group_->is_next(turn_) && !group_->link().failure()) {
      return Progress::blocked;  // an earlier one, on another stream; tried again before long
    }
    auto failure = group_->run(call_, turn_);
    ended_ = true;
    group_->end(turn_);
    return failure ? Result<Progress>(*std::move(failure)) : Progress::done;
  }

 private:
  const std::shared_ptr<GlooGroup> group_;
  const std::uint64_t turn_;
  const CollectiveCall call_;
  const HostStream& stream_;
  bool ended_ = false;
};

class GlooCommunicator final : public Communicator {
 public:
  explicit GlooCommunicator(std::shared_ptr<GlooGroup> group) : group_(std::move(group)) {}

  int rank() const override { return group_->member(); }
  int size() const override { return group_->size(); }

  Result<void> launch(const CollectiveCall& call, Stream& stream) override {
    if (auto failure = check_call(call, rank(), size())) {
      return *std::move(failure);
    }
    auto* host_stream = dynamic_cast<HostStream*>(&stream);
    if (host_stream == nullptr) {
      return Failure{.code = ErrorCode::misuse,
                     .text = describe(call) + " cannot run on stream '" + stream.name() +
                             "': the Gloo communicator needs a worker stream of a host device",
                     .ticket = call.ticket,
                     .bucket = call.bucket};
    }
    if (auto failure = group_->link().failure()) {
      return *std::move(failure);
    }
    const std::uint64_t turn = group_->launch(call);
    auto operation = std::make_shared<Operation>(group_, turn, call, *host_stream);
    host_stream->enqueue([operation = std::move(operation)] { return operation->run(); });
    return {};
  }

  void abort(const Failure& failure) override { group_->link().abort(failure); }

 private:
  const std::shared_ptr<GlooGroup> group_;
};

}  // namespace

std::unique_ptr<Communicator> make_gloo_communicator(GlooGroupOptions options,
                                                     std::shared_ptr<gloo::Context> context,
                                                     WorldLink& link,
                                                     Alarm& alarm) {
  return std::make_unique<GlooCommunicator>(
      std::make_shared<GlooGroup>(std::move(options), std::move(context), link, alarm));
}

}  // namespace troupe
