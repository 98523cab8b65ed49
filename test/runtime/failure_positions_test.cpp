/// An exception in the trainer, at every event of two small steps: wherever it is thrown, every
/// rank ends with it, the text says where, and nothing is waited for longer than it takes to say
/// so.
#include "troupe/comm/host_stream.hpp"
#include "troupe/runtime/optimizer.hpp"
#include "troupe/runtime/runtime.hpp"
#include "troupe/test/support/failing_world.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace troupe::test {
namespace {

constexpr std::size_t units = 3;

Model small_model() {
  Model model;
  for (std::size_t i = 0; i < units; ++i) {
    const UnitId unit = model.add_unit("L" + std::to_string(i));
    model.add_parameter(unit, {.name = "w", .shape = {40}});
    model.add_parameter(unit, {.name = "b", .shape = {3}});
  }
  return model;
}

std::string place_of(const char* pass, UnitId unit) {
  return std::string(pass) + " of unit " + std::to_string(unit) + " 'L" + std::to_string(unit) +
         "'";
}

/// Counts the events of a trainer and throws at one of them.
class Tripwire {
 public:
  explicit Tripwire(std::optional<std::size_t> at) : at_(at) {}
  void pass(const std::string& place) {
    if (at_ && *at_ == places_.size()) {
      throw std::runtime_error("boom " + std::to_string(*at_));
    }
    places_.push_back(place);
  }
  const std::vector<std::string>& places() const { return places_; }

 private:
  std::optional<std::size_t> at_;
  std::vector<std::string> places_;  ///< as the error has to name them; empty: nothing to name
};

void fill_gradients(const Use& use, HostStream* stream) {
  for (const char* name : {"w", "b"}) {
    const GradientView view = use.gradient(name);
    const auto work = [view] {
      for (float& value : view.as<float>()) {
        value = 1.0F;
      }
    };
    if (stream != nullptr) {
      stream->run(work);
    } else {
      work();
    }
  }
}

void step(Runtime& runtime, Tripwire& wire, HostStream* stream) {
  {
    const auto micro_batch = runtime.micro_batch();
    const std::string between = "a micro-batch, between uses";
    for (UnitId unit = 0; unit < units; ++unit) {
      wire.pass(between);
      const auto use = runtime.forward(unit, stream);
      wire.pass(place_of("forward", unit));
    }
    {
      const auto eval = runtime.eval();
      wire.pass("an eval pass, between uses");
      const auto use = runtime.forward(0, stream);
      wire.pass(place_of("forward", 0));
    }
    for (UnitId unit = units; unit-- > 0;) {
      wire.pass(between);
      const auto use = runtime.backward(unit, stream);
      wire.pass(place_of("backward", unit));
      fill_gradients(use, stream);
      wire.pass(place_of("backward", unit));
    }
    wire.pass(between);
  }
  wire.pass("");
  runtime.finish_gradients();
  wire.pass("");
  {
    Update update = runtime.update();
    for (std::size_t bucket = 0; bucket < update.shard_count(); ++bucket) {
      wire.pass("an update");
      const ShardView shard = update.shard(bucket);
      for (std::size_t i = 0; i < shard.weights.size(); ++i) {
        shard.weights[i] -= shard.gradients[i];
      }
      update.finish(shard.bucket);
    }
    wire.pass("an update");
  }
  wire.pass("");
}

/// All that a trainer does, from before its first call to after its last.
void train(World& world, Tripwire& wire, bool worker_stream) {
  wire.pass("");
  HostStream* stream = worker_stream ? &world.host_device().create_host_stream("compute") : nullptr;
  {
    Runtime runtime(world, small_model(), {.slots = 2});
    wire.pass("");
    runtime.initialize([&](ParameterView) { wire.pass("an update"); });
    wire.pass("");
    step(runtime, wire, stream);
    step(runtime, wire, stream);
  }
  wire.pass("");
  world.barrier();
}

TEST_CASE("an exception at any event of a trainer ends every rank with its text and its place") {
  std::vector<std::string> places;
  const Outcome well = outcome_of(2, [&](World& world) {
    Tripwire wire({});
    train(world, wire, false);
    if (world.rank() == 0) {
      places = wire.places();
    }
  });
  REQUIRE(well.text().empty());
  REQUIRE(places.size() > 50);

  for (const int ranks : {2, 3, 4, 7}) {
    for (std::size_t position = 0; position < places.size(); ++position) {
      const auto thrower = static_cast<int>(position * 5 + 1) % ranks;
      CAPTURE(ranks);
      CAPTURE(position);
      CAPTURE(thrower);
      const Outcome outcome = outcome_of(ranks, [&](World& world) {
        Tripwire wire(world.rank() == thrower ? std::optional(position) : std::nullopt);
        train(world, wire, position % 2 == 1);
      });
      const std::string boom = "boom " + std::to_string(position);
      const std::string at = places[position].empty() ? "" : " at " + places[position];
      const std::string right = "rank " + std::to_string(thrower) + " failed" + at + ": " + boom;
      CHECK(outcome.text() == right);
      CHECK(outcome.failure.value_or(Failure{}).rank == thrower);
      CHECK(outcome.failure.value_or(Failure{}).code == ErrorCode::peer_failed);
      for (int rank = 0; rank < ranks; ++rank) {
        CHECK(outcome.heard[static_cast<std::size_t>(rank)] == (rank == thrower ? boom : right));
      }
      CHECK(outcome.logged.size() == static_cast<std::size_t>(ranks));
      CHECK(outcome.took < std::chrono::seconds{5});  // no wait has run into its time limit
    }
  }
}

TEST_CASE("an exception in work on a trainer's stream ends every rank, whichever use issued it") {
  constexpr std::size_t uses = 7;  // forwards, backwards, and a forward of eval
  for (const int ranks : {2, 3}) {
    for (std::size_t bad = 0; bad < uses; ++bad) {
      CAPTURE(ranks);
      CAPTURE(bad);
      const int thrower = static_cast<int>(bad) % ranks;
      const Outcome outcome = outcome_of(ranks, [&](World& world) {
        HostStream& stream = world.host_device().create_host_stream("compute");
        {
          Runtime runtime(world, small_model());
          runtime.initialize([](ParameterView) {});
          std::size_t index = 0;
          const auto work = [&] {
            if (index++ == bad && world.rank() == thrower) {
              stream.run([] { throw std::runtime_error("boom"); });
            }
          };
          {
            const auto micro_batch = runtime.micro_batch();
            for (UnitId unit = 0; unit < units; ++unit) {
              const auto use = runtime.forward(unit, &stream);
              work();
            }
            for (UnitId unit = units; unit-- > 0;) {
              const auto use = runtime.backward(unit, &stream);
              fill_gradients(use, &stream);
              work();
            }
          }
          runtime.finish_gradients();
          Sgd().step(runtime);
          const auto eval = runtime.eval();
          const auto use = runtime.forward(0, &stream);
          work();  // nothing collective comes behind it: the end of the runtime has to find it
        }
        world.barrier();
      });
      CHECK(contains(outcome.text(), "rank " + std::to_string(thrower) + " "));
      CHECK(contains(outcome.text(), "stream 'compute': boom"));
      for (int rank = 0; rank < ranks; ++rank) {
        CHECK(outcome.heard[static_cast<std::size_t>(rank)] == outcome.text());
      }
      CHECK(outcome.took < std::chrono::seconds{5});
    }
  }
}

}  // namespace
}  // namespace troupe::test
