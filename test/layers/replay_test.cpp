/// A replay emits exactly the events of its order.
#include "troupe/layers/replay.hpp"

#include "random_order.hpp"
#include "recording_events.hpp"
#include "troupe/core/schedule.hpp"
#include "troupe/layers/order_file.hpp"

#include <doctest/doctest.h>

namespace troupe::test {
namespace {

using Kind = LayerEvent::Kind;

Model three_units() {
  Model model;
  for (const char* name : {"a", "b", "c"}) {
    model.add_unit(name);
  }
  return model;
}

LayerOrder parsed(std::string_view text) {
  auto order = parse_order(text, three_units());
  if (!order) {
    FAIL(order.failure().text);
  }
  return std::move(order).value();
}

void ignore(Use& /*use*/, const ReplayedUse& /*at*/) {}

/// What an order says the sink hears, written with a stack of its own.
Log expected_log(const LayerOrder& order) {
  Log log;
  Log open;
  bool in_micro_batch = false;
  std::size_t uses = 0;
  for (const LayerEvent& event : order) {
    if (event.kind == Kind::micro_batch) {
      if (in_micro_batch) {
        log.emplace_back("end micro_batch");
      }
      in_micro_batch = true;
      log.emplace_back("micro_batch");
    } else if (event.kind == Kind::eval) {
      open.emplace_back("eval");
      log.emplace_back("eval");
    } else if (event.kind == Kind::use) {
      const std::string name = "#" + std::to_string(uses++);
      open.push_back(name);
      log.push_back((event.backward ? "backward " : "forward ") + std::to_string(event.unit) +
                    " as " + name);
    } else {
      log.push_back("end " + open.back());
      open.pop_back();
    }
  }
  if (in_micro_batch) {
    log.emplace_back("end micro_batch");
  }
  return log;
}

TEST_CASE("a replay opens and closes the scopes of its order") {
  RecordingEvents events;
  Replay replay(parsed("micro_batch\n"
                       "begin forward a\n"
                       "  forward b\n"
                       "  eval\n"
                       "    forward c\n"
                       "  end\n"
                       "end\n"
                       "micro_batch\n"
                       "backward c\n"),
                ignore);
  replay.run(events);
  CHECK(events.log == Log{"micro_batch", "forward 0 as #0", "forward 1 as #1", "end #1", "eval",
                          "forward 2 as #2", "end #2", "end eval", "end #0", "end micro_batch",
                          "micro_batch", "backward 2 as #3", "end #3", "end micro_batch"});
}

TEST_CASE("a replay of a random order emits exactly its events, every time it runs") {
  for (unsigned seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    Replay replay(random_order(random, 3), ignore);
    for (int run = 0; run < 2; ++run) {
      RecordingEvents events;
      replay.run(events);
      REQUIRE(events.log == expected_log(replay.order()));
    }
  }
}

TEST_CASE("the callback has the open use, and hears its place: unit, pass, micro-batch, eval") {
  RecordingEvents events;
  Log heard;
  Replay replay(parsed("eval\n forward a\nend\n"
                       "micro_batch\n forward a\n begin backward a\n  forward b\n end\n"
                       "eval\n forward c\nend\nforward c\n"
                       "micro_batch\n forward b\n backward b\n"),
                [&](Use& use, const ReplayedUse& at) {
                  heard.push_back(std::to_string(use["w"].numel) + " " + to_string(at.pass) + " " +
                                  std::to_string(at.unit) + " in " +
                                  std::to_string(at.micro_batch) + (at.eval ? " eval" : ""));
                });
  const Log expected{"forward 0 in 0 eval", "forward 0 in 0",      "backward 0 in 0",
                     "recompute 1 in 0",    "forward 2 in 0 eval", "recompute 2 in 0",
                     "forward 1 in 1",      "backward 1 in 1"};
  for (std::size_t run = 0; run < 2; ++run) {
    heard.clear();
    replay.run(events);
    REQUIRE(heard.size() == expected.size());
    for (std::size_t i = 0; i < heard.size(); ++i) {
      CHECK(heard[i] == std::to_string(run * expected.size() + i) + " " + expected[i]);
    }
  }
}

TEST_CASE("an exception in the callback abandons what is open, innermost first, and ends the run") {
  RecordingEvents events;
  Replay replay(parsed("micro_batch\nforward a\nbegin forward b\neval\nbegin forward a\nforward c\n"
                       "end\nend\nend\nforward a\n"),
                [](Use& /*use*/, const ReplayedUse& at) {
                  if (at.unit == 2) {
                    throw Boom();
                  }
                });
  CHECK_THROWS_AS(replay.run(events), Boom);
  CHECK(events.log == Log{"micro_batch", "forward 0 as #0", "end #0", "forward 1 as #1", "eval",
                          "forward 0 as #2", "forward 2 as #3", "abandon #3", "abandon #2",
                          "abandon eval", "abandon #1", "abandon micro_batch"});
}

TEST_CASE("a begin that the sink refuses abandons what is open") {
  RecordingEvents events;
  events.refused = 2;
  Replay replay(parsed("micro_batch\nbegin forward a\nforward c\nend\n"), ignore);
  CHECK(error_of([&] { replay.run(events); }) == "refused");
  CHECK(events.log == Log{"micro_batch", "forward 0 as #0", "abandon #0", "abandon micro_batch"});
}

TEST_CASE("a replay of an order that cannot be is refused before it runs") {
  CHECK(error_of([] { const Replay replay({{Kind::use, 0, false}, {Kind::end}}, ignore); }) ==
        "order of layer events: event 1 is a forward of unit 0 outside a micro-batch and eval; "
        "expected 'micro_batch' or 'eval' first");
}

/// A sink that asks a schedule, with room for everything.
class ScheduledEvents final : public LayerEvents {
 public:
  Schedule schedule{{.unit_buckets = {{0}, {1}, {2}},
                     .slot_class = {0, 0, 0},
                     .gradient_class = {0, 0, 0},
                     .slot_classes = {{0, 3}},
                     .gradient_classes = {{0, 3}},
                     .unit_names = {"a", "b", "c"},
                     .bucket_names = {"0", "1", "2"}}};
  bool refused = false;

