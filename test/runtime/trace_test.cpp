/// What a world records: every use, update, collective and wait once, on its row.
#include "troupe/test/support/d4.hpp"
#include "troupe/test/support/trace_check.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace troupe::test {
namespace {

/// Runs `body` on every rank with a trace, then looks for what never holds.
void traced(int ranks,
            Trace& trace,
            const std::function<void(World&, Findings&)>& body,
            LaunchLog& launches) {
  CAPTURE(ranks);
  CHECK(on_ranks(ranks, body, &launches, &trace) == "");
  REQUIRE(trace.rank_count() == ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    CAPTURE(rank);
    CHECK(trace_faults(trace[rank], launches.of_rank[static_cast<std::size_t>(rank)]) == "");
    CHECK(trace[rank].dropped() == 0);
  }
}

/// Without the waits, whose number depends on time.
SpanCounts counts_without_waits(const RankTrace& trace) {
  SpanCounts counts = span_counts(trace);
  std::erase_if(counts, [](const auto& entry) { return entry.first.starts_with("waits: "); });
  return counts;
}

constexpr int steps = 3;

void train(World& world, Findings& findings) {
  D4Trainer trainer(world, findings, d4_model(), d4_options());
  for (int step = 0; step < steps; ++step) {
    trainer.step();
  }
}

TEST_CASE("a plain training has exactly the spans of its calls and collectives") {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    Trace trace;
    LaunchLog launches(ranks);
    traced(ranks, trace, train, launches);
    SpanCounts expected{{"compute: update", 1 + steps},
                        {"gather: all_gather of model and options", 1},
                        {"steps: step 1", 1},
                        {"steps: step 2", 1},
                        {"steps: step 3", 1}};
    for (const char* layer : {"L0", "L1", "L2", "L3"}) {
      expected[std::string("compute: forward ") + layer] = steps;
      expected[std::string("compute: backward ") + layer] = steps;
      expected[std::string("reduce: reduce_scatter ") + layer] = steps;
      expected[std::string("reduce: overwrite ") + layer] = steps;
    }
    // docs/step.md: two of the layers are gathered twice in a step. The one for the first use is
    // launched in the update before, so after the last update there is one more.
    expected["gather: all_gather L0"] = 2 * steps + 1;
    expected["gather: all_gather L1"] = 2 * steps;
    expected["gather: all_gather L2"] = steps;
    expected["gather: all_gather L3"] = steps;
    for (int rank = 0; rank < ranks; ++rank) {
      CHECK(counts_without_waits(trace[rank]) == expected);
    }
  }
}

TEST_CASE("every wait names a ticket that was launched, and ends by when its collective has") {
  constexpr int ranks = 3;
  Trace trace;
  LaunchLog launches(ranks);
  traced(ranks, trace, train, launches);
  for (int rank = 0; rank < ranks; ++rank) {
    for (const TraceSpan& wait : spans_of(trace[rank], "waits")) {
      CAPTURE(name_of(wait));
      CHECK(wait.ticket >= 1);
      CHECK(wait.ticket <= launches.of_rank[0].size());
      CHECK_FALSE(wait.failed);
      if (wait.label == "the gather") {
        const auto gathers = spans_of(trace[rank], "gather");
        const auto own = std::ranges::find(gathers, wait.ticket, &TraceSpan::ticket);
        REQUIRE(own != gathers.end());
        CHECK(own->bucket == wait.bucket);
        CHECK(own->end <= wait.end);
      }
    }
  }
}

