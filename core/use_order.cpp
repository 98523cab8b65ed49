#include "troupe/core/use_order.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace troupe {

namespace {

constexpr std::size_t pass_count = 3;

std::size_t key_of(PredictedUse use) {
  return use.unit * pass_count + static_cast<std::size_t>(use.pass);
}

}  // namespace

UseOrder::UseOrder(std::vector<PredictedUse> first,
                   const std::vector<std::vector<BucketId>>& unit_buckets,
                   std::size_t bucket_count)
    : bucket_count_(bucket_count) {
  order_.uses = std::move(first);
  if (!order_.uses.empty()) {
    order_.starts = {0};
  }
  index(unit_buckets);
}

std::vector<std::vector<PredictedUse>> UseOrder::segments() const {
  std::vector<std::vector<PredictedUse>> segments;
  for (std::size_t i = 0; i < order_.starts.size(); ++i) {
    const std::size_t end = i + 1 < order_.starts.size() ? order_.starts[i + 1] : size();
    segments.emplace_back(order_.uses.begin() + static_cast<std::ptrdiff_t>(order_.starts[i]),
                          order_.uses.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return segments;
}

void UseOrder::begin_segment() {
  if (order_.starts.empty()) {
    return;
  }
  // Micro-batches without a use leave no segment, so they do not count here either.
  segment_ = std::min(record_.starts.size(), order_.starts.size() - 1);
  move_cursor(order_.starts[segment_]);
}

void UseOrder::seek(PredictedUse use) {
  const std::size_t end =
      segment_ + 1 < order_.starts.size() ? order_.starts[segment_ + 1] : size();
  const std::size_t found = of_use_.next(key_of(use), cursor_);
  if (found < end) {
    move_cursor(found + 1);
  }
}

std::size_t UseOrder::next_position(BucketId bucket) const {
  return of_bucket_.next(bucket, cursor_);
}

void UseOrder::dropped(BucketId bucket) {
  scan_ = std::min(scan_, next_position(bucket));
}

void UseOrder::record(PredictedUse use) {
  if (record_.uses.size() == recorded_uses_max) {
    return;
  }
  if (!segment_open_) {
    record_.starts.push_back(record_.uses.size());
    segment_open_ = true;
  }
  record_.uses.push_back(use);
}

void UseOrder::end_segment() {
  segment_open_ = false;
}

void UseOrder::adopt_record(const std::vector<std::vector<BucketId>>& unit_buckets) {
  if (!record_.uses.empty() && record_ != order_) {
    std::swap(order_, record_);
    index(unit_buckets);
  }
  record_.uses.clear();
  record_.starts.clear();
  segment_open_ = false;
  segment_ = 0;
  cursor_ = 0;
  scan_ = 0;
}

std::size_t UseOrder::Positions::next(std::size_t key, std::size_t from) const {
  const auto begin = positions.begin() + static_cast<std::ptrdiff_t>(first[key]);
  const auto end = positions.begin() + static_cast<std::ptrdiff_t>(first[key + 1]);
  const auto found = std::lower_bound(begin, end, from);
  return found == end ? nowhere : *found;
}

void UseOrder::move_cursor(std::size_t position) {
  // Behind the old cursor nothing is known to be held.
  scan_ = position < cursor_ ? position : std::max(scan_, position);
  cursor_ = position;
}

void UseOrder::index(const std::vector<std::vector<BucketId>>& unit_buckets) {
  // Counts, then sums, then a second walk that puts each position in its place.
  const auto fill = [&](Positions& table, std::size_t key_count, auto&& for_each_key) {
    std::vector<std::size_t> counts(key_count + 1);
    for (const PredictedUse& use : order_.uses) {
      for_each_key(use, [&](std::size_t key) { ++counts[key]; });
    }
    std::exclusive_scan(counts.begin(), counts.end(), counts.begin(), std::size_t{0});
    table.first = counts;
    table.positions.resize(counts.back());
    for (std::size_t position = 0; position < size(); ++position) {
      for_each_key(order_.uses[position],
                   [&](std::size_t key) { table.positions[counts[key]++] = position; });
    }
  };
  fill(of_use_, unit_buckets.size() * pass_count,
       [](PredictedUse use, auto&& add) { add(key_of(use)); });
  fill(of_bucket_, bucket_count_, [&](PredictedUse use, auto&& add) {
    for (const BucketId bucket : unit_buckets[use.unit]) {
      add(bucket);
    }
  });
}

}  // namespace troupe
