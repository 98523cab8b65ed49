#include "troupe/comm/gloo/transfer_plan.hpp"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <span>

namespace troupe {

namespace {

/// Places in staging memory begin at multiples of this, for the sums' sake.
constexpr std::int64_t place_alignment = 64;

/// Slices of a buffer begin at multiples of so many elements.
constexpr std::int64_t slice_alignment = 32;

std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Part of a buffer that belongs to one rank. In bytes.
struct Block {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};

/// Bytes of one message, so that staging holds two of each of the `peers` that one receives from.
std::int64_t segment_for(const TransferTuning& tuning, int peers) {
  const std::int64_t fitting = tuning.staging_bytes / (std::int64_t{2} * std::max(1, peers));
  const std::int64_t wanted =
      std::min(tuning.segment_bytes, std::max(fitting, TransferTuning::segment_bytes_min));
  return std::max(place_alignment, wanted / place_alignment * place_alignment);
}

class Planner {
 public:
  Planner(const TransferShape& shape, const TransferTuning& tuning)
      : shape_(shape),
        tuning_(tuning),
        self_(shape.rank),
        size_(shape.size),
        segment_(segment_for(tuning, tuning.sum_order == SumOrder::ranks ? shape.size - 1 : 1)) {}

  TransferPlan plan() {
    if (size_ == 1) {
      if (shape_.op != Collective::barrier) {
        copy_input({Place::output, 0}, bytes_of(shape_.numel));
      }
    } else if (shape_.op == Collective::barrier) {
      barrier();
    } else if (shape_.numel > 0) {
      switch (shape_.op) {
        case Collective::all_gather:
          all_gather();
          break;
        case Collective::reduce_scatter:
          sum_blocks(equal_blocks(),
                     [](std::int64_t offset) { return Location{Place::output, offset}; });
          break;
        case Collective::all_reduce:
          all_reduce();
          break;
        case Collective::reduce:
          reduce();
          break;
        case Collective::broadcast:
          broadcast();
          break;
        case Collective::barrier:
          break;
      }
    }
    return std::move(plan_);
  }

 private:
  using Kind = Transfer::Kind;
  /// Where bytes from `offset` of the own block on are summed into.
  using Target = std::function<Location(std::int64_t offset)>;
  /// Called when segment `index` of the own block is summed.
  using Summed = std::function<void(std::int64_t index)>;

  int right(int distance = 1) const { return (self_ + distance) % size_; }
  int left(int distance = 1) const { return (self_ + size_ - distance % size_) % size_; }
  std::int64_t bytes_of(std::int64_t numel) const { return numel * shape_.element_bytes; }

  std::vector<Block> equal_blocks() const {
    std::vector<Block> blocks;
    blocks.reserve(static_cast<std::size_t>(size_));
    for (int rank = 0; rank < size_; ++rank) {
      blocks.push_back({rank * bytes_of(shape_.numel), bytes_of(shape_.numel)});
    }
    return blocks;
  }

  /// One buffer of `numel`, as even as the alignment allows; the last may be smaller, or empty.
  std::vector<Block> slices() const {
    const std::int64_t each = round_up((shape_.numel + size_ - 1) / size_, slice_alignment);
    std::vector<Block> blocks;
    for (int rank = 0; rank < size_; ++rank) {
      const std::int64_t begin = std::min(shape_.numel, rank * each);
      blocks.push_back({bytes_of(begin), bytes_of(std::min(shape_.numel - begin, each))});
    }
    return blocks;
  }

  std::int64_t segment_count(const Block& block) const {
    return (block.bytes + segment_ - 1) / segment_;
  }
  std::int64_t segment_bytes(const Block& block, std::int64_t index) const {
    return std::min(segment_, block.bytes - index * segment_);
  }
  std::int64_t segment_count_max(const std::vector<Block>& blocks) const {
    std::int64_t count = 0;
    for (const Block& block : blocks) {
      count = std::max(count, segment_count(block));
    }
    return count;
  }
  const Block& own(const std::vector<Block>& blocks) const { return at(blocks, self_); }
  static const Block& at(const std::vector<Block>& blocks, int rank) {
    return blocks[static_cast<std::size_t>(rank)];
  }

  // ---- steps ------------------------------------------------------------------------------------

