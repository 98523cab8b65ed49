// Launches in the order that the ranks agreed on: [Note: the agreed order] in schedule.hpp.
#include "troupe/core/schedule.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace troupe {

namespace {

/// Adds to `record` what only `next` names: behind all that is before it there and, where that
/// leaves a choice, where `order` has it.
/// by_time  if they have nothing in common, all of `next` is behind
void merge_into(std::vector<BucketId>& record,
                const std::vector<BucketId>& next,
                const std::vector<BucketId>& order,
                std::size_t bucket_count,
                bool by_time) {
  constexpr std::size_t nowhere = ~std::size_t{0};
  const auto places_of = [&](const std::vector<BucketId>& list) {
    std::vector<std::size_t> places(bucket_count, nowhere);
    for (std::size_t place = 0; place < list.size(); ++place) {
      places[list[place]] = place;
    }
    return places;
  };
  const std::vector<std::size_t> in_record = places_of(record);
  const std::vector<std::size_t> in_next = places_of(next);
  const std::vector<std::size_t> in_order = places_of(order);
  const auto in_common = [&](BucketId bucket) { return in_record[bucket] != nowhere; };
  std::size_t taken = 0;  // of `record`, into `merged`
  if (by_time && std::ranges::none_of(next, in_common)) {
    taken = record.size();
  }
  std::vector<BucketId> merged(record.begin(), record.begin() + static_cast<std::ptrdiff_t>(taken));
  for (const BucketId bucket : next) {
    if (in_common(bucket)) {
      while (taken <= in_record[bucket]) {
        merged.push_back(record[taken++]);
      }
      continue;
    }
    while (taken < record.size() && in_next[record[taken]] == nowhere &&
           in_order[record[taken]] < in_order[bucket]) {
      merged.push_back(record[taken++]);
    }
    merged.push_back(bucket);
  }
  merged.insert(merged.end(), record.begin() + static_cast<std::ptrdiff_t>(taken), record.end());
  record = std::move(merged);
}

}  // namespace

AgreedOrder Schedule::recorded() const {
  return finished_record_;
}

void Schedule::adopt(AgreedOrder order) {
  decisions_.clear();
  assert(std::ranges::is_permutation(order.gathers, agreed_.gathers));
  assert(std::ranges::is_permutation(order.reduces, agreed_.reduces));
  agreed_ = std::move(order);
  index_order();
}

void Schedule::index_order() {
  for (std::size_t place = 0; place < agreed_.gathers.size(); ++place) {
    buckets_[agreed_.gathers[place]].gather_place = place;
  }
}

/// Whether a bucket keeps its parameters through the end of a step: nothing changes them there.
bool Schedule::may_stay(BucketId bucket) const {
  return plan_.agreed && !trains(bucket);
}

/// Gathers what is absent before place `end`, up to the first bucket that is stale. One that was
/// kept ends it, too: its update may yet tell that it has changed, and others must not be ahead of
/// it then.
void Schedule::gather_in_order(std::size_t end) {
  for (; next_gather_ < std::min(end, agreed_.gathers.size()); ++next_gather_) {
    const BucketId bucket = agreed_.gathers[next_gather_];
    if (buckets_[bucket].stale) {
      return;
    }
    if (!held(bucket)) {
      gather(bucket);
    }
  }
}

/// Gathers all, those that are still stale as soon as they are updated.
void Schedule::gather_rest() {
  reached_ = agreed_.gathers.size();
  gather_in_order(reached_);
}

void Schedule::note_used(BucketId bucket) {
  BucketView& view = buckets_[bucket];
  reached_ = std::max(reached_, view.gather_place + 1);
  if (!in_eval_ && !std::exchange(view.gather_recorded, true)) {
    record_.gathers.push_back(bucket);
  }
}

/// Its last backward in this micro-batch has ended.
void Schedule::note_complete(BucketId bucket) {
  BucketView& view = buckets_[bucket];
  if (!std::exchange(view.reduce_recorded, true)) {
    record_.reduces.push_back(bucket);
  }
  if (!reduces_) {
    return;
  }
  view.waiting = true;
  ++waiting_[plan_.gradient_class[bucket]];
  ++waiting_count_;
}

void Schedule::no_longer_waits(BucketId bucket) {
  if (std::exchange(buckets_[bucket].waiting, false)) {
    --waiting_[plan_.gradient_class[bucket]];
    --waiting_count_;
  }
}

