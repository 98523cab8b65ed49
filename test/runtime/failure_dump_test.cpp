/// What `WorldOptions::on_failure` receives; docs/errors.md shows such texts.
#include "troupe/runtime/runtime.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace troupe::test {
namespace {

Model four_units() {
  Model model;
  for (const char* name : {"embed", "block.0", "block.1", "head"}) {
    model.add_parameter(model.add_unit(name), {.name = "w", .shape = {1000}});
  }
  return model;
}

/// The texts of a world that fails, and its failure.
struct Dumps {
  Failure failure;
  std::vector<std::string> texts;

  /// The line of one launch in the text of one rank; empty if there is none.
  std::string line(int rank, Ticket ticket) const {
    const std::string begin = "as rank " + std::to_string(rank) + " saw it: ";
    const std::string mark = "\n  ticket " + std::to_string(ticket) + " ";
    for (const std::string& text : texts) {
      if (const std::size_t at = text.find(mark);
          text.starts_with(begin) && at != std::string::npos) {
        return text.substr(at + 3, text.find('\n', at + 1) - at - 3);
      }
    }
    return {};
  }
};

Dumps dumps_of(int ranks,
               std::chrono::milliseconds timeout,
               const std::function<void(World&)>& body) {
  Dumps dumps;
  std::mutex mutex;
  WorldOptions options{.timeout = timeout, .on_warning = [](const std::string&) {}};
  options.on_failure = [&](const std::string& text) {
    const std::scoped_lock lock(mutex);
    dumps.texts.push_back(text);
  };
  try {
    World::local(ranks, options).run(body);
  } catch (const Error& error) {
    dumps.failure = error.failure();
  }
  return dumps;
}

TEST_CASE("S49: the dumps of ranks that took different branches name the first different ticket") {
  const Model model = four_units();
  const Dumps dumps = dumps_of(3, std::chrono::seconds{20}, [&](World& world) {
    Runtime runtime(world, model, {.slots = 2});
    runtime.initialize([](ParameterView) {});
    const auto micro_batch = runtime.micro_batch();
    std::vector<UnitId> order{0, 1, 2, 3};
    if (world.rank() == 2) {
      order = {0, 2, 1, 3};
    }
    for (const UnitId unit : order) {
      const auto use = runtime.forward(unit);
    }
    for (auto unit = order.rbegin(); unit != order.rend(); ++unit) {
      const auto use = runtime.backward(*unit);
      static_cast<void>(use.gradient("w"));
    }
  });
  CHECK(dumps.failure.code == ErrorCode::mismatch);
  CHECK(dumps.failure.rank == 2);
  // Ticket 6 is a reduce here and a gather there. Each of the two queues meets the difference on
  // its own, at the ticket that rank 0 has there; either may be the first.
  CHECK((dumps.failure.ticket == 6 || dumps.failure.ticket == 7));
  REQUIRE(dumps.texts.size() == 3);
  for (int rank = 0; rank < 3; ++rank) {
    CAPTURE(rank);
    CHECK(std::ranges::count_if(dumps.texts, [&](const std::string& text) {
            return text.starts_with("as rank " + std::to_string(rank) +
                                    " saw it: " + dumps.failure.text + "\n  last launches:\n");
          }) == 1);
    for (Ticket ticket = 1; ticket < 6; ++ticket) {
      const auto without_state = [&](const std::string& line) {
        return line.substr(0, line.find(" ("));
      };
      CHECK(without_state(dumps.line(rank, ticket)) == without_state(dumps.line(0, ticket)));
    }
    CHECK(
        dumps.line(rank, 4).starts_with("ticket 4 all_gather bucket 2 'block.1' numel 336 fp32 ("));
    CHECK(dumps.line(rank, 6).starts_with(
        rank == 2 ? "ticket 6 all_gather bucket 2 'block.1' numel 336 fp32 ("
                  : "ticket 6 reduce_scatter bucket 3 'head' numel 336 fp32 ("));
  }
}

TEST_CASE("a collective that ended with the failure is not listed as done") {
  for (int trial = 0; trial < 5; ++trial) {
    const Dumps dumps = dumps_of(3, std::chrono::milliseconds{100}, [](World& world) {
      world.barrier();
      if (world.rank() == 2) {
        std::this_thread::sleep_for(std::chrono::milliseconds{300});
      }
      world.barrier();
    });
    CHECK(dumps.failure.code == ErrorCode::timeout);
    CHECK(dumps.failure.rank == 2);
    CHECK(dumps.texts.size() == 3);
    for (const int rank : {0, 1}) {
      CHECK(dumps.line(rank, 1) == "ticket 1 barrier 'of the trainer' numel 0 fp32 (done)");
      const std::string second = dumps.line(rank, 2);
      CHECK_MESSAGE((second.ends_with("(failed)") || second.ends_with("(in flight)")), second);
    }
    CHECK(dumps.line(2, 2).empty());  // never launched there
  }
}

TEST_CASE("a dump holds the last 64 launches") {
  const Dumps dumps = dumps_of(2, std::chrono::seconds{20}, [](World& world) {
    for (int i = 0; i < 100; ++i) {
      world.barrier();
    }
    throw std::runtime_error("enough");
  });
  for (const int rank : {0, 1}) {
    CHECK(dumps.line(rank, 36).empty());
    CHECK(dumps.line(rank, 37) == "ticket 37 barrier 'of the trainer' numel 0 fp32 (done)");
    CHECK(dumps.line(rank, 100).starts_with("ticket 100 barrier"));
  }
}

TEST_CASE("every rank dumps once, also where the world ends at once") {
  // The end of the world may overtake the news of its failure, about once in 300 trials.
  const Model model = four_units();
  for (int trial = 0; trial < 600; ++trial) {
    const Dumps dumps = dumps_of(3, std::chrono::seconds{20}, [&](World& world) {
      Runtime runtime(world, model);
      runtime.initialize([](ParameterView) {});
      const auto micro_batch = runtime.micro_batch();
      for (const UnitId unit : {0U, 1U, 2U, 3U}) {
        const auto use = runtime.forward(unit);
        if (world.rank() == trial % 3 && unit == static_cast<UnitId>(trial % 4)) {
          throw std::runtime_error("boom");
        }
      }
      world.barrier();
    });
    std::map<std::string, int> by_rank;
    for (const std::string& text : dumps.texts) {
      ++by_rank[text.substr(0, text.find(" saw it"))];
    }
    REQUIRE(by_rank ==
            std::map<std::string, int>{{"as rank 0", 1}, {"as rank 1", 1}, {"as rank 2", 1}});
  }
}

}  // namespace
}  // namespace troupe::test
