// The plans of all ranks are executed together in memory, in many orders of delivery.
#include "troupe/comm/gloo/transfer_plan.hpp"

#include "troupe/comm/kernels.hpp"
#include "troupe/test/comm/support/draw.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace troupe::test {
namespace {

constexpr Collective all_collectives[] = {Collective::all_gather, Collective::reduce_scatter,
                                          Collective::all_reduce, Collective::reduce,
                                          Collective::broadcast,  Collective::barrier};

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

/// When a message may arrive: it has been sent and its receive is posted; then
enum class Delivery : std::uint8_t {
  early,   ///< at once
  late,    ///< when no rank can go on without
  random,  ///< some time
};

struct Case {
  Collective op = Collective::barrier;
  int size = 1;
  std::int64_t numel = 0;
  int root = 0;
  bool in_place = false;
  TransferTuning tuning{};
};

struct Memory {
  std::vector<float> input;
  std::vector<float> output;  ///< not used in place
  std::vector<std::byte> staging;
};

/// All ranks of one collective. What goes wrong is in `fault`.
class Execution {
 public:
  Execution(const Case& what, std::vector<Memory>& memory)
      : case_(what), memory_(memory), next_(at(what.size)) {
    for (int rank = 0; rank < what.size; ++rank) {
      plans_.push_back(plan_transfer({.op = what.op,
                                      .rank = rank,
                                      .size = what.size,
                                      .numel = what.numel,
                                      .element_bytes = sizeof(float),
                                      .root = what.root},
                                     what.tuning));
      memory[at(rank)].staging.assign(at(plans_.back().staging_bytes), std::byte{0xee});
    }
  }

  void run(Delivery delivery, Random& random) {
    while (fault.empty()) {
      std::vector<int> ranks;
      for (int rank = 0; rank < case_.size; ++rank) {
        if (can_step(rank)) {
          ranks.push_back(rank);
        }
      }
      const auto messages = deliverable();
      const bool deliver =
          !messages.empty() && (ranks.empty() || delivery == Delivery::early ||
                                (delivery == Delivery::random && one_in(random, 2)));
      if (deliver) {
        deliver_one(messages[random.below(messages.size())]);
      } else if (!ranks.empty()) {
        step(ranks[random.below(ranks.size())]);
      } else {
        break;
      }
    }
    for (int rank = 0; rank < case_.size && fault.empty(); ++rank) {
      if (next_[at(rank)] < plans_[at(rank)].steps.size()) {
        fault = "rank " + std::to_string(rank) + " is stuck";
      }
    }
    for (const auto& [way, channel] : channels_) {
      if (fault.empty() && (channel.sent != channel.arrived || channel.posted != channel.arrived ||
                            channel.sent_awaited != channel.sent)) {
        fault = "something is left under way";
      }
    }
  }

  const TransferPlan& plan(int rank) const { return plans_[at(rank)]; }

  std::string fault;

 private:
  using Way = std::tuple<int, int, Lane>;  ///< from, to
  struct Piece {
    Location at;
    std::int64_t bytes;
  };
  struct Channel {
    std::vector<Piece> sends;
    std::vector<Piece> receives;
    std::size_t sent = 0;
    std::size_t posted = 0;
    std::size_t arrived = 0;
    std::size_t sent_awaited = 0;
    std::size_t received_awaited = 0;
  };

  std::byte* pointer(int rank, Location location) {
    Memory& mine = memory_[at(rank)];
    const auto bytes_of = [](std::vector<float>& values) {
      return std::as_writable_bytes(std::span(values)).data();
    };
    // In place: output and input are one buffer, and the smaller begins at the own part.
    const std::int64_t own = rank * case_.numel * std::int64_t{sizeof(float)};
    switch (location.place) {
      case Place::input:
        return bytes_of(mine.input) + location.offset +
               (case_.in_place && case_.op == Collective::all_gather ? own : 0);
      case Place::output:
        return case_.in_place ? bytes_of(mine.input) + location.offset +
                                    (case_.op == Collective::reduce_scatter ? own : 0)
                              : bytes_of(mine.output) + location.offset;
      case Place::staging:
        break;
    }
    return mine.staging.data() + location.offset;
  }