/// Which buckets are due, in order, into `planned_`: those that are complete and, while a complete
/// one waits behind them, those that this rank has not used in this micro-batch; with `all`, the
/// rest too. Without a gradient slot for the zeros of one, it and what is behind it have to wait.
void Schedule::plan_reduces(bool all) {
  planned_.clear();
  std::uint32_t waiting = waiting_count_;
  for (std::size_t place = next_reduce_; place < agreed_.reduces.size(); ++place) {
    const BucketId bucket = agreed_.reduces[place];
    const BucketView& view = buckets_[bucket];
    if (view.reduced) {
      continue;
    }
    const std::uint32_t index = plan_.gradient_class[bucket];
    const bool unused = view.forwards_begun == 0 && view.backwards_open == 0;
    if (!all && !view.waiting && !(waiting > 0 && unused)) {
      break;
    }
    if (view.gradient_slot != no_slot) {
      ++wanted_[index];  // given back
    } else if (gradient_classes_[index].count() + wanted_[index] == 0) {
      break;
    }
    waiting -= view.waiting ? 1U : 0U;
    planned_.push_back(bucket);
  }
  for (const BucketId bucket : planned_) {
    wanted_[plan_.gradient_class[bucket]] = 0;
  }
}

void Schedule::reduce_planned() {
  for (const BucketId bucket : planned_) {
    if (buckets_[bucket].gradient_slot == no_slot) {
      take_gradient_slot(bucket);
      ++counters_.zero_reduces;
    }
    reduce(bucket);
  }
  while (next_reduce_ < agreed_.reduces.size() && buckets_[agreed_.reduces[next_reduce_]].reduced) {
    ++next_reduce_;
  }
}

/// Lets waiting buckets out of turn as long as `unit` finds too few gradient slots of a class.
void Schedule::relieve(UnitId unit) {
  for (const BucketId needy : plan_.unit_buckets[unit]) {
    if (!trains(needy) || buckets_[needy].gradient_slot != no_slot) {
      continue;
    }
    const std::uint32_t index = plan_.gradient_class[needy];
    const auto wanted = static_cast<std::uint32_t>(
        std::ranges::count_if(plan_.unit_buckets[unit], [&](BucketId bucket) {
          return plan_.gradient_class[bucket] == index && buckets_[bucket].gradient_slot == no_slot;
        }));
    for (std::size_t place = next_reduce_; gradient_classes_[index].count() < wanted; ++place) {
      const BucketId bucket = agreed_.reduces[place];
      const bool adds = std::ranges::count(plan_.unit_buckets[unit], bucket) > 0;
      if (buckets_[bucket].waiting && !adds && plan_.gradient_class[bucket] == index) {
        reduce(bucket);
      }
    }
  }
}

/// At the end of a micro-batch: where all gradient slots of a class are held and the first bucket
/// of that class needs one for its zeros, one of the others goes out of turn.
void Schedule::relieve_zeros() {
  enum : std::uint32_t { not_seen, lacks_slot, settled };
  std::vector<std::uint32_t>& progress = wanted_;
  for (std::size_t place = next_reduce_; place < agreed_.reduces.size(); ++place) {
    const BucketId bucket = agreed_.reduces[place];
    const std::uint32_t index = plan_.gradient_class[bucket];
    if (buckets_[bucket].reduced || progress[index] == settled) {
      continue;
    }
    const bool holds = buckets_[bucket].gradient_slot != no_slot;
    if (progress[index] == lacks_slot && holds) {
      reduce(bucket);
    }
    progress[index] = holds || gradient_classes_[index].count() > 0 ? settled : lacks_slot;
  }
  std::ranges::fill(wanted_, 0U);
}

/// When all are reduced.
void Schedule::end_reduces() {
  for (const BucketId bucket : agreed_.reduces) {
    buckets_[bucket].reduced = false;
  }
  next_reduce_ = 0;
}

/// At the end of a micro-batch: the first one that uses a bucket says behind which others. Of a
/// bucket with several units it says so only if it was used as often as it has units: other ranks
/// may use one that was left out here. (Uses are counted, not told apart: a unit that is used twice
/// can stand for another. Then the order is merely a worse guess.)
/// Gathers come one micro-batch after the other where these share no bucket; for reduces, which may
/// need each other's slots, the order in force is safer.
void Schedule::record_micro_batch() {
  for (const BucketId bucket : record_.gathers) {
    buckets_[bucket].gather_recorded = false;
  }
  for (const BucketId bucket : record_.reduces) {
    buckets_[bucket].reduce_recorded = false;
  }
  std::erase_if(record_.gathers, [&](BucketId bucket) {
    return buckets_[bucket].forwards_begun < unit_count_[bucket];
  });
  std::erase_if(record_.reduces, [&](BucketId bucket) {
    return buckets_[bucket].backwards_ended < unit_count_[bucket];
  });
  merge_into(step_record_.gathers, record_.gathers, agreed_.gathers, buckets_.size(), true);
  merge_into(step_record_.reduces, record_.reduces, agreed_.reduces, buckets_.size(), false);
  record_ = {};
}

void Schedule::finish_record() {
  merge_into(step_record_.gathers, agreed_.gathers, agreed_.gathers, buckets_.size(), true);
  merge_into(step_record_.reduces, agreed_.reduces, agreed_.reduces, buckets_.size(), false);
  finished_record_ = std::exchange(step_record_, {});
}

}  // namespace troupe
