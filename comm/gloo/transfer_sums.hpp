/// The part of a plan that sums: each rank's own block of every rank's input.
#pragma once

#include "troupe/comm/gloo/transfer_builder.hpp"

#include <cstdint>
#include <functional>
#include <vector>

namespace troupe {

/// Where bytes from `offset` of the own block on are summed into.
using SumTarget = std::function<Location(std::int64_t offset)>;
/// Called when the step that sums segment `index` of the own block was added.
using SegmentSummed = std::function<void(std::int64_t index)>;

/// Adds the steps, in the order of `plan.tuning().sum_order`.
void sum_blocks(
    TransferBuilder& plan,
    const std::vector<Block>& blocks,
    const SumTarget& target,
    const SegmentSummed& summed = [](std::int64_t) {});

}  // namespace troupe
