// What must never go wrong where ranks agree on an order.
#include "schedule_ledger.hpp"

#include <algorithm>

namespace troupe::testing {

/// Gathers can go in order: nothing stale is in front of what the use needs, and a backward needs
/// all. Its gradients are not reduced yet.
bool Ledger::fits_order(UnitId unit, bool backward) const {
  bool stale_before = false;
  for (const BucketId bucket : order_.gathers) {
    const bool needed = backward || (uses(unit, bucket) && entries_[bucket].slot == no_slot);
    stale_before = stale_before || entries_[bucket].stale;
    if (needed && stale_before) {
      return false;
    }
  }
  return std::ranges::none_of(buckets_of(unit), [&](BucketId bucket) {
    return backward && trains(bucket) && entries_[bucket].reduced;
  });
}

std::string Ledger::check_order_of_gather(BucketId bucket) const {
  const auto end = std::ranges::find(order_.gathers, bucket);
  const bool in_order = std::all_of(order_.gathers.begin(), end, [&](BucketId before) {
    return entries_[before].slot != no_slot && !entries_[before].stale;
  });
  return in_order ? "" : "gathers go in the agreed order";
}

std::string Ledger::check_zeros(const Event& event, BucketId bucket) const {
  const Entry& entry = entries_[bucket];
  const bool at_end = event.kind == EventKind::end_micro_batch || event.kind == EventKind::step_end;
  const bool unused = entry.forwards == 0 && open_uses(bucket, true) == 0;
  return !entry.reduced && (at_end || (event.kind == EventKind::end_backward && unused))
             ? ""
             : "zeros are reduced for buckets that were not used";
}

/// A backward that needs gradient slots may let complete buckets of other units out of turn, the
/// end of a micro-batch one of those that hold all slots of a class.
bool Ledger::may_go_out_of_turn(const Event& event, BucketId bucket) const {
  if (event.kind == EventKind::end_micro_batch) {
    const std::uint32_t index = plan_.gradient_class[bucket];
    const auto held = std::ranges::count_if(order_.reduces, [&](BucketId other) {
      return plan_.gradient_class[other] == index && entries_[other].gradient_slot != no_slot;
    });
    return held == plan_.gradient_classes[index].count;
  }
  return event.kind == EventKind::begin_backward && !uses(event.id, bucket) && complete(bucket);
}

std::string Ledger::check_order_of_reduce(const Event& event, BucketId bucket) const {
  if (entries_[bucket].reduced) {
    return "a micro-batch reduces a bucket once";
  }
  if (event.kind == EventKind::step_end ? !left_ : !reduces_) {
    return "a micro-batch that does not reduce leaves all, and only what was left is reduced later";
  }
  for (const BucketId gathered : order_.gathers) {
    if (entries_[gathered].stale) {
      break;  // gathered later, at its update
    }
    if (entries_[gathered].slot == no_slot) {
      return "all gathers come before the first reduce";
    }
  }
  const bool unused = entries_[bucket].forwards == 0 && entries_[bucket].backwards == 0 &&
                      open_uses(bucket, true) == 0;
  const bool ends = event.kind == EventKind::end_micro_batch || event.kind == EventKind::step_end;
  if (!ends && !complete(bucket) && !unused) {
    return "a bucket reduces when its backwards are complete, not before";
  }
  const auto end = std::ranges::find(order_.reduces, bucket);
  const bool in_order = std::all_of(order_.reduces.begin(), end,
                                    [&](BucketId before) { return entries_[before].reduced; });
  return in_order || may_go_out_of_turn(event, bucket) ? "" : "reduces go in the agreed order";
}

/// Nothing is held back that could be reduced.
std::string Ledger::check_reduced(const Event& event) const {
  if ((event.kind == EventKind::end_micro_batch && reduces_) ||
      (event.kind == EventKind::step_end && left_)) {
    const bool all = std::ranges::all_of(order_.reduces,
                                         [&](BucketId bucket) { return entries_[bucket].reduced; });
    return all ? "" : "each micro-batch reduces every trainable bucket";
  }
  if (event.kind == EventKind::end_backward && reduces_) {
    const auto next = std::ranges::find_if(
        order_.reduces, [&](BucketId bucket) { return !entries_[bucket].reduced; });
    const bool unused = next != order_.reduces.end() && entries_[*next].forwards == 0 &&
                        entries_[*next].gradient_slot != no_slot && open_uses(*next, true) == 0;
    const bool waited_for = unused && std::any_of(next, order_.reduces.end(), [&](BucketId bucket) {
                              return complete(bucket);
                            });
    return next == order_.reduces.end() || !(complete(*next) || waited_for)
               ? ""
               : "a complete bucket is reduced when its turn comes";
  }
  return {};
}

}  // namespace troupe::testing
