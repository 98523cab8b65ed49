/// The ends of runtimes and worlds: whatever is in flight, destructors return, memory is given back
/// after its last reader, and the process holds afterwards what it held before.
#include "troupe/test/support/d4.hpp"
#include "troupe/test/support/failing_world.hpp"

#include <doctest/doctest.h>

#include <deque>
#include <latch>
#include <optional>
#include <stdexcept>
#include <thread>

namespace troupe::test {
namespace {

TEST_CASE("a world without any runtime, and a runtime without any step, end") {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    CHECK(on_ranks(ranks, [](World&, Findings&) {}) == "");
    CHECK(on_ranks(ranks, [](World& world, Findings&) { Runtime(world, d4_model()); }) == "");
    CHECK(on_ranks(ranks, [](World& world, Findings&) {
            Runtime runtime(world, d4_model());
            runtime.initialize([](ParameterView) {});
          }) == "");
    CHECK(on_ranks(ranks, [](World& world, Findings&) { Runtime(world, Model{}); }) == "");
  }
}

TEST_CASE("a runtime that ends with prefetches in flight waits for them, peers or not") {
  for (const int ranks : {1, 2, 3, 7}) {
    CAPTURE(ranks);
    CHECK(on_ranks(ranks, [](World& world, Findings& findings) {
            const auto shared = std::make_shared<std::atomic<bool>>(false);
            {
              Runtime runtime(world, d4_model(8), d4_options(4, 2, 3));
              // Held up until the destructor is well under way.
              HostStream& gather = stream_of(world, "gather");
              gather.run([shared] {
                std::this_thread::sleep_for(std::chrono::milliseconds{30});
                shared->store(true);
              });
              runtime.initialize([](ParameterView) {});
              findings.expect(runtime.report().schedule.gathers >= 3, "nothing is prefetched");
            }
            findings.expect(shared->load(), "the runtime did not wait for its gathers");
            const RankState& state = world.context().actors().state();
            findings.expect(state.completed.load() == state.launched.load(), "still in flight");
            const DeviceCounters& counters = world.device().counters();
            findings.equal(counters.frees.load(), counters.allocations.load(), "buffers freed");
          }) == "");
  }
}

TEST_CASE("a runtime ends after the work on its memory that is queued on a trainer's stream") {
  for (const bool exception : {false, true}) {
    CAPTURE(exception);
    std::atomic<int> ended_first{0};
    std::latch issued(2);
    const Outcome outcome = outcome_of(2, [&](World& world) {
      HostStream& stream = world.host_device().create_host_stream("compute");
      DeviceCounters& counters = world.device().counters();
      Runtime runtime(world, d4_model());
      runtime.initialize([](ParameterView) {});
      const auto eval = runtime.eval();
      const auto use = runtime.forward(3, &stream);
      static_cast<void>(runtime.full_parameter("L0.w"));  // the gather before it is done, too
      const std::int64_t frees = counters.frees.load();
      stream.run([&ended_first, &counters, frees, view = use["w"]] {
        std::this_thread::sleep_for(std::chrono::milliseconds{100});
        float sum = 0.0F;
        for (const float value : view.as<float>()) {
          sum += value;
        }
        if (sum == 0.0F && counters.frees.load() == frees) {
          ++ended_first;
        }
      });
      issued.arrive_and_wait();
      if (exception) {
        throw std::runtime_error("boom");
      }
    });
    CHECK(ended_first.load() == 2);
    CHECK(contains(outcome.text(), exception ? "failed at forward of unit 3 'L3': boom" : ""));
    CHECK(outcome.failure.has_value() == exception);
  }
}

TEST_CASE("memory outlives the zeroing that was issued before a collective that could not launch") {
  std::int64_t frees_before = 0;
  std::int64_t frees_then = -1;
  const Outcome outcome = outcome_of(1, [&](World& world) {
    HostStream& reduce = stream_of(world, "reduce");
    const auto open = std::make_shared<std::atomic<bool>>(false);
    DeviceCounters& counters = world.device().counters();
    Runtime runtime(world, d4_model(1, 100));
    runtime.initialize([](ParameterView) {});
    const auto micro_batch = runtime.micro_batch();
    {
      const auto use = runtime.forward(0);
    }
    reduce.enqueue([open, &counters, &frees_then]() -> Result<Progress> {
      if (!open->load()) {
        return Progress::blocked;
      }
      frees_then = counters.frees.load();  // the zeroing is next
      return Progress::done;
    });
    {
      const auto use = runtime.backward(0);  // writes no gradient: the reduce begins by zeroing it
      // The world fails, and the actors of this rank have not heard of it yet.
      world.context().actors().config().abort({.code = ErrorCode::device, .text = "planted"});
    }
    frees_before = counters.frees.load();
    std::thread([open] {
      std::this_thread::sleep_for(std::chrono::milliseconds{50});
      open->store(true);
    }).detach();
  });
  CHECK(outcome.text() == "planted");
  CHECK(frees_then == frees_before);
}

TEST_CASE("scopes kept in a container end with it, well or by an exception") {
  for (const bool exception : {false, true}) {
    for (const int ranks : {2, 3}) {
      const Outcome outcome = outcome_of(ranks, [&](World& world) {
        Findings findings;
        const Model model = d4_model();
        D4Trainer trainer(world, findings, model, d4_options(4));
        const auto micro_batch = trainer.runtime.micro_batch();
        std::deque<Use> open;
        for (UnitId unit = 0; unit < 4; ++unit) {
          open.push_back(trainer.runtime.forward(unit));
        }
        if (exception && world.rank() == ranks - 1) {
          throw std::runtime_error("boom");
        }
        if (exception) {
          world.barrier();
        }
      });
      if (!exception) {
        CHECK(outcome.text().empty());
      } else {
        CHECK(outcome.text() ==
              "rank " + std::to_string(ranks - 1) + " failed at forward of unit 0 'L0': boom");
        CHECK(outcome.took < std::chrono::seconds{10});
      }
    }
  }
}

TEST_CASE("two runtimes one after the other, and two interleaved, train like one each") {
  for (const int ranks : {1, 2, 3, 7}) {
    CAPTURE(ranks);
    CHECK(on_ranks(ranks, [](World& world, Findings& findings) {
            const Model small = d4_model(3, 100);
            const Model large = d4_model(5, 1000);
            for (int round = 0; round < 2; ++round) {
              D4Trainer trainer(world, findings, round == 0 ? small : large, d4_options());
              trainer.step();
              trainer.step();
              trainer.expect_oracle();
            }
            auto first = std::make_unique<D4Trainer>(world, findings, small, d4_options());
            D4Trainer second(world, findings, large, d4_options(3, 2, 2));
            for (int step = 0; step < 3; ++step) {
              {
                const auto of_first = first->runtime.micro_batch();
                const auto of_second = second.runtime.micro_batch();
                for (UnitId unit = 0; unit < 5; ++unit) {
                  second.forward(unit);
                  if (unit < 3) {
                    first->forward(unit);
                  }
                }
                for (UnitId unit = 5; unit-- > 0;) {
                  if (unit < 3) {
                    first->backward(unit);
                  }
                  second.backward(unit);
                }
              }
              second.runtime.finish_gradients();
              first->runtime.finish_gradients();
              first->optimize();
              second.optimize();
            }
            first->expect_oracle();
            first.reset();  // with what it has prefetched; the other one goes on
            second.step();
            second.expect_oracle();
          }) == "");
  }
}

TEST_CASE("after 200 worlds, half of them failed, threads and files are what they were") {
  const auto world = [](int index) {
    const Outcome outcome = outcome_of(1 + index % 4, [&](World& each) {
      Runtime runtime(each, d4_model(2, 50));
      runtime.initialize([](ParameterView) {});
      const auto micro_batch = runtime.micro_batch();
      const auto use = runtime.forward(0);
      if (index % 2 == 1 && each.rank() == 0) {
        throw std::runtime_error("boom");
      }
    });
    CHECK(outcome.failure.has_value() == (index % 2 == 1));
  };
  world(0);  // what the first one of a process makes and keeps
  const std::ptrdiff_t threads = thread_count();
  const std::ptrdiff_t files = open_file_count();
  for (int index = 0; index < 200; ++index) {
    world(index);
  }
  for (int look = 0; look < 200 && thread_count() != threads; ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds{10});  // joined, but still listed
  }
  CHECK(thread_count() == threads);
  CHECK(open_file_count() == files);
}

