/// All orders of a tiny world: runs it again and again, each time by another list of choices, until
/// there is none left (stateless depth-first search).
///
/// [Note: sleep sets] Two steps that touch nothing in common lead to the same state in either
/// order. After the explorer has tried step a at some place, a *sleeps* at that place: it is not
/// tried first again in what follows there, until a step has happened that touches something of
/// a's. (Godefroid, Partial-Order Methods for the Verification of Concurrent Systems, 1996,
/// chapter 5.) Every order is then equal to one that was run, up to swaps of such steps; a run in
/// which all that could happen sleeps is equal to one that was, and is not continued (its steps are
/// counted as pruned). What a step touches is observed while it happens: mailboxes, streams,
/// groups, the trainer's words, a rank's memory.
#pragma once

#include "chooser.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

namespace troupe::test {

class Explorer final : public Chooser {
 public:
  /// `reduce` false: really all orders.
  explicit Explorer(bool reduce) : reduce_(reduce) {}

  /// Prepares the next run; false if there is none. `run` what uses this chooser in between.
  bool next();

  std::uint64_t complete_runs() const { return complete_; }
  /// Runs that turned out to be equal to an earlier one.
  std::uint64_t pruned_runs() const { return pruned_; }
  /// Steps that were not tried since they slept.
  std::uint64_t pruned_steps() const { return pruned_steps_; }
  /// Steps tried, each counted at the place where it was tried first.
  std::uint64_t visited_steps() const { return visited_; }
  /// One number for each class of orders that are equal up to swaps (of the complete runs): for
  /// each thing that is touched, who touched it in which order.
  const std::set<std::uint64_t>& classes() const { return classes_; }

  // Chooser
  std::size_t choose(std::span<const Option> options) override;
  std::size_t draw(std::size_t /*count*/) override { return 0; }
  void touched(std::uint64_t object, bool alone) override;

 private:
  using Footprint = std::map<std::uint64_t, bool>;  ///< what was touched, and whether alone
  /// A place on the way to the end of a run.
  struct Place {
    std::vector<std::uint64_t> options;
    std::size_t chosen = 0;
    Footprint footprint;                             ///< of what was chosen
    std::map<std::uint64_t, Footprint> asleep = {};  ///< what need not be chosen here
  };

  bool wakes(const Footprint& a, const Footprint& b) const;
  bool choose_awake(Place& place) const;
  void count_run();

  const bool reduce_;
  std::vector<Place> way_;
  std::size_t depth_ = 0;
  bool begun_ = false;
  bool blocked_ = false;  ///< this run is equal to an earlier one
  std::uint64_t complete_ = 0;
  std::uint64_t pruned_ = 0;
  std::uint64_t pruned_steps_ = 0;
  std::uint64_t visited_ = 0;
  std::set<std::uint64_t> classes_;
};

}  // namespace troupe::test
