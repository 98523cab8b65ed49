/// Random sequences of collectives on the channels of a world: each rank launches from a thread of
/// its own, and its streams are held up now and then.
#pragma once

#include "troupe/test/comm/support/collectives_contract.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

namespace troupe::test {

/// Few elements, or, once in eight times, up to `numel_max`.
inline Spec random_spec(Random& random, int size, std::int64_t numel_max = 5000) {
  constexpr std::int64_t few = 300;
  Spec spec;
  spec.op = all_collectives[random.below(std::size(all_collectives))];
  spec.dtype = one_in(random, 2) ? DType::f32 : DType::bf16;
  spec.numel = static_cast<std::int64_t>(
      random.below(static_cast<std::uint64_t>(one_in(random, 8) ? numel_max : few)));
  spec.root = is_rooted(spec.op) ? static_cast<int>(random.below(static_cast<unsigned>(size))) : 0;
  spec.in_place = one_in(random, 2);
  spec.values = static_cast<Values>(random.below(3));
  return spec;
}

/// Twelve collectives, each on one of the channels; values are checked against sums in rank order,
/// bit for bit. `Channel` is a `WorldFixture` whose streams are of the host.
template <class Channel>
void run_random_trials(Random& random,
                       std::uint64_t seed,
                       std::span<Channel> channels,
                       std::int64_t numel_max) {
  const int size = channels.front().size();
  std::vector<std::unique_ptr<Trial>> trials;
  std::vector<Channel*> of_trial;
  for (Ticket ticket = 1; ticket <= 12; ++ticket) {
    Channel& channel = channels[random.below(channels.size())];
    const Spec spec = random_spec(random, size, numel_max);
    trials.push_back(std::make_unique<Trial>(channel, spec, ticket, seed * 100 + ticket));
    of_trial.push_back(&channel);
  }
  std::vector<std::thread> trainers;
  std::vector<std::uint64_t> refused(static_cast<std::size_t>(size), 0);
  for (int rank = 0; rank < size; ++rank) {
    trainers.emplace_back([&trials, &of_trial, &refused, rank, delays = random.next()] {
      Random delay(delays);
      for (std::size_t i = 0; i < trials.size(); ++i) {
        if (one_in(delay, 3)) {
          const auto pause = std::chrono::microseconds(delay.below(200));
          static_cast<HostStream&>(of_trial[i]->stream(rank)).run([pause] {
            std::this_thread::sleep_for(pause);
          });
        }
        refused[static_cast<std::size_t>(rank)] += trials[i]->launch(rank).ok() ? 0U : 1U;
        if (one_in(delay, 4)) {
          std::this_thread::sleep_for(std::chrono::microseconds(delay.below(100)));
        }
      }
    });
  }
  for (std::thread& trainer : trainers) {
    trainer.join();
  }
  REQUIRE(refused == std::vector<std::uint64_t>(refused.size(), 0));
  for (Channel& channel : channels) {
    for (const auto& failure : channel.settle()) {
      REQUIRE_MESSAGE(!failure, failure->text);
    }
  }
  for (const auto& trial : trials) {
    trial->check();
  }
}

}  // namespace troupe::test
