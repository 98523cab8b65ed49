#include "troupe/comm/gloo/transfer_sums.hpp"

#include <algorithm>
#include <cstddef>

namespace troupe {

namespace {

/// Segment by segment: of the own block from all peers, of each peer's block to that peer. A rank
/// that is at segment s has sent up to s + ahead and made ready up to s + places, and awaits
/// nothing but what peers at s have done; so the last one can always go on.
void exchange(TransferBuilder& plan,
              const std::vector<Block>& blocks,
              const SumTarget& target,
              const SegmentSummed& summed) {
  const std::int64_t places_max =
      std::max<std::int64_t>(2, plan.tuning().staging_bytes / ((plan.size() - 1) * plan.segment()));
  const std::int64_t ahead = places_max / 2;
  const std::int64_t own_count = plan.segment_count(plan.own(blocks));
  const std::int64_t places = std::min(places_max, own_count);
  const std::int64_t begin = plan.stage(places * (plan.size() - 1));
  const auto place_of = [&](int distance, std::int64_t index) {
    return plan.staged(begin, (distance - 1) * places + index % places);
  };
  const auto post = [&](std::int64_t index) {
    for (int distance = 1; index < own_count && distance < plan.size(); ++distance) {
      plan.receive(Lane::parts, plan.left(distance), place_of(distance, index),
                   plan.segment_bytes(plan.own(blocks), index));
    }
  };
  const auto for_peers_with = [&](std::int64_t index, const auto& action) {
    for (int distance = 1; distance < plan.size(); ++distance) {
      const int peer = plan.right(distance);
      if (index < plan.segment_count(block_of(blocks, peer))) {
        action(peer, block_of(blocks, peer));
      }
    }
  };
  const auto send_to_all = [&](std::int64_t index) {
    for_peers_with(index, [&](int peer, const Block& block) {
      plan.send(Lane::parts, peer, {Place::input, block.offset + index * plan.segment()},
                plan.segment_bytes(block, index));
    });
  };
  const auto sum_own = [&](std::int64_t index) {
    std::vector<Location> sources(static_cast<std::size_t>(plan.size()));
    for (int distance = 1; distance < plan.size(); ++distance) {
      plan.await_receive(Lane::parts, plan.left(distance));
      sources[static_cast<std::size_t>(plan.left(distance))] = place_of(distance, index);
    }
    const std::int64_t offset = index * plan.segment();
    sources[static_cast<std::size_t>(plan.rank())] = {Place::input,
                                                      plan.own(blocks).offset + offset};
    plan.sum(target(offset), sources, plan.segment_bytes(plan.own(blocks), index));
  };

  for (std::int64_t index = 0; index < places; ++index) {
    post(index);
  }
  for (std::int64_t index = 0; index < ahead; ++index) {
    send_to_all(index);
  }
  const std::int64_t count = plan.segment_count_max(blocks);
  for (std::int64_t index = 0; index < count; ++index) {
    if (index < own_count) {
      sum_own(index);
      post(index + places);
      summed(index);
    }
    for_peers_with(index, [&](int peer, const Block&) { plan.await_send(Lane::parts, peer); });
    send_to_all(index + ahead);
  }
}

/// Partial sums go around in turns of `lap` segments. Messages are numbered as if all blocks were
/// as long as the longest: number m of a rank, in step t of its turn, carries its left
/// neighbour's sum of block (rank - t - 2). What is made of it is number m + lap to the right; in
/// the last step that is the next turn's first instead, from the input. So a rank at m awaits
/// nothing but what its neighbours have done at m or before.
void ring_sum(TransferBuilder& plan,
              const std::vector<Block>& blocks,
              const SumTarget& target,
              const SegmentSummed& summed) {
  const std::int64_t count = plan.segment_count_max(blocks);
  const std::int64_t lap =
      std::clamp<std::int64_t>(plan.tuning().staging_bytes / (2 * plan.segment()), 1, count);
  const std::int64_t turns = (count + lap - 1) / lap;
  const std::int64_t steps = plan.size() - 1;
  const std::int64_t total = turns * steps * lap;
  const std::int64_t begin = plan.stage(2 * lap);
  const auto step_of = [&](std::int64_t number) { return number / lap % steps; };
  const auto segment_of = [&](std::int64_t number) {
    return number / (lap * steps) * lap + number % lap;
  };
  const auto incoming = [&](std::int64_t number) -> const Block& {
    return block_of(blocks, plan.left(static_cast<int>(step_of(number)) + 2));
  };
  const auto outgoing = [&](std::int64_t number) -> const Block& {
    return block_of(blocks, plan.left(static_cast<int>(step_of(number)) + 1));
  };
  const auto exists = [&](const Block& block, std::int64_t number) {
    return number < total && segment_of(number) < plan.segment_count(block);
  };
  const auto post = [&](std::int64_t number) {
    if (exists(incoming(number), number)) {
      plan.receive(Lane::parts, plan.left(), plan.staged(begin, number % (2 * lap)),
                   plan.segment_bytes(incoming(number), segment_of(number)));
    }
  };
  const auto send_first = [&](std::int64_t number) {
    const Block& block = outgoing(number);
    if (exists(block, number)) {
      plan.send(Lane::parts, plan.right(),
                {Place::input, block.offset + segment_of(number) * plan.segment()},
                plan.segment_bytes(block, segment_of(number)));
    }
  };
  for (std::int64_t number = 0; number < lap; ++number) {
    post(number);
  }
  for (std::int64_t number = 0; number < lap; ++number) {
    send_first(number);
  }
  for (std::int64_t number = 0; number < total; ++number) {
    const Block& block = incoming(number);
    const std::int64_t index = segment_of(number);
    const bool last_step = step_of(number) == steps - 1;
    if (exists(block, number)) {
      const Location place = plan.staged(begin, number % (2 * lap));
      const std::int64_t bytes = plan.segment_bytes(block, index);
      const Location sources[] = {place, {Place::input, block.offset + index * plan.segment()}};
      plan.await_receive(Lane::parts, plan.left());
      plan.sum(last_step ? target(index * plan.segment()) : place, sources, bytes);
      if (last_step) {
        summed(index);
      } else {
        plan.send(Lane::parts, plan.right(), place, bytes);
      }
    }
    if (last_step) {
      send_first(number + lap);
    }
    if (exists(outgoing(number), number)) {
      plan.await_send(Lane::parts, plan.right());
    }
    post(number + lap);
  }
}

}  // namespace

void sum_blocks(TransferBuilder& plan,
                const std::vector<Block>& blocks,
                const SumTarget& target,
                const SegmentSummed& summed) {
  if (plan.tuning().sum_order == SumOrder::ranks) {
    exchange(plan, blocks, target, summed);
  } else {
    ring_sum(plan, blocks, target, summed);
  }
}

}  // namespace troupe