  void receive(Lane lane, int peer, Location to, std::int64_t bytes) {
    add({.kind = Kind::receive, .lane = lane, .peer = peer, .at = to, .bytes = bytes});
  }
  void send(Lane lane, int peer, Location from, std::int64_t bytes) {
    add({.kind = Kind::send, .lane = lane, .peer = peer, .at = from, .bytes = bytes});
    ++sends_under_way(lane, peer);
  }
  void await_receive(Lane lane, int peer) {
    add({.kind = Kind::await_receive, .lane = lane, .peer = peer});
  }
  void await_send(Lane lane, int peer) {
    add({.kind = Kind::await_send, .lane = lane, .peer = peer});
    --sends_under_way(lane, peer);
  }
  void await_all_sends(Lane lane, int peer) {
    while (sends_under_way(lane, peer) > 0) {
      await_send(lane, peer);
    }
  }
  void sum(Location to, std::span<const Location> sources, std::int64_t bytes) {
    add({.kind = Kind::sum,
         .at = to,
         .bytes = bytes,
         .first_source = static_cast<std::uint32_t>(plan_.sources.size()),
         .source_count = static_cast<std::uint32_t>(sources.size())});
    plan_.sources.insert(plan_.sources.end(), sources.begin(), sources.end());
  }
  void copy_input(Location to, std::int64_t bytes) {
    add({.kind = Kind::copy,
         .at = to,
         .bytes = bytes,
         .first_source = static_cast<std::uint32_t>(plan_.sources.size()),
         .source_count = 1});
    plan_.sources.push_back({Place::input, 0});
  }
  void add(const Transfer& step) { plan_.steps.push_back(step); }

  int& sends_under_way(Lane lane, int peer) {
    auto& of_lane = sends_under_way_[static_cast<std::size_t>(lane)];
    of_lane.resize(static_cast<std::size_t>(size_));
    return of_lane[static_cast<std::size_t>(peer)];
  }

  /// Room for `count` segments in staging memory.
  std::int64_t stage(std::int64_t count) {
    const std::int64_t begin = plan_.staging_bytes;
    plan_.staging_bytes += count * segment_;
    return begin;
  }
  Location staged(std::int64_t begin, std::int64_t index) const {
    return {Place::staging, begin + index * segment_};
  }

  // ---- sums -------------------------------------------------------------------------------------

  /// Sums the own one of `blocks` of every rank's input.
  void sum_blocks(
      const std::vector<Block>& blocks,
      const Target& target,
      const Summed& summed = [](std::int64_t) {}) {
    if (tuning_.sum_order == SumOrder::ranks) {
      exchange(blocks, target, summed);
    } else {
      ring_sum(blocks, target, summed);
    }
  }

  /// Segment by segment: of the own block from all peers, of each peer's block to that peer. A rank
  /// that is at segment s has sent up to s + ahead and made ready up to s + places, and awaits
  /// nothing but what peers at s have done; so the last one can always go on.
  void exchange(const std::vector<Block>& blocks, const Target& target, const Summed& summed) {
    const std::int64_t places_max =
        std::max<std::int64_t>(2, tuning_.staging_bytes / ((size_ - 1) * segment_));
    const std::int64_t ahead = places_max / 2;
    const std::int64_t own_count = segment_count(own(blocks));
    const std::int64_t places = std::min(places_max, own_count);
    const std::int64_t begin = stage(places * (size_ - 1));
    const auto place_of = [&](int distance, std::int64_t index) {
      return staged(begin, (distance - 1) * places + index % places);
    };
    const auto post = [&](std::int64_t index) {
      for (int distance = 1; index < own_count && distance < size_; ++distance) {
        receive(Lane::parts, left(distance), place_of(distance, index),
                segment_bytes(own(blocks), index));
      }
    };
    const auto for_peers_with = [&](std::int64_t index, const auto& action) {
      for (int distance = 1; distance < size_; ++distance) {
        const int peer = right(distance);
        if (index < segment_count(at(blocks, peer))) {
          action(peer, at(blocks, peer));
        }
      }
    };
    const auto send_to_all = [&](std::int64_t index) {
      for_peers_with(index, [&](int peer, const Block& block) {
        send(Lane::parts, peer, {Place::input, block.offset + index * segment_},
             segment_bytes(block, index));
      });
    };
    const auto sum_own = [&](std::int64_t index) {
      std::vector<Location> sources(static_cast<std::size_t>(size_));
      for (int distance = 1; distance < size_; ++distance) {
        await_receive(Lane::parts, left(distance));
        sources[static_cast<std::size_t>(left(distance))] = place_of(distance, index);
      }
      const std::int64_t offset = index * segment_;
      sources[static_cast<std::size_t>(self_)] = {Place::input, own(blocks).offset + offset};
      sum(target(offset), sources, segment_bytes(own(blocks), index));
    };

    for (std::int64_t index = 0; index < places; ++index) {
      post(index);
    }
    for (std::int64_t index = 0; index < ahead; ++index) {
      send_to_all(index);
    }
    const std::int64_t count = segment_count_max(blocks);
    for (std::int64_t index = 0; index < count; ++index) {
      if (index < own_count) {
        sum_own(index);
        post(index + places);
        summed(index);
      }
      for_peers_with(index, [&](int peer, const Block&) { await_send(Lane::parts, peer); });
      send_to_all(index + ahead);
    }
  }

