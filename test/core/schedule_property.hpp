/// What must hold for every training program, tried on random ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace troupe::testing {

/// How often the programs did what the properties are about.
struct Coverage {
  std::uint64_t events = 0;
  std::uint64_t refused = 0;
  std::uint64_t refused_for_slots = 0;
  std::uint64_t refused_for_gradient_slots = 0;
  std::uint64_t ignored_ends = 0;
  std::uint64_t prefetch_hits = 0;
  std::uint64_t misses = 0;
  std::uint64_t evictions = 0;
  std::uint64_t evicted_unused = 0;
  std::uint64_t reduces = 0;
  std::uint64_t regathers = 0;
  std::uint64_t replica_sums = 0;  ///< at step ends
  std::uint64_t accumulated = 0;   ///< micro-batches that did not reduce
  std::uint64_t left_reduces = 0;  ///< at step ends, of what they left

  // Where ranks agree on an order.
  std::uint64_t refused_for_order = 0;   ///< something stale is gathered before
  std::uint64_t refused_as_reduced = 0;  ///< a backward after the reduce
  std::uint64_t zero_reduces = 0;
  std::uint64_t out_of_turn = 0;        ///< reduces that make room for a backward
  std::uint64_t changed_when_kept = 0;  ///< frozen buckets
};

/// Runs the program of `seed`; the property that it violates, in words, or nothing. Properties:
///  - what the ledger watches: limits, pins, states, tickets, reduces, counts;
///  - a refusal is necessary, and what is granted is possible, both counted independently;
///  - every decision is that of the rules as the reference walks through them;
///  - a second run that leaves out the refused events decides the same.
std::optional<std::string> violated_property(std::uint64_t seed, Coverage& coverage);

}  // namespace troupe::testing
