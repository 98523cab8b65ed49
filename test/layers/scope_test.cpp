/// What the scopes tell their sink, and when.
#include "recording_events.hpp"
#include "troupe/layers/scope_stack.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <type_traits>
#include <utility>

namespace troupe::test {
namespace {

static_assert(!std::is_copy_constructible_v<Use> && !std::is_copy_assignable_v<Use>);
static_assert(std::is_nothrow_move_constructible_v<Use> && std::is_nothrow_move_assignable_v<Use>);

TEST_CASE("scopes begin where they are opened and end where they leave their block") {
  RecordingEvents events;
  {
    const auto micro_batch = events.micro_batch();
    {
      const auto outer = events.forward(4);
      const auto inner = events.forward(5);
    }
    {
      const auto use = events.backward(4);
    }
    {
      const auto eval = events.eval();
    }
  }
  CHECK(events.log == Log{"micro_batch", "forward 4 as #0", "forward 5 as #1", "end #1", "end #0",
                          "backward 4 as #2", "end #2", "eval", "end eval", "end micro_batch"});
}

TEST_CASE("a skipped use has no scope") {
  RecordingEvents events;
  {
    const auto micro_batch = events.micro_batch();
    events.skip(4);
    const auto use = events.forward(5);
    events.skip(4, Pass::backward);
  }
  CHECK(events.log == Log{"micro_batch", "skip forward 4", "forward 5 as #0", "skip backward 4",
                          "end #0", "end micro_batch"});
}

TEST_CASE("end() ends a scope once, however often it is called") {
  RecordingEvents events;
  {
    auto use = events.forward(1);
    use.end();
    use.end();
  }
  CHECK(events.log == Log{"forward 1 as #0", "end #0"});
}

TEST_CASE("uses open at once may end in any order") {
  RecordingEvents events;
  auto first = events.forward(1);
  auto second = events.forward(1);
  first.end();
  second.end();
  CHECK(events.log == Log{"forward 1 as #0", "forward 1 as #1", "end #0", "end #1"});
}

TEST_CASE("a use asks the sink for its own views while it is open") {
  RecordingEvents events;
  const auto first = events.forward(1);
  auto second = events.backward(1);
  CHECK(first["w"].numel == 0);
  CHECK(second["w"].numel == 1);
  CHECK(second.gradient("w").name == "w");
}

TEST_CASE("a use that has ended throws instead of handing out its memory") {
  RecordingEvents events;
  auto use = events.backward(1);
  use.end();
  const std::string expected = "this use has ended (or was moved from); its parameters are gone";
  CHECK(error_of([&] { static_cast<void>(use["w"]); }) == expected);
  CHECK(error_of([&] { static_cast<void>(use.gradient("w")); }) == expected);
  try {
    static_cast<void>(use["w"]);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::misuse);
  }
}

TEST_CASE("a moved use goes on with its new owner, and the old one is like an ended one") {
  RecordingEvents events;
  {
    std::optional<Use> keeper;
    {
      auto use = events.forward(7);
      keeper.emplace(std::move(use));
      // What is left of it is defined, that is the point.
      CHECK(!error_of([&] {
               static_cast<void>(use["w"]);
             }).empty());  // NOLINT(bugprone-use-after-move)
      use.end();
    }
    CHECK(events.log == Log{"forward 7 as #0"});
    CHECK((*keeper)["w"].numel == 0);
  }
  CHECK(events.log == Log{"forward 7 as #0", "end #0"});
}

TEST_CASE("assigning to an open use ends it first, assigning it to itself changes nothing") {
  RecordingEvents events;
  {
    auto use = events.forward(1);
    use = events.forward(2);
    CHECK(events.log == Log{"forward 1 as #0", "forward 2 as #1", "end #0"});
    Use& same = use;
    use = std::move(same);
    CHECK(use["w"].numel == 1);
  }
  CHECK(events.log == Log{"forward 1 as #0", "forward 2 as #1", "end #0", "end #1"});
}

TEST_CASE("an exception abandons every open scope, innermost first, and ends none of them") {
  RecordingEvents events;
  CHECK_THROWS_AS(
      [&] {
        const auto micro_batch = events.micro_batch();
        {
          const auto whole = events.forward(0);
        }
        const auto eval = events.eval();
        const auto outer = events.forward(1);
        const auto inner = events.forward(2);
        throw Boom();
      }(),
      Boom);
  CHECK(events.log == Log{"micro_batch", "forward 0 as #0", "end #0", "eval", "forward 1 as #1",
                          "forward 2 as #2", "abandon #2", "abandon #1", "abandon eval",
                          "abandon micro_batch"});
}

TEST_CASE("a use that was ended or moved away before the exception is not abandoned") {
  RecordingEvents events;
  std::optional<Use> kept;
  CHECK_THROWS_AS(
      [&] {
        auto ended = events.forward(1);
        auto moved = events.forward(2);
        ended.end();
        kept.emplace(std::move(moved));
        throw Boom();
      }(),
      Boom);
  CHECK(events.log == Log{"forward 1 as #0", "forward 2 as #1", "end #0"});
  kept.reset();
  CHECK(events.log.back() == "end #1");
}

TEST_CASE("a scope that begins and ends while another exception unwinds is not abandoned") {
  RecordingEvents events;
  struct Cleanup {
    RecordingEvents& events;
    ~Cleanup() { const auto use = events.forward(3); }
  };
  CHECK_THROWS_AS(
      [&] {
        const Cleanup cleanup{events};
        throw Boom();
      }(),
      Boom);
  CHECK(events.log == Log{"forward 3 as #0", "end #0"});
}

TEST_CASE("an exception caught inside a use leaves the use alone") {
  RecordingEvents events;
  {
    const auto use = events.forward(1);
    try {
      throw Boom();
    } catch (const Boom&) {
    }
  }
  CHECK(events.log == Log{"forward 1 as #0", "end #0"});
}

TEST_CASE("a refused begin opens no scope") {
  RecordingEvents events;
  events.refused = 1;
  CHECK(error_of([&] { static_cast<void>(events.forward(1)); }) == "refused");
  CHECK(events.log.empty());
}

TEST_CASE("a scope stack ends the innermost scope, and what is left in the same order") {
  RecordingEvents events;
  {
    ScopeStack open;
    for (const UnitId unit : {1U, 2U, 3U, 4U}) {
      open.push(events.forward(unit));
    }
    open.pop();
    CHECK(open.size() == 3);
    CHECK(events.log.back() == "end #3");
  }
  CHECK(events.log == Log{"forward 1 as #0", "forward 2 as #1", "forward 3 as #2",
                          "forward 4 as #3", "end #3", "end #2", "end #1", "end #0"});
}

TEST_CASE("a scope stack that is unwound abandons the innermost scope first") {
  RecordingEvents events;
  CHECK_THROWS_AS(
      [&] {
        ScopeStack open;
        open.push(events.forward(1));
        open.push(events.forward(2));
        throw Boom();
      }(),
      Boom);
  CHECK(events.log == Log{"forward 1 as #0", "forward 2 as #1", "abandon #1", "abandon #0"});
}

TEST_CASE("a scope stack refuses an end without a begin") {
  ScopeStack open;
  CHECK(error_of([&] { open.pop(); }) == "an end without a begin: no scope is open");
}

}  // namespace
}  // namespace troupe::test
