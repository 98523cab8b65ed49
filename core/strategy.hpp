/// The three strategies as rows of data: one state machine reads them. See docs/architecture.md.
#pragma once

#include <array>
#include <cstdint>

namespace troupe {

enum class Strategy : std::uint8_t { owner_broadcast, sharded_optimizer, full_shard };

/// What a rank keeps of the main weights.
enum class MasterCopy : std::uint8_t {
  whole_parameters,  ///< each parameter whole on one owner
  even_slice,        ///< the same slice of every bucket on each rank
};

/// What holds the full parameters while a bucket is `sharded`.
enum class FullBuffer : std::uint8_t {
  stays,  ///< an own buffer, stale until the next unshard
  slot,   ///< none: a slot is taken for each gather
};

enum class Collective : std::uint8_t {
  all_gather,
  reduce_scatter,
  all_reduce,
  reduce,
  broadcast,
  barrier
};
inline constexpr std::size_t collective_count = 6;

struct StrategyRow {
  Strategy strategy;
  const char* name;
  MasterCopy master_copy;
  FullBuffer full_buffer;
  Collective unshard_by;
  Collective reduce_by;
};

// clang-format off
/// Origins: ZeRO (Rajbhandari et al. 2020); PaddlePaddle sharding V1, V2 and FullyShardFusion.
inline constexpr std::array<StrategyRow, 3> strategies{{
    {Strategy::owner_broadcast,   "owner_broadcast",   MasterCopy::whole_parameters, FullBuffer::stays, Collective::broadcast,  Collective::reduce},
    {Strategy::sharded_optimizer, "sharded_optimizer", MasterCopy::even_slice,       FullBuffer::stays, Collective::all_gather, Collective::reduce_scatter},
    {Strategy::full_shard,        "full_shard",        MasterCopy::even_slice,       FullBuffer::slot,  Collective::all_gather, Collective::reduce_scatter},
}};
// clang-format on

constexpr const StrategyRow& row_of(Strategy strategy) {
  return strategies[static_cast<std::size_t>(strategy)];
}

static_assert(row_of(Strategy::owner_broadcast).strategy == Strategy::owner_broadcast);
static_assert(row_of(Strategy::sharded_optimizer).strategy == Strategy::sharded_optimizer);
static_assert(row_of(Strategy::full_shard).strategy == Strategy::full_shard);

constexpr const char* to_string(Collective collective) {
  constexpr std::array<const char*, collective_count> names{
      "all_gather", "reduce_scatter", "all_reduce", "reduce", "broadcast", "barrier"};
  return names[static_cast<std::size_t>(collective)];
}

}  // namespace troupe
