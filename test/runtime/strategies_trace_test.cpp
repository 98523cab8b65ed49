/// What can be seen from outside under every strategy: a span for each collective in the trace; and
/// that without overlap a collective is over when the call that launched it returns.
#include "troupe/test/support/d4_strategies.hpp"
#include "troupe/test/support/trace_check.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <thread>

namespace troupe::test {
namespace {

TEST_CASE("under every strategy the trace has a span for each launch, in order") {
  for (const D4Variant& variant : d4_variants()) {
    CAPTURE(std::string(variant.name));
    CAPTURE(variant.options.overlap);
    Trace trace;
    LaunchLog launches(4);
    CHECK(on_ranks(
              4,
              [&](World& world, Findings& findings) {
                D4Trainer trainer(world, findings, d4_model(), variant.options);
                for (int step = 0; step < 3; ++step) {
                  trainer.step();
                }
              },
              &launches, &trace) == "");
    for (int rank = 0; rank < 4; ++rank) {
      CAPTURE(rank);
      CHECK(trace_faults(trace[rank], launches.of_rank[static_cast<std::size_t>(rank)]) == "");
      CHECK(trace[rank].dropped() == 0);
      CHECK(last_value(trace[rank], TraceCounter::gradient_bytes) == 0);
      // Of each gather that may be followed by one in a smaller group, a part is kept: three steps'
      // of four layers, and of the one that is ahead of the fourth.
      const SpanCounts counts = span_counts(trace[rank]);
      int kept = 0;
      for (const auto& [name, count] : counts) {
        kept += name.starts_with("gather: keep ") ? count : 0;
      }
      const int ahead = variant.options.overlap ? 1 : 0;
      CHECK(kept == (variant.options.regather_group_size > 0 ? 3 * 4 + ahead : 0));
    }
  }
}

TEST_CASE("without overlap every collective is over when the call that launched it returns") {
  for (const D4Variant& variant : d4_variants()) {
    if (variant.options.overlap) {
      continue;
    }
    CAPTURE(std::string(variant.name));
    CHECK(on_ranks(4, [&](World& world, Findings& findings) {
            D4Trainer trainer(world, findings, d4_model(), variant.options);
            RankActors& actors = world.context().actors();
            HostStream& gathers = stream_of(world, "gather");
            HostStream& reduces = stream_of(world, "reduce");
            // Each collective takes a while, so that one that is not waited for is found out.
            const auto slowly = [&](const char* what, const auto& call) {
              for (HostStream* stream : {&gathers, &reduces}) {
                stream->run([] { std::this_thread::sleep_for(std::chrono::microseconds{300}); });
              }
              call();
              const std::string rank = "rank " + std::to_string(world.rank()) + ", ";
              findings.equal(actors.state().launched.load(), actors.next_ticket() - 1,
                             rank + what + ": launched");
              for (const Event& last : actors.state().last_event) {
                findings.expect(last.done(), rank + what + ": a collective is under way");
              }
            };
            for (int step = 0; step < 2; ++step) {
              slowly("a micro-batch", [&] {
                const auto micro_batch = trainer.runtime.micro_batch();
                for (UnitId layer = 0; layer < 4; ++layer) {
                  slowly("a forward", [&] { trainer.forward(layer); });
                }
                for (UnitId layer = 4; layer-- > 0;) {
                  slowly("a backward", [&] { trainer.backward(layer); });
                }
              });
              slowly("the end of the step", [&] { trainer.runtime.finish_gradients(); });
              slowly("an update", [&] { trainer.optimize(); });
            }
            trainer.expect_oracle();
          }) == "");
  }
}

}  // namespace
}  // namespace troupe::test
