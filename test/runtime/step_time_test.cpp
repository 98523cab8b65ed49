/// The split of a step and the spans of a trace in virtual time, where both are exact.
#include "troupe/test/support/d4.hpp"
#include "troupe/test/support/stepped_world.hpp"
#include "troupe/test/support/trace_check.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace troupe::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// What is issued to `name` from now on begins after that long. (Whole seconds: the steps in which
/// a stepped world's time goes on by itself.)
void hold_up(SteppedWorld& stepped, World& world, std::string_view name, seconds length) {
  stream_of(world, name).enqueue([&stepped, until = stepped.now() + length]() -> Result<Progress> {
    return stepped.now() >= until ? Progress::done : Progress::blocked;
  });
}

void start(Runtime& runtime) {
  runtime.initialize([](ParameterView view) { std::ranges::fill(view.data, 1.0F); });
}

void write_gradient(const Use& use) {
  std::ranges::fill(use.gradient("w").as<float>(), 1.0F);
}

TEST_CASE("the parts of a step are exactly the times that were spent") {
  Trace trace;
  SteppedWorld stepped(1, 1, seconds{100}, &trace);
  std::vector<Report> reports;
  stepped.run([&](World& world) {
    Runtime runtime(world, d4_model(2), d4_options(2, 2, 0));
    CHECK_FALSE(runtime.report().time_last_step.has_value());
    start(runtime);
    stepped.advance(seconds{1000});  // before the first micro-batch: of no step
    for (int step = 0; step < 3; ++step) {
      {
        const auto micro_batch = runtime.micro_batch();
        stepped.advance(milliseconds{1});
        hold_up(stepped, world, "gather", seconds{3});
        const Use outer = runtime.forward(0);
        stepped.advance(milliseconds{10});
        hold_up(stepped, world, "gather", seconds{2});
        {
          const Use inner = runtime.forward(1);
          stepped.advance(milliseconds{20});
        }
        stepped.advance(milliseconds{30});
      }
      {
        const auto micro_batch = runtime.micro_batch();
        const Use use = runtime.backward(1);
        write_gradient(use);
        stepped.advance(milliseconds{40});
        hold_up(stepped, world, "reduce", seconds{4});
      }
      runtime.finish_gradients();
      reports.push_back(runtime.report());
      hold_up(stepped, world, "reduce", seconds{5});
      world.barrier();
      stepped.advance(milliseconds{2});
      const Update update = runtime.update();
      stepped.advance(milliseconds{50});
    }
  });
  CHECK(stepped.errors == std::vector<std::string>{""});
  REQUIRE(reports.size() == 3);
  const StepTime first{milliseconds{100}, seconds{9}, milliseconds{1}};
  const StepTime later{milliseconds{150}, seconds{14},
                       milliseconds{3}};  // with an update, a barrier
  CHECK(reports[0].time_last_step == first);
  CHECK(reports[1].time_last_step == later);
  CHECK(reports[2].time_last_step == later);
  StepTime all = first;
  all += later;
  all += later;
  CHECK(reports[2].time_steps == all);
  CHECK(reports[2].steps_timed == 3);

  const auto length = [](const TraceSpan& span) { return span.end - span.begin; };
  const std::vector<TraceSpan> computed = spans_of(trace[0], "compute");
  REQUIRE(computed.size() == 1 + 3 * 3);
  CHECK(name_of(computed[1]) == "forward L0");
  CHECK(length(computed[1]) == seconds{2} + milliseconds{60});  // the wait for L1 lies in it
  CHECK(name_of(computed[2]) == "backward L1");
  CHECK(length(computed[2]) == milliseconds{40});
  CHECK(name_of(computed[3]) == "update");
  CHECK(length(computed[3]) == milliseconds{50});
  CHECK(length(spans_of(trace[0], "compute 2").front()) == milliseconds{20});
  const std::vector<TraceSpan> waits = spans_of(trace[0], "waits");
  Duration waited{};
  for (const TraceSpan& wait : waits) {
    waited += length(wait);
  }
  CHECK(waited == 3 * seconds{9 + 5});
  const std::vector<TraceSpan> of_steps = spans_of(trace[0], "steps");
  REQUIRE(of_steps.size() == 3);
  CHECK(length(of_steps[0]) == first.total());
  CHECK(length(of_steps[2]) == later.total());
  CHECK(of_steps[1].end == of_steps[2].begin);
}