  const Transfer* head(int rank) const {
    const auto& steps = plans_[at(rank)].steps;
    return next_[at(rank)] < steps.size() ? &steps[next_[at(rank)]] : nullptr;
  }

  bool can_step(int rank) {
    const Transfer* step = head(rank);
    if (step == nullptr) {
      return false;
    }
    if (step->kind == Transfer::Kind::await_receive) {
      const Channel& channel = channels_[{step->peer, rank, step->lane}];
      return channel.arrived > channel.received_awaited;
    }
    if (step->kind == Transfer::Kind::await_send) {
      const Channel& channel = channels_[{rank, step->peer, step->lane}];
      return channel.arrived > channel.sent_awaited;
    }
    return true;
  }

  void step(int rank) {
    const TransferPlan& plan = plans_[at(rank)];
    const Transfer& step = *head(rank);
    ++next_[at(rank)];
    switch (step.kind) {
      case Transfer::Kind::receive: {
        Channel& channel = channels_[{step.peer, rank, step.lane}];
        channel.receives.push_back({step.at, step.bytes});
        ++channel.posted;
        break;
      }
      case Transfer::Kind::send: {
        Channel& channel = channels_[{rank, step.peer, step.lane}];
        channel.sends.push_back({step.at, step.bytes});
        ++channel.sent;
        break;
      }
      case Transfer::Kind::await_receive:
        ++channels_[{step.peer, rank, step.lane}].received_awaited;
        break;
      case Transfer::Kind::await_send:
        ++channels_[{rank, step.peer, step.lane}].sent_awaited;
        break;
      case Transfer::Kind::sum: {
        std::vector<const void*> sources;
        for (std::uint32_t i = 0; i < step.source_count; ++i) {
          sources.push_back(pointer(rank, plan.sources[step.first_source + i]));
        }
        kernels::sum(sources, DType::f32, pointer(rank, step.at),
                     step.bytes / std::int64_t{sizeof(float)});
        break;
      }
      case Transfer::Kind::copy:
        kernels::copy(pointer(rank, step.at), pointer(rank, plan.sources[step.first_source]),
                      step.bytes);
        break;
    }
  }

  std::vector<Way> deliverable() const {
    std::vector<Way> ways;
    for (const auto& [way, channel] : channels_) {
      if (std::min(channel.sent, channel.posted) > channel.arrived) {
        ways.push_back(way);
      }
    }
    return ways;
  }

  void deliver_one(const Way& way) {
    Channel& channel = channels_[way];
    const Piece& from = channel.sends[channel.arrived];
    const Piece& to = channel.receives[channel.arrived];
    if (from.bytes != to.bytes) {
      fault = "a message of " + std::to_string(from.bytes) + " bytes meets a receive of " +
              std::to_string(to.bytes);
      return;
    }
    ++channel.arrived;
    std::memcpy(pointer(std::get<1>(way), to.at), pointer(std::get<0>(way), from.at),
                at(from.bytes));
  }