TEST_CASE("a world of 7 ranks on compute streams is torn down under load, again and again") {
  for (int round = 0; round < 10; ++round) {
    const int thrower = round % 8;  // 7: nobody
    Findings findings;
    const Model model = d4_model(6, 300);
    const Outcome outcome = outcome_of(7, [&](World& world) {
      D4Trainer trainer(world, findings, model, d4_options(3, 2, 2));
      trainer.stream = &world.host_device().create_host_stream("compute");
      for (int step = 0; step < 4; ++step) {
        trainer.step();
        if (step == 2 && world.rank() == thrower) {
          const auto micro_batch = trainer.runtime.micro_batch();
          trainer.forward(0);
          throw std::runtime_error("boom");
        }
      }
    });
    CHECK(findings.text() == "");
    CHECK(outcome.text() == (thrower == 7 ? ""
                                          : "rank " + std::to_string(thrower) +
                                                " failed at a micro-batch, between uses: boom"));
    CHECK(outcome.took < std::chrono::seconds{20});
  }
}

TEST_CASE("observers that throw do not stop the world, or end it with their text") {
  WorldOptions options{.timeout = failing_world_timeout, .on_warning = [](const std::string&) {}};
  options.on_failure = [](const std::string&) { throw std::runtime_error("no disk for logs"); };
  const auto run = [](const WorldOptions& given, bool boom) -> std::string {
    try {
      World::local(2, given).run([&](World& world) {
        Runtime runtime(world, d4_model());
        runtime.initialize([](ParameterView) {});
        if (boom && world.rank() == 1) {
          throw std::runtime_error("boom");
        }
        world.barrier();
        world.barrier();
      });
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  };
  CHECK(run(options, true) == "rank 1 failed: boom");
  options.on_launch = [](int rank, const LaunchRecord& record) {
    if (rank == 1 && record.ticket == 3) {
      throw std::runtime_error("no disk for traces");
    }
  };
  const auto began = std::chrono::steady_clock::now();
  CHECK(run(options, false) == "rank 1 failed at WorldOptions::on_launch: no disk for traces");
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds{10});
}

}  // namespace
}  // namespace troupe::test
