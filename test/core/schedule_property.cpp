#include "schedule_property.hpp"

#include "schedule_fixture.hpp"
#include "schedule_ledger.hpp"
#include "schedule_random.hpp"
#include "schedule_reference.hpp"

#include <cstddef>
#include <map>
#include <vector>

namespace troupe::testing {

namespace {

using Log = std::vector<std::vector<Decision>>;

struct Run {
  std::vector<Event> granted;
  Log log;
};

std::string in_words(const std::vector<Decision>& decisions) {
  std::string text = "[";
  for (const Decision& decision : decisions) {
    text += text.size() > 1 ? ", " : "";
    text += std::string(to_string(decision.command)) + " " + std::to_string(decision.bucket) +
            " slot " + std::to_string(decision.slot) + " ticket " + std::to_string(decision.ticket);
  }
  return text + "]";
}

/// Runs the program with the ledger and the reference beside it. A violated property, or "".
std::string watch(const Program& program, Schedule& schedule, Run& run, Coverage& coverage) {
  Ledger ledger(program.plan);
  ReferenceSchedule reference(program.plan);
  std::vector<bool> refused(program.events.size());
  for (std::size_t i = 0; i < program.events.size(); ++i) {
    const Event& event = program.events[i];
    if (event.begun_by != Event::no_begin && refused[event.begun_by]) {
      refused[i] = true;
      continue;
    }
    ++coverage.events;
    const auto violated = [&](const std::string& property) {
      return property + ", at event " + std::to_string(i) + " (" + describe(event) + ")";
    };
    const bool possible = ledger.possible(event);
    const Result<void> result = apply(event, schedule);
    if (result.ok() != possible) {
      return violated(possible ? "a refusal is necessary: " + result.failure().text
                               : "what is granted is possible");
    }
    if (result.ok()) {
      if (const std::string property = ledger.enter(event, schedule); !property.empty()) {
        return violated(property);
      }
      const std::vector<Decision> expected = reference.decide(event);
      if (schedule.decisions() != expected) {
        return violated("the decisions are those of the rules: " + in_words(expected) + "; not " +
                        in_words(schedule.decisions()));
      }
      if (event.kind == EventKind::adopt) {
        reference.adopt(order_to_adopt(event.id, reference.recorded()));
      }
      if (schedule.recorded() != reference.recorded() ||
          schedule.agreed_order() != reference.agreed_order()) {
        return violated("what a step has done is recorded, and adopted as it is");
      }
      run.granted.push_back(event);
      run.log.push_back(schedule.decisions());
    } else {
      refused[i] = true;
      ++coverage.refused;
      const auto mentions = [&](const char* reason) {
        return result.failure().text.find(reason) != std::string::npos ? 1U : 0U;
      };
      coverage.refused_for_slots += mentions(" more slot");
      coverage.refused_for_gradient_slots += mentions(" more gradient slot");
      coverage.refused_for_order += mentions(" is gathered before ");
      coverage.refused_as_reduced += mentions(" was reduced already ");
      if (!schedule.decisions().empty()) {
        return violated("a refused event decides nothing");
      }
    }
    if (const std::string property = ledger.compare_views(schedule); !property.empty()) {
      return violated(property);
    }
  }
  return {};
}

/// The counters are those of the decisions, and add up.
std::string compare_counters(const Schedule& schedule, const Run& run) {
  const ScheduleCounters& counters = schedule.counters();
  std::uint64_t unused = 0;  // an upper bound of those held
  for (BucketId bucket = 0; bucket < schedule.plan().slot_class.size(); ++bucket) {
    unused += schedule.held(bucket) ? 1U : 0U;
  }
  std::map<Command, std::uint64_t> told;
  std::uint64_t zeros = 0;
  for (std::size_t i = 0; i < run.log.size(); ++i) {
    for (const Decision& decision : run.log[i]) {
      ++told[decision.command];
      zeros += decision.command == Command::contribute &&
                       run.granted[i].kind != EventKind::begin_backward
                   ? 1U
                   : 0U;
    }
  }
  const std::uint64_t gathers = told[Command::gather] + told[Command::regather];
  const std::uint64_t per_reduce =
      schedule.plan().replica_sum == ReplicaSum::every_reduce ? 2U : 1U;
  const std::uint64_t accounted =
      counters.prefetch_hits + counters.misses + counters.evicted_unused;
  const bool adds_up =
      counters.uses == counters.hits + counters.misses && counters.gathers == gathers &&
      counters.regathers == told[Command::regather] && counters.reduces == told[Command::reduce] &&
      counters.zero_reduces == zeros && counters.evictions == told[Command::evict] &&
      gathers >= accounted && gathers - accounted <= unused &&
      gathers + per_reduce * counters.reduces + told[Command::sum_replicas] + 1 ==
          schedule.next_ticket();
  return adds_up ? "" : "the counters add up";
}

}  // namespace

std::optional<std::string> violated_property(std::uint64_t seed, Coverage& coverage) {
  const Program program = random_program(seed);
  Schedule schedule(program.plan);
  Run run;
  if (std::string property = watch(program, schedule, run, coverage); !property.empty()) {
    return property;
  }
  if (std::string property = compare_counters(schedule, run); !property.empty()) {
    return property;
  }
  Schedule again(program.plan);
  for (std::size_t i = 0; i < run.granted.size(); ++i) {
    const Result<void> result = apply(run.granted[i], again);
    if (!result.ok() || again.decisions() != run.log[i]) {
      return "a run without the refused events decides the same, at event " + std::to_string(i) +
             " (" + describe(run.granted[i]) + ")";
    }
  }
  const ScheduleCounters& counters = schedule.counters();
  coverage.ignored_ends += counters.releases_ignored;
  coverage.prefetch_hits += counters.prefetch_hits;
  coverage.misses += counters.misses;
  coverage.evictions += counters.evictions;
  coverage.evicted_unused += counters.evicted_unused;
  coverage.reduces += counters.reduces;
  coverage.regathers += counters.regathers;
  coverage.zero_reduces += counters.zero_reduces;
  for (std::size_t i = 0; i < run.log.size(); ++i) {
    coverage.accumulated += run.granted[i].reduces ? 0U : 1U;
    for (const Decision& decision : run.log[i]) {
      coverage.left_reduces +=
          decision.command == Command::reduce && run.granted[i].kind == EventKind::step_end ? 1U
                                                                                            : 0U;
      coverage.replica_sums += decision.command == Command::sum_replicas ? 1U : 0U;
      coverage.out_of_turn +=
          decision.command == Command::reduce && run.granted[i].kind == EventKind::begin_backward
              ? 1U
              : 0U;
      coverage.changed_when_kept +=
          decision.command == Command::step_end && run.granted[i].kind == EventKind::updated ? 1U
                                                                                             : 0U;
    }
  }
  return std::nullopt;
}

}  // namespace troupe::testing