  const Case case_;
  std::vector<Memory>& memory_;
  std::vector<TransferPlan> plans_;
  std::vector<std::size_t> next_;
  std::map<Way, Channel> channels_;
};

// ---- what has to come out -------------------------------------------------------------------

std::int64_t input_numel(const Case& what) {
  return what.op == Collective::reduce_scatter ? what.numel * what.size : what.numel;
}

std::int64_t output_numel(const Case& what) {
  return what.op == Collective::all_gather ? what.numel * what.size : what.numel;
}

/// Element `index` of all inputs added from rank `first` on.
float sum_from(const std::vector<std::vector<float>>& inputs, int first, std::int64_t index) {
  const int size = static_cast<int>(inputs.size());
  float total = inputs[at(first)][at(index)];
  for (int i = 1; i < size; ++i) {
    total = total + inputs[at((first + i) % size)][at(index)];
  }
  return total;
}

/// Whose part comes first in the sum of what rank `block` sums.
int first_of(const Case& what, int block) {
  return what.tuning.sum_order == SumOrder::ranks ? 0 : (block + 1) % what.size;
}

float expected(const Case& what,
               const std::vector<std::vector<float>>& inputs,
               int rank,
               std::int64_t index) {
  switch (what.op) {
    case Collective::all_gather:
      return inputs[at(index / what.numel)][at(index % what.numel)];
    case Collective::broadcast:
      return inputs[at(what.root)][at(index)];
    case Collective::reduce_scatter:
      return sum_from(inputs, first_of(what, rank), rank * what.numel + index);
    case Collective::all_reduce:
    case Collective::reduce: {
      const std::int64_t even = (what.numel + what.size - 1) / what.size;
      const std::int64_t each = (even + 31) / 32 * 32;
      return sum_from(inputs, first_of(what, static_cast<int>(index / each)), index);
    }
    case Collective::barrier:
      break;
  }
  return 0;
}

bool has_output(const Case& what, int rank) {
  return what.op != Collective::barrier && (what.op != Collective::reduce || rank == what.root);
}

void check(const Case& what, Delivery delivery, std::uint64_t seed) {
  CAPTURE(to_string(what.op));
  CAPTURE(what.size);
  CAPTURE(what.numel);
  CAPTURE(what.root);
  CAPTURE(what.in_place);
  CAPTURE(what.tuning.segment_bytes);
  CAPTURE(what.tuning.staging_bytes);
  CAPTURE(static_cast<int>(what.tuning.sum_order));
  CAPTURE(static_cast<int>(delivery));
  CAPTURE(seed);
  Random random(seed);
  std::vector<Memory> memory(at(what.size));
  std::vector<std::vector<float>> inputs;
  for (int rank = 0; rank < what.size; ++rank) {
    std::vector<float>& input = inputs.emplace_back(at(input_numel(what)));
    std::ranges::generate(input, [&] { return real(random); });
    Memory& mine = memory[at(rank)];
    mine.output.assign(at(output_numel(what)), -77.0F);
    mine.input = input;
    if (what.in_place && what.op == Collective::all_gather) {
      mine.input = mine.output;
      std::ranges::copy(input, mine.input.begin() + rank * what.numel);
    }
  }
  Execution execution(what, memory);
  execution.run(delivery, random);
  REQUIRE(execution.fault.empty());
  for (int rank = 0; rank < what.size; ++rank) {
    CAPTURE(rank);
    if (!has_output(what, rank)) {
      continue;
    }
    const Memory& mine = memory[at(rank)];
    const std::int64_t own =
        what.in_place && what.op == Collective::reduce_scatter ? rank * what.numel : 0;
    std::vector<float> actual(at(output_numel(what)));
    std::vector<float> wanted(actual.size());
    for (std::int64_t i = 0; i < output_numel(what); ++i) {
      actual[at(i)] = (what.in_place ? mine.input : mine.output)[at(own + i)];
      wanted[at(i)] = expected(what, inputs, rank, i);
    }
    REQUIRE(actual == wanted);
    if (!what.in_place) {
      REQUIRE(mine.input == inputs[at(rank)]);
    }
  }
}

void check_all_deliveries(const Case& what, std::uint64_t seed) {
  for (const Delivery delivery : {Delivery::early, Delivery::late, Delivery::random}) {
    check(what, delivery, seed);
  }
}

TransferTuning tuning_of(SumOrder order, std::int64_t segment_bytes, std::int64_t staging_bytes) {
  return {.sum_order = order, .segment_bytes = segment_bytes, .staging_bytes = staging_bytes};
}

TEST_CASE("the plans of all ranks give what each collective promises, whenever messages arrive") {
  std::uint64_t seed = 0;
  for (const int size : {1, 2, 3, 4, 7}) {
    for (const Collective op : all_collectives) {
      for (const SumOrder order : {SumOrder::ranks, SumOrder::ring}) {
        for (const std::int64_t numel : {0, 1, 2, 5, 33, 1000}) {
          for (const bool in_place : {false, true}) {
            for (const std::int64_t segment_bytes : {64, 256, 1 << 20}) {
              const bool rooted = op == Collective::reduce || op == Collective::broadcast;
              for (const int root : std::set<int>{0, rooted ? size - 1 : 0}) {
                check_all_deliveries({.op = op,
                                      .size = size,
                                      .numel = numel,
                                      .root = root,
                                      .in_place = in_place,
                                      .tuning = tuning_of(order, segment_bytes, 1024)},
                                     ++seed);
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("many segments through little staging memory give the same") {
  Random random(3);
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const int size = static_cast<int>(2 + random.below(6));
    const auto order = one_in(random, 2) ? SumOrder::ranks : SumOrder::ring;
    check_all_deliveries(
        {.op = all_collectives[random.below(4)],
         .size = size,
         .numel = static_cast<std::int64_t>(random.below(3000)),
         .root = 0,
         .in_place = one_in(random, 2),
         .tuning = tuning_of(order, static_cast<std::int64_t>(64 + random.below(400)),
                             static_cast<std::int64_t>(random.below(8000)))},
        seed);
  }
}

TEST_CASE("staging memory keeps to its limit, however large the buffer is") {
  for (const SumOrder order : {SumOrder::ranks, SumOrder::ring}) {
    for (const Collective op :
         {Collective::reduce_scatter, Collective::all_reduce, Collective::reduce}) {
      for (const int size : {2, 3, 7, 64}) {
        const TransferTuning tuning{.sum_order = order};
        const TransferPlan plan = plan_transfer({.op = op,
                                                 .rank = 1,
                                                 .size = size,
                                                 .numel = std::int64_t{64} << 20,
                                                 .element_bytes = 4,
                                                 .root = 0},
                                                tuning);
        const std::int64_t results = op == Collective::reduce ? 4 * tuning.segment_bytes : 0;
        CHECK(plan.staging_bytes > 0);
        CHECK(plan.staging_bytes <= tuning.staging_bytes + results);
      }
    }
  }
  const TransferPlan gather = plan_transfer({.op = Collective::all_gather,
                                             .rank = 1,
                                             .size = 7,
                                             .numel = std::int64_t{8} << 20,
                                             .element_bytes = 4},
                                            {});
  CHECK(gather.staging_bytes == 0);
}

struct Volume {
  std::int64_t sent = 0;
  std::int64_t received = 0;
};

Volume volume_of(const TransferPlan& plan) {
  Volume volume;
  for (const Transfer& step : plan.steps) {
    volume.sent += step.kind == Transfer::Kind::send ? step.bytes : 0;
    volume.received += step.kind == Transfer::Kind::receive ? step.bytes : 0;
  }
  return volume;
}

TEST_CASE("no rank sends or receives more than the collective needs") {
  constexpr std::int64_t numel = 7 * 32 * 100;
  constexpr std::int64_t bytes = numel * 4;
  for (const SumOrder order : {SumOrder::ranks, SumOrder::ring}) {
    for (const int size : {2, 3, 4, 7}) {
      for (int rank = 0; rank < size; ++rank) {
        const auto volume = [&](Collective op) {
          return volume_of(plan_transfer(
              {.op = op, .rank = rank, .size = size, .numel = numel, .element_bytes = 4, .root = 0},
              {.sum_order = order, .segment_bytes = 4096}));
        };
        for (const Collective op : {Collective::all_gather, Collective::reduce_scatter}) {
          CHECK(volume(op).sent == (size - 1) * bytes);
          CHECK(volume(op).received == (size - 1) * bytes);
        }
        const Volume broadcast = volume(Collective::broadcast);
        CHECK(broadcast.sent == (rank == size - 1 ? 0 : bytes));
        CHECK(broadcast.received == (rank == 0 ? 0 : bytes));
        // 2 (W - 1) / W of the buffer, and what the slices' alignment adds to the longest.
        CHECK(volume(Collective::all_reduce).sent <= 2 * (size - 1) * (bytes / size + 128));
        CHECK(volume(Collective::barrier).sent <= 3);
      }
    }
  }
}

TEST_CASE("receives into the output are posted before anything is awaited") {
  for (const Collective op :
       {Collective::all_gather, Collective::all_reduce, Collective::broadcast}) {
    const TransferPlan plan = plan_transfer(
        {.op = op, .rank = 1, .size = 4, .numel = 100000, .element_bytes = 4, .root = 0},
        {.segment_bytes = 4096});
    bool awaited = false;
    int posted = 0;
    for (const Transfer& step : plan.steps) {
      awaited = awaited || step.kind == Transfer::Kind::await_receive ||
                step.kind == Transfer::Kind::await_send;
      if (step.kind == Transfer::Kind::receive && step.at.place == Place::output) {
        ++posted;
        CHECK_FALSE(awaited);
      }
    }
    CHECK(posted > 10);
  }
}

}  // namespace
}  // namespace troupe::test
