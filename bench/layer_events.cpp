#include "benchmarks.hpp"
#include "pass_trainer.hpp"
#include "stream_timing.hpp"
#include "troupe/comm/host_device.hpp"
#include "troupe/comm/host_stream.hpp"
#include "troupe/comm/local_communicator.hpp"
#include "troupe/core/error.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

namespace troupe::bench {

namespace {

using std::chrono::microseconds;

/// What the begin of a unit finds.
enum class Event : std::uint8_t {
  hit,     ///< its bucket, and nothing to launch; back to back, so that all code and data is hot
  cold,    ///< the same, with computation between events
  launch,  ///< its bucket, and room to prefetch another one
  miss,    ///< nothing: the bucket has to be gathered first
};

struct Case {
  std::string name{};
  Event event = Event::hit;
  int ranks = 1;
  bool polls = false;
  bool worker_stream = false;
  bool until_launch = false;  ///< a begin is timed to the launch of its gather, not to its return
  std::string goal{};         ///< for the median of a begin
};

constexpr int unit_count = 16;
constexpr int slot_count = 3;
/// Through any pause of the benchmark; the runtime's own choice is 50 us or nothing.
constexpr microseconds poll_time{2'000};
/// Of one layer. Longer pauses measure how much of the caches others have taken meanwhile.
constexpr Nanoseconds compute_time = 20'000;

PassSetup setup_of(const Case& each) {
  PassSetup setup;
  setup.ranks = each.ranks;
  setup.units = unit_count;
  // With one slot nothing is kept for the next pass either.
  const bool hits = each.event == Event::hit || each.event == Event::cold;
  setup.slots = hits ? unit_count : each.event == Event::launch ? slot_count : 1;
  setup.prefetch_depth = setup.slots - 1;
  setup.poll = each.polls ? poll_time : microseconds{0};
  setup.worker_stream = each.worker_stream;
  return setup;
}

/// The units whose begin is such an event. With prefetching the first one of a pass misses, and
/// behind the last ones there is nothing to prefetch.
std::pair<UnitId, UnitId> measured_units(Event event) {
  return event == Event::launch ? std::pair<UnitId, UnitId>{1, unit_count - slot_count + 1}
                                : std::pair<UnitId, UnitId>{0, unit_count};
}

/// "Computes" between events, so that what was launched is done before it is needed. With more
/// ranks than cores the thread sleeps, as if a device computed.
void compute(const Case& each) {
  if (each.event == Event::hit) {
    return;
  }
  if (each.ranks == 1) {
    compute_for(compute_time);
  } else {
    std::this_thread::sleep_for(microseconds{1'000});
  }
}

int pass_count(const Case& each, bool quick) {
  if (quick) {
    return 2;
  }
  if (each.event == Event::hit) {
    return each.ranks == 1 ? 2'000 : 500;
  }
  return each.ranks == 1 ? 60 : each.polls ? 2 : 10;
}

/// When each rank launched last, as its comm thread tells.
using LaunchTimes = std::vector<std::atomic<Nanoseconds>>;

struct Samples {
  std::vector<Nanoseconds> begin;
  std::vector<Nanoseconds> end;
};

/// The measured passes saw nothing but what they are named after.
void check_decisions(const Case& each,
                     const ScheduleCounters& before,
                     const ScheduleCounters& after,
                     int passes) {
  const auto count = [&](std::uint64_t ScheduleCounters::* counter) {
    return after.*counter - before.*counter;
  };
  const auto uses = static_cast<std::uint64_t>(passes) * unit_count;
  const auto pass_total = static_cast<std::uint64_t>(passes);
  bool right = count(&ScheduleCounters::uses) == uses;
  switch (each.event) {
    case Event::hit:
    case Event::cold:
      right = right && count(&ScheduleCounters::gathers) == 0;
      break;
    case Event::launch:
      right = right && count(&ScheduleCounters::misses) == pass_total &&
              count(&ScheduleCounters::gathers) == uses;
      break;
    case Event::miss:
      right = right && count(&ScheduleCounters::misses) == uses;
      break;
  }
  if (!right) {
    throw Error({.code = ErrorCode::internal, .text = "'" + each.name + "' measured other events"});
  }
}

Samples run_passes(PassTrainer& trainer,
                   const Case& each,
                   int passes,
                   const std::atomic<Nanoseconds>& launched) {
  Samples samples;
  const auto [first, behind] = measured_units(each.event);
  ScheduleCounters before;
  constexpr int warm_up = 2;
  for (int pass = 0; pass < warm_up + passes; ++pass) {
    if (pass == warm_up) {
      before = trainer.counters();
    }
    trainer.begin_pass();
    for (UnitId unit = 0; unit < unit_count; ++unit) {
      const Nanoseconds begun = now_ns();
      trainer.begin(unit);
      const Nanoseconds ready = now_ns();
      compute(each);
      const Nanoseconds ending = now_ns();
      trainer.end();
      const Nanoseconds ended = now_ns();
      compute(each);
      if (pass >= warm_up && unit >= first && unit < behind) {
        samples.begin.push_back((each.until_launch ? launched.load() : ready) - begun);
        samples.end.push_back(ended - ending);
      }
    }
    trainer.end_pass();
  }
  check_decisions(each, before, trainer.counters(), passes);
  return samples;
}

/// One of the two systems under one case: the columns behind its name.
std::vector<Cell> measure(const Case& each, const Effort& effort, bool baseline) {
  std::vector<double> begin_p50;
  std::vector<double> begin_p99;
  std::vector<double> begin_mean;
  std::vector<double> end_p50;
  std::vector<double> end_p99;
  for (int repetition = 0; repetition < effort.repetitions; ++repetition) {
    std::vector<Samples> of_rank(static_cast<std::size_t>(each.ranks));
    LaunchTimes launched(static_cast<std::size_t>(each.ranks));
    PassSetup setup = setup_of(each);
    if (each.until_launch) {
      setup.on_launch = [&](int rank) { launched[static_cast<std::size_t>(rank)] = now_ns(); };
    }
    const auto body = [&](PassTrainer& trainer, int rank) {
      const auto index = static_cast<std::size_t>(rank);
      of_rank[index] = run_passes(trainer, each, pass_count(each, effort.quick), launched[index]);
    };
    baseline ? with_one_lock(setup, body) : with_troupe(setup, body);
    Samples all;
    for (const Samples& samples : of_rank) {
      all.begin.insert(all.begin.end(), samples.begin.begin(), samples.begin.end());
      all.end.insert(all.end.end(), samples.end.begin(), samples.end.end());
    }
    constexpr double in_us = 1e-3;
    begin_p50.push_back(percentile(all.begin, 0.5) * in_us);
    begin_p99.push_back(percentile(all.begin, 0.99) * in_us);
    begin_mean.push_back(mean(all.begin) * in_us);
    end_p50.push_back(percentile(all.end, 0.5) * in_us);
    end_p99.push_back(percentile(all.end, 0.99) * in_us);
  }
  return {spread_of(begin_p50), spread_of(begin_p99), spread_of(begin_mean), spread_of(end_p50),
          spread_of(end_p99)};
}

/// One gather of one rank as a miss launches it, without anything around: many are queued, so that
/// nobody sleeps in between.
double gather_alone_us(const Effort& effort) {
  constexpr std::int64_t shard_numel = 16;
  const int count = effort.quick ? 10 : 1'000;
  LocalWorld world(1, std::chrono::minutes{1});
  HostDevice device;
  HostStream& stream = device.create_host_stream("gather");
  const auto communicator = world.communicator(0, {0}, 0);
  const std::array<float, shard_numel> from{};
  std::array<float, shard_numel> to{};
  const Nanoseconds total = time_on_streams({&stream}, [&] {
    for (int i = 0; i < count; ++i) {
      const CollectiveCall call{.op = Collective::all_gather,
                                .ticket = static_cast<Ticket>(i + 1),
                                .input = from.data(),
                                .output = to.data(),
                                .numel = shard_numel};
      if (auto launched = communicator->launch(call, stream); !launched) {
        throw Error(launched.failure());
      }
    }
  });
  return static_cast<double>(total) / count * 1e-3;
}

}  // namespace

Table layer_events(const Effort& effort) {
  // clang-format off
  const std::vector<Case> cases{
      {.name = "hit", .event = Event::hit, .goal = "<= 1"},
      {.name = "hit", .event = Event::hit, .ranks = 8},
      {.name = "hit after computing", .event = Event::cold},
      {.name = "hit + prefetch", .event = Event::launch, .polls = true, .goal = "<= 3"},
      {.name = "hit + prefetch", .event = Event::launch},
      {.name = "hit + prefetch", .event = Event::launch, .ranks = 8, .polls = true},
      {.name = "hit + prefetch", .event = Event::launch, .ranks = 8},
      {.name = "miss, to its launch", .event = Event::miss, .polls = true, .until_launch = true, .goal = "<= 5"},
      {.name = "miss, to its launch", .event = Event::miss, .until_launch = true},
      {.name = "miss, worker stream", .event = Event::miss, .polls = true, .worker_stream = true},
      {.name = "miss, worker stream", .event = Event::miss, .worker_stream = true},
      {.name = "miss", .event = Event::miss, .polls = true, .goal = "<= 8"},
      {.name = "miss", .event = Event::miss},
      {.name = "miss", .event = Event::miss, .ranks = 8, .polls = true},
      {.name = "miss", .event = Event::miss, .ranks = 8},
  };
  // clang-format on
  Table table{
      .name = "layer_events",
      .title = "What a layer event costs the trainer's thread (16-byte units; us; median of " +
               std::to_string(effort.repetitions) + " runs, spread)",
      .columns = {{"event"},
                  {"system"},
                  {"ranks", 0},
                  {"comm_thread"},
                  {"begin_p50_us"},
                  {"begin_p99_us", 1},
                  {"begin_mean_us", 1},
                  {"end_p50_us"},
                  {"end_p99_us", 1},
                  {"goal_begin_p50_us"}},
      .rows = {},
      .notes = {}};
  const auto add = [&](const Case& each, const char* system, bool baseline) {
    std::vector<Cell> row{each.name, system, static_cast<double>(each.ranks),
                          baseline     ? "-"
                          : each.polls ? "polls"
                                       : "parked"};
    const std::vector<Cell> numbers = measure(each, effort, baseline);
    row.insert(row.end(), numbers.begin(), numbers.end());
    row.emplace_back(baseline ? "" : each.goal);
    table.rows.push_back(std::move(row));
  };
  for (const Case& each : cases) {
    add(each, "troupe", false);
    if (!each.polls && !each.worker_stream &&
        !each.until_launch) {  // a condition variable does not poll
      add(each, "one lock", true);
    }
  }
  const Spread alone = repeat(effort.repetitions, [&] { return gather_alone_us(effort); });
  std::ostringstream note;
  note << "The collective of a miss by itself takes " << alone.median
       << " us on one rank; the goals of misses are for what is besides.";
  table.notes = {
      note.str(),
      "Times contain one reading of the clock. p99 and mean contain what other threads took.",
      "Between events the trainer computes for 20 us, but not in 'hit'.",
      "With 8 ranks there are more threads than cores: trainers sleep 1 ms instead.",
      "to its launch: until the comm thread has launched the gather and woken the stream's worker.",
      "worker stream: the trainer computes on one; a begin also makes it wait for the gather.",
  };
  return table;
}

}  // namespace troupe::bench