  /// Partial sums go around in turns of `lap` segments. Messages are numbered as if all blocks were
  /// as long as the longest: number m of a rank, in step t of its turn, carries its left
  /// neighbour's sum of block (rank - t - 2). What is made of it is number m + lap to the right; in
  /// the last step that is the next turn's first instead, from the input. So a rank at m awaits
  /// nothing but what its neighbours have done at m or before.
  void ring_sum(const std::vector<Block>& blocks, const Target& target, const Summed& summed) {
    const std::int64_t count = segment_count_max(blocks);
    const std::int64_t lap =
        std::clamp<std::int64_t>(tuning_.staging_bytes / (2 * segment_), 1, count);
    const std::int64_t turns = (count + lap - 1) / lap;
    const std::int64_t steps = size_ - 1;
    const std::int64_t total = turns * steps * lap;
    const std::int64_t begin = stage(2 * lap);
    const auto step_of = [&](std::int64_t number) { return number / lap % steps; };
    const auto segment_of = [&](std::int64_t number) {
      return number / (lap * steps) * lap + number % lap;
    };
    const auto incoming = [&](std::int64_t number) -> const Block& {
      return at(blocks, left(static_cast<int>(step_of(number)) + 2));
    };
    const auto outgoing = [&](std::int64_t number) -> const Block& {
      return at(blocks, left(static_cast<int>(step_of(number)) + 1));
    };
    const auto exists = [&](const Block& block, std::int64_t number) {
      return number < total && segment_of(number) < segment_count(block);
    };
    const auto post = [&](std::int64_t number) {
      if (exists(incoming(number), number)) {
        receive(Lane::parts, left(), staged(begin, number % (2 * lap)),
                segment_bytes(incoming(number), segment_of(number)));
      }
    };
    const auto send_first = [&](std::int64_t number) {
      const Block& block = outgoing(number);
      if (exists(block, number)) {
        send(Lane::parts, right(), {Place::input, block.offset + segment_of(number) * segment_},
             segment_bytes(block, segment_of(number)));
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
        const Location place = staged(begin, number % (2 * lap));
        const std::int64_t bytes = segment_bytes(block, index);
        const Location sources[] = {place, {Place::input, block.offset + index * segment_}};
        await_receive(Lane::parts, left());
        sum(last_step ? target(index * segment_) : place, sources, bytes);
        if (last_step) {
          summed(index);
        } else {
          send(Lane::parts, right(), place, bytes);
        }
      }
      if (last_step) {
        send_first(number + lap);
      }
      if (exists(outgoing(number), number)) {
        await_send(Lane::parts, right());
      }
      post(number + lap);
    }
  }

  // ---- the collectives --------------------------------------------------------------------------

  /// For each rank's block of the output but the own one: made ready to receive from the left.
  void post_ring(const std::vector<Block>& blocks) {
    for (int step = 1; step < size_; ++step) {
      for_segments(at(blocks, left(step)), [&](std::int64_t offset, std::int64_t bytes) {
        receive(Lane::results, left(), {Place::output, offset}, bytes);
      });
    }
  }
  /// Passes on what comes from the left.
  void pass_on(const std::vector<Block>& blocks) {
    for (int step = 1; step < size_; ++step) {
      for_segments(at(blocks, left(step)), [&](std::int64_t offset, std::int64_t bytes) {
        await_receive(Lane::results, left());
        if (step + 1 < size_) {
          send(Lane::results, right(), {Place::output, offset}, bytes);
        }
      });
    }
    await_all_sends(Lane::results, right());
  }
  template <class Action>
  void for_segments(const Block& block, const Action& action) const {
    for (std::int64_t index = 0; index < segment_count(block); ++index) {
      action(block.offset + index * segment_, segment_bytes(block, index));
    }
  }

