// Launches in the order that the ranks agreed on: [Note: the agreed order] in schedule.hpp.
#include "troupe/core/schedule.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace troupe {

namespace {

/// `record`, and behind it what only `order` names, in its order.
void complete_with(const std::vector<BucketId>& order,
                   std::size_t bucket_count,
                   std::vector<BucketId>& record) {
  std::vector<bool> recorded(bucket_count);
  for (const BucketId bucket : record) {
    recorded[bucket] = true;
  }
  std::ranges::copy_if(order, std::back_inserter(record),
                       [&](BucketId bucket) { return !recorded[bucket]; });
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
/// one waits behind them, those that this rank has not used; with `all`, the rest too. Without a
/// gradient slot for the zeros of an unused one, it and what is behind it have to wait; false if
/// that cannot be.
bool Schedule::plan_reduces(bool all) {
  planned_.clear();
  std::uint32_t waiting = waiting_count_;
  bool fits = true;
  for (std::size_t place = next_reduce_; place < agreed_.reduces.size(); ++place) {
    const BucketId bucket = agreed_.reduces[place];
    const BucketView& view = buckets_[bucket];
    if (view.reduced) {
      continue;
    }
    const std::uint32_t index = plan_.gradient_class[bucket];
    const bool unused = view.gradient_slot == no_slot;
    if (!all && !view.waiting && !(waiting > 0 && unused && view.forwards_begun == 0)) {
      break;
    }
    if (!unused) {
      ++wanted_[index];  // given back
    } else if (gradient_classes_[index].count() + wanted_[index] == 0) {
      fits = !all;
      break;
    }
    waiting -= view.waiting ? 1U : 0U;
    planned_.push_back(bucket);
  }
  for (const BucketId bucket : planned_) {
    wanted_[plan_.gradient_class[bucket]] = 0;
  }
  return fits;
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

/// At the end of a micro-batch, when all are reduced.
void Schedule::end_reduces() {
  for (const BucketId bucket : agreed_.reduces) {
    buckets_[bucket].reduced = false;
  }
  next_reduce_ = 0;
}

void Schedule::finish_record() {
  complete_with(agreed_.gathers, buckets_.size(), record_.gathers);
  complete_with(agreed_.reduces, buckets_.size(), record_.reduces);
  finished_record_ = std::exchange(record_, {});
  for (BucketView& view : buckets_) {
    view.gather_recorded = false;
    view.reduce_recorded = false;
  }
}

}  // namespace troupe