  ScheduledEvents() {
    for (const BucketId bucket : {0U, 1U, 2U}) {
      note(schedule.updated(bucket));
    }
  }

 protected:
  std::uint32_t begin_use(UnitId unit, bool backward, Stream* /*stream*/) override {
    note(schedule.begin(unit, backward));
    uses_.push_back({unit, backward ? Pass::backward : Pass::forward});
    return static_cast<std::uint32_t>(uses_.size() - 1);
  }
  void skip_use(UnitId unit, bool backward) override {
    note(schedule.begin(unit, backward));
    note(schedule.end(unit, backward));
  }
  void begin_micro_batch(MicroBatchOptions options) override {
    note(schedule.begin_micro_batch(options.reduce));
  }
  void begin_eval() override { note(schedule.begin_eval()); }
  void end_scope(ScopeId id) noexcept override {
    if (id.kind == ScopeKind::use) {
      note(schedule.end(uses_[id.index].unit, uses_[id.index].pass == Pass::backward));
    } else {
      note(id.kind == ScopeKind::eval ? schedule.end_eval() : schedule.end_micro_batch());
    }
  }
  void abandon_scope(ScopeId /*id*/) noexcept override { refused = true; }
  TensorView parameter(std::uint32_t /*use*/, std::string_view /*name*/) const override {
    return {};
  }
  GradientView gradient(std::uint32_t /*use*/, std::string_view /*name*/) override { return {}; }

 private:
  void note(const Result<void>& result) { refused = refused || !result; }

  std::vector<PredictedUse> uses_;
};

TEST_CASE("what a schedule records of a replay is an order that replays to the same record") {
  ScheduledEvents events;
  Log passes;
  const auto step = [&](const LayerOrder& order) {
    passes.clear();
    Replay(order, [&](Use&, const ReplayedUse& at) {
      if (!at.eval) {
        passes.emplace_back(to_string(at.pass));
      }
    }).run(events);
    events.refused = events.refused || !events.schedule.step_end();
    for (const BucketId bucket : {0U, 1U, 2U}) {
      events.refused = events.refused || !events.schedule.updated(bucket);
    }
    return events.schedule.predicted(false);
  };
  const auto record =
      step(parsed("micro_batch\nforward b\nbegin forward a\n forward b\nend\n"
                  "eval\n forward c\n forward a\nend\n"
                  "backward a\nforward b\nbackward b\nbackward b\n"
                  "micro_batch\nforward c\nbackward c\n"));
  const Log of_first = passes;
  CHECK(record.size() == 2);
  CHECK(record[0].size() == 7);
  CHECK(step(training_order(record)) == record);
  CHECK(passes == of_first);  // recomputations too
  // The replay and the schedule agree about what is a recomputation.
  Log recorded;
  for (const auto& segment : record) {
    for (const PredictedUse& use : segment) {
      recorded.emplace_back(to_string(use.pass));
    }
  }
  CHECK(passes == recorded);

  const auto evals = events.schedule.predicted(true);
  CHECK(format_order(eval_order(evals), three_units()) == "eval\n  forward c\n  forward a\nend\n");
  CHECK(!events.refused);
}

}  // namespace
}  // namespace troupe::test
