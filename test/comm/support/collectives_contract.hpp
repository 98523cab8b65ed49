/// What every communicator guarantees, as test cases over a `WorldFixture`. A test program includes
/// this and instantiates each case for its fixture, which is made from the world size:
///
///     TEST_CASE_TEMPLATE_INVOKE(contract_values, LocalThreads, LocalManual);
#pragma once

#include "draw.hpp"
#include "trial.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

namespace troupe::test {

inline constexpr int world_sizes[] = {1, 2, 3, 4, 7};
inline constexpr Collective all_collectives[] = {Collective::all_gather, Collective::reduce_scatter,
                                                 Collective::all_reduce, Collective::reduce,
                                                 Collective::broadcast,  Collective::barrier};

inline bool is_rooted(Collective op) {
  return op == Collective::reduce || op == Collective::broadcast;
}

/// Launches all trials on all ranks, then settles and checks.
inline void run_trials(WorldFixture& world, const std::vector<Spec>& specs, std::uint64_t seed) {
  std::vector<std::unique_ptr<Trial>> trials;
  for (const Spec& spec : specs) {
    const Ticket ticket = trials.size() + 1;
    trials.push_back(std::make_unique<Trial>(world, spec, ticket, seed + ticket));
    trials.back()->launch_all();
  }
  for (const auto& failure : world.settle()) {
    REQUIRE_MESSAGE(!failure, failure->text);
  }
  for (const auto& trial : trials) {
    trial->check();
  }
}

/// The call of `rank` in a plain all_gather of one element, of which nothing is looked at.
inline CollectiveCall gather_call(Buffer& buffer, int rank, Ticket ticket) {
  return {.op = Collective::all_gather,
          .ticket = ticket,
          .bucket = 3,
          .label = "block.1",
          .input = buffer.as<float>() + rank,
          .output = buffer.data(),
          .numel = 1};
}

/// One buffer per rank, large enough for any call of a few elements.
inline std::vector<Buffer> small_buffers(WorldFixture& world) {
  std::vector<Buffer> buffers;
  for (int rank = 0; rank < world.size(); ++rank) {
    buffers.push_back(std::move(world.device(rank).allocate(4096, Purpose::temporary)).value());
  }
  return buffers;
}

// ---- values -------------------------------------------------------------------------------------

TEST_CASE_TEMPLATE_DEFINE("each collective gives every rank what it promises",
                          World,
                          contract_values) {
  for (const int size : world_sizes) {
    for (const Collective op : all_collectives) {
      World world(size);
      std::vector<Spec> specs;
      for (const DType dtype : {DType::f32, DType::bf16}) {
        for (const std::int64_t numel : {1, 2, 5, 64, 1000}) {
          for (int root = 0; root < (is_rooted(op) ? size : 1); ++root) {
            for (const bool in_place : {false, true}) {
              specs.push_back({op, dtype, numel, root, in_place, Values::small_integers});
            }
          }
        }
      }
      run_trials(world, specs, 100);
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("sums are taken in rank order, and bf16 sums are rounded once",
                          World,
                          contract_rank_order) {
  for (const int size : world_sizes) {
    World world(size);
    std::vector<Spec> specs;
    for (const Collective op :
         {Collective::reduce_scatter, Collective::all_reduce, Collective::reduce}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        for (const bool in_place : {false, true}) {
          specs.push_back({op, dtype, 333, size - 1, in_place, Values::reals});
        }
      }
    }
    run_trials(world, specs, 200);
  }
}

TEST_CASE_TEMPLATE_DEFINE("NaN in the padding passes through and spreads to no other element",
                          World,
                          contract_nan_padding) {
  for (const int size : world_sizes) {
    World world(size);
    std::vector<Spec> specs;
    for (const Collective op : all_collectives) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        specs.push_back({op, dtype, 67, 0, false, Values::nan_padded});
        specs.push_back({op, dtype, 67, 0, true, Values::nan_padded});
      }
    }
    run_trials(world, specs, 300);
  }
}

TEST_CASE_TEMPLATE_DEFINE("collectives of no elements take part and move nothing",
                          World,
                          contract_empty) {
  for (const int size : world_sizes) {
    World world(size);
    std::vector<Spec> specs;
    for (const Collective op : all_collectives) {
      specs.push_back({op, DType::f32, 0, 0, false, Values::small_integers});
      specs.push_back({op, DType::bf16, 0, 0, true, Values::small_integers});
    }
    run_trials(world, specs, 400);
  }
}

TEST_CASE_TEMPLATE_DEFINE("a rank is in its group at its place", World, contract_ranks) {
  for (const int size : world_sizes) {
    World world(size);
    for (int rank = 0; rank < size; ++rank) {
      CHECK(world.communicator(rank).rank() == rank);
      CHECK(world.communicator(rank).size() == size);
    }
  }
}

// ---- calls that are wrong by themselves ---------------------------------------------------------

TEST_CASE_TEMPLATE_DEFINE("a call that is wrong by itself is refused and harms nothing",
                          World,
                          contract_refusals) {
  World world(2);
  auto buffers = small_buffers(world);
  const auto refused = [&](CollectiveCall call) {
    const Result<void> launched = world.communicator(0).launch(call, world.stream(0));
    REQUIRE_FALSE(launched.ok());
    CHECK(launched.failure().code == ErrorCode::misuse);
    CHECK(launched.failure().text.find("ticket 9") != std::string::npos);
    CHECK(launched.failure().ticket == 9);
  };
  const CollectiveCall good = gather_call(buffers[0], 0, 9);
  CollectiveCall call = good;
  call.numel = -1;
  refused(call);
  call = good;
  call.op = Collective::broadcast;
  call.root = 2;
  refused(call);
  call.root = -1;
  refused(call);
  call = good;
  call.input = nullptr;
  refused(call);
  call = good;
  call.output = nullptr;
  refused(call);
  call = good;
  call.input = buffers[0].template as<float>() + 1;  // the other rank's place
  refused(call);
  call = good;
  call.op = Collective::all_reduce;
  call.numel = 8;
  call.input = buffers[0].template as<float>() + 4;  // overlaps, but not in place
  refused(call);
  run_trials(world, {{Collective::all_reduce, DType::f32, 5}}, 500);
}

TEST_CASE_TEMPLATE_DEFINE("the caller's stream is refused", World, contract_caller_stream) {
  World world(1);
  auto buffers = small_buffers(world);
  const Result<void> launched =
      world.communicator(0).launch(gather_call(buffers[0], 0, 9), Stream::caller());
  REQUIRE_FALSE(launched.ok());
  CHECK(launched.failure().code == ErrorCode::misuse);
  run_trials(world, {{Collective::all_gather, DType::f32, 5}}, 600);
}

// ---- failures -----------------------------------------------------------------------------------

TEST_CASE_TEMPLATE_DEFINE("an abort ends what is under way and all that follows, on every rank",
                          World,
                          contract_abort) {
  for (const int size : {2, 3, 7}) {
    World world(size);
    auto buffers = small_buffers(world);
    const Failure boom{.code = ErrorCode::peer_failed, .text = "rank 1 failed: boom", .rank = 1};
    // The last rank does not come, so the others wait.
    for (int rank = 0; rank + 1 < size; ++rank) {
      REQUIRE(world.communicator(rank)
                  .launch(gather_call(buffers[static_cast<std::size_t>(rank)], rank, 1),
                          world.stream(rank))
                  .ok());
    }
    world.communicator(size - 1).abort(boom);
    world.communicator(0).abort({.code = ErrorCode::internal, .text = "later"});
    for (int rank = 0; rank < size; ++rank) {
      // Either the call or the stream tells.
      const auto launched = world.communicator(rank).launch(
          gather_call(buffers[static_cast<std::size_t>(rank)], rank, 2), world.stream(rank));
      CHECK((launched.ok() || launched.failure() == boom));
    }
    const auto failures = world.settle();
    for (int rank = 0; rank + 1 < size; ++rank) {
      CHECK(failures[static_cast<std::size_t>(rank)] == boom);
    }
  }
}

/// Rank `odd` launches `other` where all launch a gather (ticket 17, bucket 3 'block.1').
template <class World>
void check_mismatch(CollectiveCall other, const std::string& expected, const std::string& actual) {
  for (const int size : {3, 4, 7}) {
    for (const int odd : {0, size - 1}) {
      CAPTURE(size);
      CAPTURE(odd);
      World world(size);
      auto buffers = small_buffers(world);
      for (int rank = 0; rank < size; ++rank) {
        Buffer& buffer = buffers[static_cast<std::size_t>(rank)];
        CollectiveCall call = gather_call(buffer, rank, 17);
        if (rank == odd) {
          call = other;
          call.input = buffer.as<float>() + 512;
          call.output = buffer.data();
        }
        REQUIRE(world.communicator(rank).launch(call, world.stream(rank)).ok());
      }
      const auto failures = world.settle();
      for (int rank = 0; rank < size; ++rank) {
        const auto& failure = failures[static_cast<std::size_t>(rank)];
        REQUIRE(failure.has_value());
        CHECK(failure == failures[0]);
      }
      const Failure& failure = *failures[0];
      CAPTURE(failure.text);
      CHECK(failure.code == ErrorCode::mismatch);
      CHECK(failure.rank == odd);
      CHECK(failure.ticket == 17);
      CHECK(failure.bucket == 3);
      const std::size_t expected_at = failure.text.find("expected " + expected);
      const std::size_t actual_at = failure.text.find("actual " + actual);
      CHECK(expected_at != std::string::npos);
      CHECK(actual_at != std::string::npos);
      CHECK(failure.text.find("rank " + std::to_string(odd) + " ") != std::string::npos);
      CHECK(failure.text.find("ticket 17") != std::string::npos);
      CHECK(expected != actual);
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("a disagreement is named on all ranks alike, before payload moves",
                          World,
                          contract_mismatch) {
  Buffer none;
  const CollectiveCall gather = gather_call(none, 0, 17);
  const std::string expected = "all_gather of bucket 3 'block.1' (ticket 17), 1 fp32 elements";
  SUBCASE("another bucket") {
    CollectiveCall other = gather;
    other.bucket = 4;
    other.label = "block.2";
    check_mismatch<World>(other, expected,
                          "all_gather of bucket 4 'block.2' (ticket 17), 1 fp32 elements");
  }
  SUBCASE("another operation") {
    CollectiveCall other = gather;
    other.op = Collective::reduce_scatter;
    check_mismatch<World>(other, expected,
                          "reduce_scatter of bucket 3 'block.1' (ticket 17), 1 fp32 elements");
  }
  SUBCASE("another size") {
    CollectiveCall other = gather;
    other.numel = 2;
    check_mismatch<World>(other, expected,
                          "all_gather of bucket 3 'block.1' (ticket 17), 2 fp32 elements");
  }
  SUBCASE("another dtype") {
    CollectiveCall other = gather;
    other.dtype = DType::bf16;
    check_mismatch<World>(other, expected,
                          "all_gather of bucket 3 'block.1' (ticket 17), 1 bf16 elements");
  }
  SUBCASE("another ticket: one launch is missing or extra") {
    CollectiveCall other = gather;
    other.ticket = 18;
    check_mismatch<World>(other, expected,
                          "all_gather of bucket 3 'block.1' (ticket 18), 1 fp32 elements");
  }
}

}  // namespace troupe::test