  void all_gather() {
    const std::vector<Block> blocks = equal_blocks();
    post_ring(blocks);
    for_segments({0, own(blocks).bytes}, [&](std::int64_t offset, std::int64_t bytes) {
      send(Lane::results, right(), {Place::input, offset}, bytes);
    });
    copy_input({Place::output, own(blocks).offset}, own(blocks).bytes);  // while they are under way
    pass_on(blocks);
  }

  /// In place the sum of a segment overwrites the own part of it, which every summing rank has
  /// received by then: else there would be no sum.
  void all_reduce() {
    const std::vector<Block> blocks = slices();
    post_ring(blocks);
    const std::int64_t begin = own(blocks).offset;
    sum_blocks(
        blocks, [&](std::int64_t offset) { return Location{Place::output, begin + offset}; },
        [&](std::int64_t index) {
          send(Lane::results, right(), {Place::output, begin + index * segment_},
               segment_bytes(own(blocks), index));
        });
    pass_on(blocks);
  }

  void reduce() {
    const std::vector<Block> blocks = slices();
    const int root = shape_.root;
    if (self_ == root) {
      const auto for_results = [&](const auto& action) {
        for (int distance = 1; distance < size_; ++distance) {
          for_segments(at(blocks, left(distance)), [&](std::int64_t offset, std::int64_t bytes) {
            action(left(distance), offset, bytes);
          });
        }
      };
      for_results([&](int peer, std::int64_t offset, std::int64_t bytes) {
        receive(Lane::results, peer, {Place::output, offset}, bytes);
      });
      sum_blocks(blocks, [&](std::int64_t offset) {
        return Location{Place::output, own(blocks).offset + offset};
      });
      for_results(
          [&](int peer, std::int64_t, std::int64_t) { await_receive(Lane::results, peer); });
      return;
    }
    const std::int64_t places = std::min<std::int64_t>(4, segment_count(own(blocks)));
    const std::int64_t begin = stage(places);
    const auto place_of = [&](std::int64_t index) { return staged(begin, index % places); };
    sum_blocks(
        blocks,
        [&](std::int64_t offset) {
          const std::int64_t index = offset / segment_;
          if (index >= places) {
            await_send(Lane::results, root);
          }
          return place_of(index);
        },
        [&](std::int64_t index) {
          send(Lane::results, root, place_of(index), segment_bytes(own(blocks), index));
        });
    await_all_sends(Lane::results, root);
  }

  void broadcast() {
    const Block all{0, bytes_of(shape_.numel)};
    const bool is_root = self_ == shape_.root;
    const bool is_last = right() == shape_.root;
    if (is_root) {
      for_segments(all, [&](std::int64_t offset, std::int64_t bytes) {
        send(Lane::results, right(), {Place::input, offset}, bytes);
      });
      copy_input({Place::output, 0}, all.bytes);
    } else {
      for_segments(all, [&](std::int64_t offset, std::int64_t bytes) {
        receive(Lane::results, left(), {Place::output, offset}, bytes);
      });
      for_segments(all, [&](std::int64_t offset, std::int64_t bytes) {
        await_receive(Lane::results, left());
        if (!is_last) {
          send(Lane::results, right(), {Place::output, offset}, bytes);
        }
      });
    }
    await_all_sends(Lane::results, right());
  }

  /// What is told is one byte; nobody looks at it.
  void barrier() {
    plan_.staging_bytes = 2;
    for (int distance = 1; distance < size_; distance *= 2) {
      receive(Lane::results, left(distance), {Place::staging, 0}, 1);
    }
    for (int distance = 1; distance < size_; distance *= 2) {
      send(Lane::results, right(distance), {Place::staging, 1}, 1);
      await_receive(Lane::results, left(distance));
      await_send(Lane::results, right(distance));
    }
  }

  const TransferShape shape_;
  const TransferTuning tuning_;
  const int self_;
  const int size_;
  const std::int64_t segment_;
  TransferPlan plan_;
  std::vector<int> sends_under_way_[lane_count];
};

}  // namespace

TransferPlan plan_transfer(const TransferShape& shape, const TransferTuning& tuning) {
  return Planner(shape, tuning).plan();
}

}  // namespace troupe
