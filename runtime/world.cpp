#include "troupe/runtime/world.hpp"

#include "troupe/comm/host_device.hpp"
#include "troupe/comm/local_communicator.hpp"
#include "troupe/runtime/processes/world_setup.hpp"
#include "troupe/runtime/rank_context.hpp"

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace troupe {

namespace {

constexpr int ranks_max = 256;

}  // namespace

World::Local World::local(int ranks, WorldOptions options) {
  if (ranks < 1 || ranks > ranks_max) {
    throw Error({.code = ErrorCode::bad_configuration,
                 .text = "World::local: ranks is " + std::to_string(ranks) + "; expected 1 to " +
                         std::to_string(ranks_max)});
  }
  check(options);
  return {ranks, std::move(options)};
}

void World::Local::run(const std::function<void(World&)>& body) const {
  ActorSystem actors;
  LocalWorld local(ranks_, options_.timeout);
  const Duration poll = choose_poll(options_, ranks_);
  std::vector<std::shared_ptr<Waiter>> waiters;  // before the contexts, so that it goes after them
  std::vector<std::unique_ptr<RankContext>> contexts;
  std::vector<RankActors*> peers;
  const auto start = [&](std::vector<std::thread>& threads) {
    for (int rank = 0; rank < ranks_; ++rank) {
      RankEnvironment environment = environment_of(rank, options_, poll);
      environment.actors = &actors;
      environment.fabric = &local;
      waiters.push_back(environment.waiter);
      contexts.push_back(std::make_unique<RankContext>(std::move(environment)));
      peers.push_back(&contexts.back()->actors());
    }
    RankActors::connect(peers);
    threads.reserve(contexts.size());
    for (const auto& context : contexts) {
      threads.emplace_back([&context, &body] { context->run(body); });
    }
  };
  std::vector<std::thread> threads;
  try {
    start(threads);
  } catch (const std::system_error& error) {
    const Failure failure{.code = ErrorCode::device,
                          .text = "cannot start the threads of " + std::to_string(ranks_) +
                                  " ranks: " + error.what()};
    for (const auto& context : contexts) {
      context->actors().fail(failure);  // those that run already hear of it
    }
    static_cast<void>(local.first_failure().report(failure));
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const std::optional<Failure> failure = local.first_failure().get();
  for (const auto& context : contexts) {
    if (failure) {
      context->actors().fail(*failure);  // also those that were done before: all tell of it
    }
  }
  contexts.clear();
  if (failure) {
    throw Error(*failure);
  }
}

int World::rank() const {
  return context_.rank();
}
int World::size() const {
  return context_.size();
}
Device& World::device() {
  return context_.device();
}
HostDevice& World::host_device() {
  auto* device = dynamic_cast<HostDevice*>(&context_.device());
  if (device == nullptr) {
    throw Error({.code = ErrorCode::misuse,
                 .text = "World::host_device: the device of rank " + std::to_string(rank()) +
                         " is not the CPU"});
  }
  return *device;
}

void World::all_reduce(std::span<float> values) {
  const RankContext::Call call(context_, "World::all_reduce");
  context_.actors().collective(Channel::reduce,
                               {.op = Collective::all_reduce,
                                .label = "of the trainer",
                                .input = values.data(),
                                .output = values.data(),
                                .numel = static_cast<std::int64_t>(values.size())},
                               {});
}

void World::broadcast(std::span<float> values, int root) {
  const RankContext::Call call(context_, "World::broadcast");
  if (root < 0 || root >= size()) {
    throw Error({.code = ErrorCode::misuse,
                 .text = "World::broadcast: root is " + std::to_string(root) + "; expected 0 to " +
                         std::to_string(size() - 1)});
  }
  context_.actors().collective(Channel::reduce,
                               {.op = Collective::broadcast,
                                .label = "of the trainer",
                                .input = values.data(),
                                .output = values.data(),
                                .numel = static_cast<std::int64_t>(values.size()),
                                .root = root},
                               {});
}

void World::all_gather(std::span<const float> own, std::span<float> all) {
  const RankContext::Call call(context_, "World::all_gather");
  if (all.size() != own.size() * static_cast<std::size_t>(size())) {
    throw Error({.code = ErrorCode::misuse,
                 .text = "World::all_gather: `all` has " + std::to_string(all.size()) +
                         " elements; expected world_size · own.size() = " +
                         std::to_string(own.size() * static_cast<std::size_t>(size()))});
  }
  context_.actors().collective(Channel::reduce,
                               {.op = Collective::all_gather,
                                .label = "of the trainer",
                                .input = own.data(),
                                .output = all.data(),
                                .numel = static_cast<std::int64_t>(own.size())},
                               {});
}

void World::barrier() {
  const RankContext::Call call(context_, "World::barrier");
  context_.actors().collective(Channel::reduce,
                               {.op = Collective::barrier, .label = "of the trainer"}, {});
}

bool World::stop_requested() {
  const RankContext::Call call(context_, "World::stop_requested");
  float wishes = context_.stop_wished() ? 1 : 0;
  context_.actors().collective(Channel::reduce,
                               {.op = Collective::all_reduce,
                                .label = "of wishes to stop",
                                .input = &wishes,
                                .output = &wishes,
                                .numel = 1},
                               {});
  return wishes > 0;
}

}  // namespace troupe
