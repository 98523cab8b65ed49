// Strategies beside each other: the table at the end of `--strategy all`. Pure.
#pragma once

#include "report.hpp"
#include "sharded.hpp"
#include <troupe/core/strategy.hpp>

#include <optional>
#include <span>
#include <string>

namespace gpt {

struct StrategyRun {
  troupe::Strategy strategy;
  ShardedRun run;
  std::optional<Comparison> comparison = {};  // none: not compared
};

/// A column for each run, and one for unsharded training. Memory is that of the rank that holds
/// most, bytes sent are those of the rank that sends most; collectives are the same on all.
/// runs  at least one, each of at least one step
std::string strategy_table(std::span<const StrategyRun> runs);

}  // namespace gpt
