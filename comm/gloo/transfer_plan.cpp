#include "troupe/comm/gloo/transfer_plan.hpp"

#include "troupe/comm/gloo/transfer_builder.hpp"
#include "troupe/comm/gloo/transfer_sums.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace troupe {

namespace {

/// For each rank's block of the output but the own one: made ready to receive from the left.
void post_ring(TransferBuilder& plan, const std::vector<Block>& blocks) {
  for (int step = 1; step < plan.size(); ++step) {
    plan.for_segments(block_of(blocks, plan.left(step)),
                      [&](std::int64_t offset, std::int64_t bytes) {
                        plan.receive(Lane::results, plan.left(), {Place::output, offset}, bytes);
                      });
  }
}

/// Passes on what comes from the left.
void pass_on(TransferBuilder& plan, const std::vector<Block>& blocks) {
  for (int step = 1; step < plan.size(); ++step) {
    plan.for_segments(block_of(blocks, plan.left(step)),
                      [&](std::int64_t offset, std::int64_t bytes) {
                        plan.await_receive(Lane::results, plan.left());
                        if (step + 1 < plan.size()) {
                          plan.send(Lane::results, plan.right(), {Place::output, offset}, bytes);
                        }
                      });
  }
  plan.await_all_sends(Lane::results, plan.right());
}

void all_gather(TransferBuilder& plan) {
  const std::vector<Block> blocks = plan.equal_blocks();
  post_ring(plan, blocks);
  plan.for_segments({0, plan.own(blocks).bytes}, [&](std::int64_t offset, std::int64_t bytes) {
    plan.send(Lane::results, plan.right(), {Place::input, offset}, bytes);
  });
  plan.copy_input({Place::output, plan.own(blocks).offset},
                  plan.own(blocks).bytes);  // while they are under way
  pass_on(plan, blocks);
}

/// In place the sum of a segment overwrites the own part of it, which every summing rank has
/// received by then: else there would be no sum.
void all_reduce(TransferBuilder& plan) {
  const std::vector<Block> blocks = plan.slices();
  post_ring(plan, blocks);
  const std::int64_t begin = plan.own(blocks).offset;
  sum_blocks(
      plan, blocks, [&](std::int64_t offset) { return Location{Place::output, begin + offset}; },
      [&](std::int64_t index) {
        plan.send(Lane::results, plan.right(), {Place::output, begin + index * plan.segment()},
                  plan.segment_bytes(plan.own(blocks), index));
      });
  pass_on(plan, blocks);
}

void reduce(TransferBuilder& plan) {
  const std::vector<Block> blocks = plan.slices();
  const int root = plan.shape().root;
  if (plan.rank() == root) {
    const auto for_results = [&](const auto& action) {
      for (int distance = 1; distance < plan.size(); ++distance) {
        plan.for_segments(block_of(blocks, plan.left(distance)),
                          [&](std::int64_t offset, std::int64_t bytes) {
                            action(plan.left(distance), offset, bytes);
                          });
      }
    };
    for_results([&](int peer, std::int64_t offset, std::int64_t bytes) {
      plan.receive(Lane::results, peer, {Place::output, offset}, bytes);
    });
    sum_blocks(plan, blocks, [&](std::int64_t offset) {
      return Location{Place::output, plan.own(blocks).offset + offset};
    });
    for_results(
        [&](int peer, std::int64_t, std::int64_t) { plan.await_receive(Lane::results, peer); });
    return;
  }
  const std::int64_t places = std::min<std::int64_t>(4, plan.segment_count(plan.own(blocks)));
  const std::int64_t begin = plan.stage(places);
  const auto place_of = [&](std::int64_t index) { return plan.staged(begin, index % places); };
  sum_blocks(
      plan, blocks,
      [&](std::int64_t offset) {
        const std::int64_t index = offset / plan.segment();
        if (index >= places) {
          plan.await_send(Lane::results, root);
        }
        return place_of(index);
      },
      [&](std::int64_t index) {
        plan.send(Lane::results, root, place_of(index),
                  plan.segment_bytes(plan.own(blocks), index));
      });
  plan.await_all_sends(Lane::results, root);
}

void broadcast(TransferBuilder& plan) {
  const Block all{0, plan.bytes_of(plan.shape().numel)};
  const bool is_root = plan.rank() == plan.shape().root;
  const bool is_last = plan.right() == plan.shape().root;
  if (is_root) {
    plan.for_segments(all, [&](std::int64_t offset, std::int64_t bytes) {
      plan.send(Lane::results, plan.right(), {Place::input, offset}, bytes);
    });
    plan.copy_input({Place::output, 0}, all.bytes);
  } else {
    plan.for_segments(all, [&](std::int64_t offset, std::int64_t bytes) {
      plan.receive(Lane::results, plan.left(), {Place::output, offset}, bytes);
    });
    plan.for_segments(all, [&](std::int64_t offset, std::int64_t bytes) {
      plan.await_receive(Lane::results, plan.left());
      if (!is_last) {
        plan.send(Lane::results, plan.right(), {Place::output, offset}, bytes);
      }
    });
  }
  plan.await_all_sends(Lane::results, plan.right());
}

/// What is told is one byte; nobody looks at it.
void barrier(TransferBuilder& plan) {
  const std::int64_t begin = plan.stage_bytes(2);
  for (int distance = 1; distance < plan.size(); distance *= 2) {
    plan.receive(Lane::results, plan.left(distance), {Place::staging, begin}, 1);
  }
  for (int distance = 1; distance < plan.size(); distance *= 2) {
    plan.send(Lane::results, plan.right(distance), {Place::staging, begin + 1}, 1);
    plan.await_receive(Lane::results, plan.left(distance));
    plan.await_send(Lane::results, plan.right(distance));
  }
}

}  // namespace

TransferPlan plan_transfer(const TransferShape& shape, const TransferTuning& tuning) {
  TransferBuilder plan(shape, tuning);
  if (plan.size() == 1) {
    if (shape.op != Collective::barrier) {
      plan.copy_input({Place::output, 0}, plan.bytes_of(shape.numel));
    }
  } else if (shape.op == Collective::barrier) {
    barrier(plan);
  } else if (shape.numel > 0) {
    switch (shape.op) {
      case Collective::all_gather:
        all_gather(plan);
        break;
      case Collective::reduce_scatter:
        sum_blocks(plan, plan.equal_blocks(),
                   [](std::int64_t offset) { return Location{Place::output, offset}; });
        break;
      case Collective::all_reduce:
        all_reduce(plan);
        break;
      case Collective::reduce:
        reduce(plan);
        break;
      case Collective::broadcast:
        broadcast(plan);
        break;
      case Collective::barrier:
        break;
    }
  }
  return plan.take();
}

}  // namespace troupe