TEST_CASE("the counters are the buckets by state and the bytes that the device counts") {
  for (const int ranks : {1, 2, 4}) {
    Trace trace;
    LaunchLog launches(ranks);
    const auto body = [&trace](World& world, Findings& findings) {
      D4Trainer trainer(world, findings, d4_model(), d4_options());
      for (int step = 0; step < steps; ++step) {
        trainer.step();
      }
      // The first bucket of the next step has been asked for; nothing else is held. A bucket that
      // is hearing of a completion, on another thread, comes to its next message a little later.
      const RankTrace& own = trace[world.rank()];
      const auto expect = [&](BucketState state, std::int64_t buckets) {
        const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds{5};
        while (last_value(own, counter_of(state)) != buckets &&
               std::chrono::steady_clock::now() < limit) {
          std::this_thread::yield();
        }
        findings.equal(last_value(own, counter_of(state)), buckets, to_string(state));
      };
      expect(BucketState::sharded, 3);
      expect(BucketState::gathering, 1);
      expect(BucketState::in_use, 0);
      expect(BucketState::ready, 0);
      expect(BucketState::failed, 0);
      const DeviceCounters& counters = world.device().counters();
      findings.equal(last_value(own, TraceCounter::unsharded_bytes),
                     counters.unsharded_bytes.load(), "unsharded bytes");
      findings.equal(largest_value(own, TraceCounter::unsharded_bytes),
                     counters.unsharded_bytes_peak.load(), "most unsharded bytes");
      findings.equal(largest_value(own, TraceCounter::gradient_bytes),
                     counters.gradient_bytes_peak.load(), "most gradient bytes");
      findings.equal(last_value(own, TraceCounter::gradient_bytes), 0, "gradient bytes");
    };
    traced(ranks, trace, body, launches);
    for (int rank = 0; rank < ranks; ++rank) {
      CHECK(largest_value(trace[rank], TraceCounter::in_use) >= 1);
      CHECK(largest_value(trace[rank], TraceCounter::sharded) == 4);
      for (const BucketState state :
           {BucketState::sharded, BucketState::gathering, BucketState::in_use, BucketState::ready,
            BucketState::failed}) {
        CAPTURE(to_string(state));
        CHECK(last_value(trace[rank], counter_of(state)) == 0);  // with the runtime they end
      }
    }
  }
}

TEST_CASE("casts, sums of later micro-batches and the trainer's own collectives are spans") {
  constexpr int ranks = 2;
  Trace trace;
  LaunchLog launches(ranks);
  const auto body = [](World& world, Findings& /*findings*/) {
    Model model;
    const UnitId unit = model.add_unit("narrow");
    model.add_parameter(unit, {.name = "w", .shape = {64}, .dtype = DType::bf16});
    Runtime runtime(world, model);
    runtime.initialize([](ParameterView view) { std::ranges::fill(view.data, 1.0F); });
    for (int index = 0; index < 3; ++index) {
      const auto micro_batch = runtime.micro_batch();
      {
        const Use use = runtime.forward(unit);
      }
      const Use use = runtime.backward(unit);
      std::ranges::fill(use.gradient("w").as<float>(), 1.0F);
    }
    runtime.finish_gradients();
    std::vector<float> values(2);
    world.all_reduce(values);
    world.barrier();
    static_cast<void>(runtime.full_parameter("narrow.w"));
  };
  traced(ranks, trace, body, launches);
  const SpanCounts expected{{"compute: backward narrow", 3},
                            {"compute: forward narrow", 3},
                            {"compute: update", 1},
                            {"gather: all_gather for an export", 1},
                            {"gather: all_gather narrow", 1},
                            {"gather: all_gather of model and options", 1},
                            {"gather: cast narrow", 1},
                            {"reduce: accumulate narrow", 2},
                            {"reduce: all_reduce of the trainer", 1},
                            {"reduce: barrier of the trainer", 1},
                            {"reduce: overwrite narrow", 1},
                            {"reduce: reduce_scatter narrow", 3},
                            {"steps: step 1", 1}};
  CHECK(counts_without_waits(trace[0]) == expected);
  CHECK(counts_without_waits(trace[1]) == expected);
}

TEST_CASE("uses that are open at once, of two runtimes as well, have rows of their own") {
  Trace trace;
  LaunchLog launches(1);
  const auto body = [](World& world, Findings& /*findings*/) {
    Runtime first(world, d4_model(), d4_options());
    Runtime second(world, d4_model(1), d4_options());
    for (Runtime* runtime : {&first, &second}) {
      runtime->initialize([](ParameterView view) { std::ranges::fill(view.data, 1.0F); });
    }
    const auto eval = first.eval();
    const auto other_eval = second.eval();
    Use a = first.forward(0);
    Use b = first.forward(1);
    Use c = second.forward(0);
    a.end();
    b.end();
    {
      const Use use = first.forward(2);
    }
    c.end();
  };
  traced(1, trace, body, launches);
  const SpanCounts counts = counts_without_waits(trace[0]);
  CHECK(counts.at("compute: update") == 2);
  CHECK(counts.at("compute: forward L0") == 1);
  CHECK(counts.at("compute 2: forward L1") == 1);
  CHECK(counts.at("compute 3: forward L0") == 1);
  CHECK(counts.at("compute: forward L2") == 1);
}

