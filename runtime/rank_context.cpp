#include "troupe/runtime/rank_context.hpp"

#include <exception>
#include <numeric>
#include <utility>

namespace troupe {

namespace {

std::vector<int> all_ranks(int world_size) {
  std::vector<int> ranks(static_cast<std::size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

RankContext::RankContext(RankEnvironment environment) : environment_(std::move(environment)) {
  if (environment_.log) {
    // The trainer's code on our threads, while a failure is under way: it cannot stop that.
    environment_.log = [log = std::move(environment_.log)](const std::string& text) {
      try {
        log(text);
      } catch (...) {
        return;  // the failure goes its way without the text
      }
    };
  }
  Fabric& fabric = *environment_.fabric;
  make_communicators();
  RankConfig config;
  config.rank = rank();
  config.world_size = fabric.world_size();
  config.device = &device();
  config.queues[static_cast<std::size_t>(Channel::gather)] = {gather_communicator_.get(),
                                                              &device().create_stream("gather")};
  config.queues[static_cast<std::size_t>(Channel::reduce)] = {reduce_communicator_.get(),
                                                              &device().create_stream("reduce")};
  for (const RankConfig::Queue& queue : config.queues) {
    queue.stream->subscribe(*environment_.waiter);
  }
  config.waiter = environment_.waiter.get();
  config.clock = environment_.clock;
  config.timeout = environment_.timeout;
  config.comm_poll = environment_.comm_poll;
  config.report_failure = [&fabric](Failure failure) { return fabric.report(std::move(failure)); };
  config.abort = [&fabric](const Failure& failure) { fabric.abort(failure); };
  config.log = environment_.log;
  config.on_dump = environment_.on_dump;
  if (environment_.on_launch) {
    config.on_launch = [observer = environment_.on_launch,
                        own = rank()](const LaunchRecord& record) { observer(own, record); };
  }
  if (environment_.trace != nullptr) {
    config.trace = &environment_.trace->of_rank(rank());
  }
  actors_ = std::make_unique<RankActors>(*environment_.actors, std::move(config));
  compute_log_ = std::make_unique<ComputeLog>(*actors_);
}

void RankContext::make_communicators() {
  Fabric& fabric = *environment_.fabric;
  const std::vector<int> ranks = all_ranks(fabric.world_size());
  gather_communicator_ = fabric.communicator(rank(), ranks, static_cast<int>(Channel::gather));
  reduce_communicator_ = fabric.communicator(rank(), ranks, static_cast<int>(Channel::reduce));
}

RankContext::~RankContext() {
  remains_.clear();
  constexpr std::chrono::seconds limit{30};
  if (!actors_->quiesce(limit)) {
    log("rank " + std::to_string(rank()) + ": collectives were still under way at the end");
  }
  // The streams' last notifications go to the comm actor: streams first, then the actors.
  device().stop();
}

Group RankContext::group(GroupAxis axis, const std::vector<int>& ranks) {
  if (static_cast<int>(ranks.size()) == size()) {
    return {};
  }
  auto& channels = groups_[ranks];
  for (std::size_t channel = 0; channel < channel_count; ++channel) {
    if (!channels[channel]) {
      channels[channel] =
          environment_.fabric->communicator(rank(), ranks, static_cast<int>(channel));
    }
  }
  return {axis, channels[static_cast<std::size_t>(Channel::gather)].get(),
          channels[static_cast<std::size_t>(Channel::reduce)].get()};
}

void RankContext::log(const std::string& text) const {
  if (environment_.log) {
    environment_.log(text);
  }
}

void RankContext::warn(const std::string& text) const {
  if (environment_.warn) {
    environment_.warn(text);
  }
}

RankContext::Turn::Turn(RankContext& context, const char* what) : context_(context) {
  const char* other = nullptr;
  if (!context.calling_.compare_exchange_strong(other, what)) {
    throw Error({.code = ErrorCode::misuse,
                 .text = "rank " + std::to_string(context.rank()) + ": " + what +
                         " was called while " + other +
                         " is under way on another thread; the calls of a rank form one sequence",
                 .rank = context.rank()});
  }
}

RankContext::Turn::~Turn() {
  context_.calling_.store(nullptr);
}

RankContext::Call::Call(RankContext& context, const char* what) : turn_(context, what) {
  context.report_abandoned();
  context.actors_->throw_if_failed();
}

void RankContext::abandon(std::string place) {
  if (!abandoned_) {
    abandoned_ = std::move(place);
  }
}

void RankContext::report_abandoned() {
  if (abandoned_ && !actors_->failed()) {
    report({.code = ErrorCode::peer_failed, .text = "an exception was thrown there"});
  }
}

void RankContext::report(Failure failure) {
  failure.text = "rank " + std::to_string(rank()) + " failed" +
                 (abandoned_ ? " at " + *abandoned_ : "") + ": " + failure.text;
  if (failure.rank < 0) {  // else it is said whose fault it is: of ranks that disagree, say
    failure.rank = rank();
  }
  actors_->fail(std::move(failure));
}

void RankContext::run(const std::function<void(World&)>& body) {
  World world(*this);
  try {
    body(world);
    report_abandoned();  // before anything here waits for peers
    remains_.clear();
    body_returned();
    return;
  } catch (const Error& error) {
    // Its own failure, or the world's coming back: the first one stands in any case.
    body_failed(error.failure());
  } catch (const std::exception& exception) {
    body_failed({.code = ErrorCode::peer_failed, .text = exception.what()});
  } catch (...) {
    body_failed(
        {.code = ErrorCode::peer_failed, .text = "an exception that is not a std::exception"});
  }
  environment_.fabric->rendezvous().leave(
      rank(), "rank " + std::to_string(rank()) + " has left the world by an exception");
  remains_.clear();
}

void RankContext::body_failed(Failure failure) {
  if (!actors_->failed()) {
    report(std::move(failure));
  }
}

void RankContext::body_returned() {
  report_abandoned();
  const std::string text =
      "rank " + std::to_string(rank()) + " has left the world after step " + std::to_string(steps);
  environment_.fabric->leave(rank(), text);
  environment_.fabric->rendezvous().leave(rank(), text);
}

void RankContext::leave_behind(std::shared_ptr<void> remains) {
  remains_.push_back(std::move(remains));
}

}  // namespace troupe
