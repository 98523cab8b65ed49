/// Books kept beside a schedule, from the trainer's calls and the decisions alone. They know
/// nothing of predictions: only what must never go wrong, whatever the order of gathers.
#pragma once

#include "schedule_random.hpp"
#include "troupe/core/bucket_state.hpp"
#include "troupe/core/schedule.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::testing {

class Ledger {
 public:
  explicit Ledger(const SchedulePlan& plan);

  /// Whether the event can be granted, counted from scratch.
  bool possible(const Event& event) const;
  /// Enters a granted event with what `schedule` decided. The property that it violates, or "".
  std::string enter(const Event& event, const Schedule& schedule);
  /// Compares what `schedule` shows of itself with the books; "" if they agree.
  std::string compare_views(const Schedule& schedule) const;

 private:
  struct Entry {
    BucketState state = BucketState::sharded;
    SlotId slot = no_slot;
    SlotId gradient_slot = no_slot;
    Ticket gather = 0;
    bool used = false;
    bool stale = true;
    std::uint32_t told_uses = 0;  ///< by `use` and `release`
    std::uint32_t forwards = 0;
    std::uint32_t backwards = 0;
    bool gathered_in_version = false;  ///< since everything was stale
    bool reduced = false;              ///< in this micro-batch
    bool reduced_in_step = false;
  };
  struct OpenUse {
    UnitId unit = 0;
    bool backward = false;
    bool in_eval = false;
    bool operator==(const OpenUse&) const = default;
  };

  const std::vector<BucketId>& buckets_of(UnitId unit) const { return plan_.unit_buckets[unit]; }
  bool uses(UnitId unit, BucketId bucket) const;
  std::uint32_t open_uses(BucketId bucket, bool backward_only) const;
  std::uint32_t opens_in_phase() const;
  bool fits(UnitId unit, bool backward) const;
  void enter_call(const Event& event);
  std::string enter_decision(const Event& event, const Decision& decision);
  std::string step_state(BucketId bucket, BucketEvent event);
  std::string check_begin(const Event& event, const Schedule& schedule) const;
  std::string check_reduces(const Event& event, const std::vector<BucketId>& reduced) const;
  std::string check_end(const Event& event);
  bool trains(BucketId bucket) const {
    return plan_.gradient_class[bucket] != SchedulePlan::no_class;
  }
  bool complete(BucketId bucket) const;

  // [Note: the agreed order], in schedule_ledger_agreed.cpp.
  bool fits_order(UnitId unit, bool backward) const;
  bool may_go_out_of_turn(const Event& event, BucketId bucket) const;
  std::string check_order_of_gather(BucketId bucket) const;
  std::string check_zeros(const Event& event, BucketId bucket) const;
  std::string check_order_of_reduce(const Event& event, BucketId bucket) const;
  std::string check_reduced(const Event& event) const;

  const SchedulePlan& plan_;
  AgreedOrder order_;
  std::vector<Entry> entries_;
  std::vector<OpenUse> open_;
  std::vector<Ticket> last_reduce_;  ///< per gradient slot
  Ticket next_ticket_ = 1;
  bool in_eval_ = false;
  bool in_micro_batch_ = false;
  bool in_backward_ = false;
  bool reduces_ = true;  ///< this micro-batch does
  bool left_ = false;    ///< the last one did not
};

}  // namespace troupe::testing