TEST_CASE("what computes on a worker stream is on a row of that stream") {
  for (const int ranks : {1, 2, 3}) {
    Trace trace;
    LaunchLog launches(ranks);
    const auto body = [](World& world, Findings& findings) {
      D4Trainer trainer(world, findings, d4_model(), d4_options());
      trainer.stream = &world.host_device().create_host_stream("kernels");
      for (int step = 0; step < steps; ++step) {
        trainer.step();
      }
      findings.expect(!trainer.runtime.report().time_last_step.has_value(),
                      "the time of a step on a worker stream is split");
    };
    traced(ranks, trace, body, launches);
    for (int rank = 0; rank < ranks; ++rank) {
      const SpanCounts counts = counts_without_waits(trace[rank]);
      CHECK(counts.at("compute: update") == 1 + steps);  // on the trainer's thread all the same
      for (const char* layer : {"L0", "L1", "L2", "L3"}) {
        CHECK(counts.at(std::string("compute on kernels: forward ") + layer) == steps);
        CHECK(counts.at(std::string("compute on kernels: backward ") + layer) == steps);
        CHECK_FALSE(counts.contains(std::string("compute: forward ") + layer));
      }
      // A use begins when its gather has ended, not when it is issued.
      const std::vector<TraceSpan> gathers = spans_of(trace[rank], "gather");
      for (const TraceSpan& use : spans_of(trace[rank], "compute on kernels")) {
        CHECK(std::ranges::any_of(gathers, [&](const TraceSpan& gather) {
          return gather.label == use.label && gather.end <= use.begin;
        }));
      }
    }
  }
}

TEST_CASE("what an exception leaves is marked, and so are the collectives that fail with it") {
  constexpr int ranks = 3;
  Trace trace;
  LaunchLog launches(ranks);
  WorldOptions options;
  options.timeout = std::chrono::seconds{20};
  options.on_failure = [](const std::string&) {};
  options.on_launch = [&launches](int rank, const LaunchRecord& record) {
    launches.of_rank[static_cast<std::size_t>(rank)].push_back(record);
  };
  options.trace = &trace;
  Findings findings;
  std::string error;
  try {
    World::local(ranks, options).run([&](World& world) {
      D4Trainer trainer(world, findings, d4_model(), d4_options());
      trainer.step();
      const auto micro_batch = trainer.runtime.micro_batch();
      trainer.forward(0);
      if (world.rank() == 1) {
        const Use use = trainer.runtime.forward(1);
        throw std::runtime_error("planted");
      }
      for (UnitId unit = 1; unit < 4; ++unit) {
        trainer.forward(unit);
      }
    });
  } catch (const Error& thrown) {
    error = thrown.what();
  }
  CHECK(findings.text() == "");
  CHECK(error.find("rank 1 failed at forward of unit 1 'L1': planted") != std::string::npos);
  for (int rank = 0; rank < ranks; ++rank) {
    CAPTURE(rank);
    CHECK(trace_faults(trace[rank], launches.of_rank[static_cast<std::size_t>(rank)]) == "");
    std::vector<std::string> failed;
    for (const TraceSpan& span : spans_of(trace[rank], "compute")) {
      if (span.failed) {
        failed.push_back(name_of(span));
      }
    }
    CHECK(failed ==
          (rank == 1 ? std::vector<std::string>{"forward L1"} : std::vector<std::string>{}));
    CHECK(largest_value(trace[rank], TraceCounter::failed) >= (rank == 1 ? 1 : 0));
    CHECK(last_value(trace[rank], TraceCounter::failed) == 0);
  }
}

TEST_CASE("a trace changes nothing of what is launched, and without one nothing is recorded") {
  constexpr int ranks = 2;
  LaunchLog with(ranks);
  LaunchLog without(ranks);
  Trace trace;
  CHECK(on_ranks(ranks, train, &with, &trace) == "");
  CHECK(on_ranks(ranks, train, &without) == "");
  CHECK(with.of_rank == without.of_rank);
}

TEST_CASE("a limit holds for each rank, and what is over it is counted") {
  constexpr int ranks = 2;
  Trace whole;
  CHECK(on_ranks(ranks, train, nullptr, &whole) == "");
  Trace little(10);
  CHECK(on_ranks(ranks, train, nullptr, &little) == "");
  for (int rank = 0; rank < ranks; ++rank) {
    CHECK(little[rank].spans().size() + little[rank].counts().size() == 10);
    // Waits depend on time: all else is as much as in the whole trace.
    const auto waits = spans_of(whole[rank], "waits").size();
    CHECK(little[rank].dropped() + 10 + waits >=
          whole[rank].spans().size() + whole[rank].counts().size());
  }
}

}  // namespace
}  // namespace troupe::test