TEST_CASE("what a rank computes is its own, whatever the others do meanwhile") {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (std::uint64_t seed = 0; seed < 15; ++seed) {
      CAPTURE(ranks);
      CAPTURE(seed);
      SteppedWorld stepped(ranks, seed, seconds{10'000});
      stepped.run([&](World& world) {
        Random random(seed * 100 + static_cast<std::uint64_t>(world.rank()));
        Runtime runtime(world, d4_model(), d4_options());
        start(runtime);
        Duration computed{};
        Duration outside{};
        const auto spend = [&](Duration& kind) {
          const auto time = milliseconds{random.below(100)};
          stepped.advance(time);
          kind += time;
        };
        const TimePoint begin = stepped.now();
        {
          const auto micro_batch = runtime.micro_batch();
          for (UnitId unit = 0; unit < 4; ++unit) {
            const Use use = runtime.forward(unit);
            spend(computed);
          }
          spend(outside);
          for (UnitId unit = 4; unit-- > 0;) {
            const Use use = runtime.backward(unit);
            write_gradient(use);
            spend(computed);
          }
        }
        runtime.finish_gradients();
        const StepTime found = runtime.report().time_last_step.value();
        CHECK(found.compute == computed);
        CHECK(found.other >= outside);  // and, among other fibers, what calls wait for their answer
        CHECK(found.total() == stepped.now() - begin);
      });
      for (const std::string& error : stepped.errors) {
        CHECK(error == "");
      }
    }
  }
}

TEST_CASE("on a worker stream a use is as long as what was issued in it") {
  Trace trace;
  SteppedWorld stepped(1, 1, seconds{100}, &trace);
  stepped.run([&](World& world) {
    Runtime runtime(world, d4_model(1), d4_options(1, 1, 0));
    start(runtime);
    HostStream& stream = world.host_device().create_host_stream("kernels");
    {
      const auto micro_batch = runtime.micro_batch();
      hold_up(stepped, world, "gather", seconds{3});
      {
        const Use use = runtime.forward(0, &stream);
        stream.run([&] { stepped.advance(milliseconds{5}); });
        stream.run([&] { stepped.advance(milliseconds{6}); });
      }
      stream.run([&] { stepped.advance(milliseconds{100}); });  // between the uses
      {
        const Use use = runtime.backward(0, &stream);
        write_gradient(use);
        stream.run([&] { stepped.advance(milliseconds{7}); });
      }
      {
        const Use nothing = runtime.forward(0, &stream);
      }
    }
    runtime.finish_gradients();
    CHECK_FALSE(runtime.report().time_last_step.has_value());
    CHECK(runtime.report().steps_timed == 0);
    // A step on the trainer's own thread again; the update was on the stream.
    {
      const Update update = runtime.update(&stream);
    }
    runtime.finish_gradients();
  });
  CHECK(stepped.errors != std::vector<std::string>{""});  // a second finish is refused
  const std::vector<TraceSpan> uses = spans_of(trace[0], "compute on kernels");
  REQUIRE(uses.size() == 4);
  const auto length = [&](std::size_t index) { return uses[index].end - uses[index].begin; };
  CHECK(name_of(uses[0]) == "forward L0");
  CHECK(length(0) == milliseconds{11});
  CHECK(uses[0].begin == spans_of(trace[0], "gather").back().end);
  CHECK(name_of(uses[1]) == "backward L0");
  CHECK(length(1) == milliseconds{7});
  CHECK(uses[1].begin - uses[0].end == milliseconds{100});
  CHECK(length(2) == Duration::zero());
  CHECK(name_of(uses[3]) == "update");
}

TEST_CASE("the report prints what is known of the time") {
  Report report;
  CHECK(to_text(report).find("time of") == std::string::npos);
  report.steps = 3;
  report.time_last_step =
      StepTime{std::chrono::microseconds{7500}, milliseconds{2}, std::chrono::microseconds{500}};
  report.time_steps = {seconds{6}, milliseconds{1500}, milliseconds{500}};
  report.steps_timed = 3;
  const std::string text = to_text(report);
  CHECK(text.find("time of the last step   10.000 ms: 7.500 ms (75 %) compute, 2.000 ms (20 %) "
                  "exposed communication, 0.500 ms (5 %) other\n") != std::string::npos);
  CHECK(text.find("time of 3 steps         8.000 s: 6.000 s (75 %) compute, 1.500 s (19 %) exposed "
                  "communication, 500.000 ms (6 %) other\n") != std::string::npos);
  report.time_last_step.reset();
  CHECK(
      to_text(report).find("time of the last step   not known: it computed on a worker stream\n") !=
      std::string::npos);
}

TEST_CASE("a rank that owns nothing reports the unsharded optimizer all the same") {
  World::local(2).run([](World& world) {
    Model model;
    model.add_parameter(model.add_unit("only"), {.name = "w", .shape = {48}});
    Runtime runtime(world, model, {.strategy = Strategy::owner_broadcast});
    runtime.initialize([](ParameterView) {});
    AdamW optimizer({.learning_rate = 0.5F});
    static_cast<void>(runtime.micro_batch());
    runtime.finish_gradients();
    optimizer.step(runtime);
    const Report report = runtime.report();
    CHECK(report.memory.optimizer == (world.rank() == 0 ? 2 * 4 * 48 : 0));
    CHECK(report.unsharded.optimizer == 2 * 4 * 48);
  });
}

TEST_CASE("the report prints the strategy, what it holds and what it sends") {
  const auto at = [](Collective op) { return static_cast<std::size_t>(op); };
  Report report;
  report.strategy = Strategy::full_shard;
  report.memory = {.main_weights = 1'500'000, .parameter_slots = 2'000'000};
  report.unsharded = {.main_weights = 6'000'000};
  report.collectives_last_step[at(Collective::all_gather)] = 3;
  report.bytes_sent_last_step[at(Collective::all_gather)] = 1'000'000;
  report.bytes_sent_last_step[at(Collective::reduce_scatter)] = 2'500'000;
  const std::string text = to_text(report);
  CHECK(text.starts_with("strategy                full_shard\nmemory of rank 0 of 1 "));
  CHECK(text.find("\n  main weights               1.500 MB     6.000 MB\n") != std::string::npos);
  CHECK(text.find("kept parameters") == std::string::npos);
  CHECK(text.find("\ncollectives per step    3 all_gather\n"
                  "bytes sent per step     3.500 MB: 1.000 MB all_gather, 2.500 MB "
                  "reduce_scatter\n") != std::string::npos);

  report.memory.kept_parameters = 250'000;
  CHECK(to_text(report).find("\n  kept parameters            0.250 MB     0.000 MB\n") !=
        std::string::npos);
  report.strategy = Strategy::owner_broadcast;
  report.memory.main_weights = 0;
  report.bytes_sent_last_step = {};
  const std::string stays = to_text(report);
  CHECK(stays.starts_with("strategy                owner_broadcast\n"));
  CHECK(stays.find("\n  main weights (slots)       0.000 MB     6.000 MB\n") != std::string::npos);
  CHECK(stays.find("\nbytes sent per step     0.000 kB\n") != std::string::npos);
}

}  // namespace
}  // namespace troupe::test
