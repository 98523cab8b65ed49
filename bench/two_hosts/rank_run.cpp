#include "rank_run.hpp"

#include "compute_alone.hpp"
#include "troupe/bench/samples.hpp"
#include "troupe/examples/gpt/corpus.hpp"
#include "troupe/examples/gpt/ops.hpp"
#include "troupe/examples/gpt/sharded.hpp"

#include <sys/resource.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <sched.h>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unistd.h>
#include <variant>

namespace troupe::bench {

namespace {

constexpr int warm_up_steps = 4;

Nanoseconds cpu_ns(int who) {
  rusage usage{};
  getrusage(who, &usage);
  const auto ns = [](const timeval& time) {
    return Nanoseconds{time.tv_sec} * 1'000'000'000 + Nanoseconds{time.tv_usec} * 1000;
  };
  return ns(usage.ru_utime) + ns(usage.ru_stime);
}

/// What the queue of the namespace's link has sent, counted as it counts against the rate: each
/// packet of a larger one that is cut later with headers of its own. 0 without such a link.
double sent_bytes() {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(
      popen("tc -s qdisc show dev v0 2>/dev/null", "r"), pclose);
  std::array<char, 4096> text{};
  const std::size_t count = pipe ? fread(text.data(), 1, text.size(), pipe.get()) : 0;
  const std::string_view shown(text.data(), count);
  const auto at = shown.find("Sent ");
  return at == std::string_view::npos ? 0 : std::stod(std::string(shown.substr(at + 5, 20)));
}

struct Reading {
  Nanoseconds time = 0;
  Nanoseconds cpu = 0;
  Nanoseconds trainer_cpu = 0;
  double wire_bytes = 0;
};

Reading read() {
  return {.time = now_ns(),
          .cpu = cpu_ns(RUSAGE_SELF),
          .trainer_cpu = cpu_ns(RUSAGE_THREAD),
          .wire_bytes = sent_bytes()};
}

/// Of the last step, summed over an operation's collectives.
double bytes_of(const Report& report, Collective op) {
  return static_cast<double>(report.bytes_sent_last_step[static_cast<std::size_t>(op)]);
}

RankNumbers measure(World& world, const RankRun& run, const gpt::Corpus& corpus) {
  gpt::ShardedTrainer trainer(world, run.options, corpus);
  std::vector<float> go_on{1};
  for (int step = 0; step < warm_up_steps; ++step) {
    trainer.step();
  }
  const Reading begin = read();
  std::int64_t steps = 0;
  do {
    trainer.step();
    ++steps;
    // All end with the same step: the first rank's clock says with which.
    go_on[0] = static_cast<double>(now_ns() - begin.time) < run.seconds * 1e9 ? 1.0F : 0.0F;
    world.broadcast(go_on, 0);
  } while (go_on[0] != 0);
  const Reading end = read();

  const auto each = [steps](double sum) { return sum / static_cast<double>(steps); };
  const Report report = trainer.report();
  const double others = world.size() - 1;
  const auto trainer_cpu = end.trainer_cpu - begin.trainer_cpu;
  return {.step_ns = each(static_cast<double>(end.time - begin.time)),
          .gathered_bytes = bytes_of(report, Collective::all_gather) * others,
          .reduced_bytes = bytes_of(report, Collective::reduce_scatter) * others / world.size(),
          .wire_bytes = each(end.wire_bytes - begin.wire_bytes),
          .communication_cpu_ns = each(static_cast<double>(end.cpu - begin.cpu - trainer_cpu)),
          .trainer_cpu_ns = each(static_cast<double>(trainer_cpu)),
          .steps = steps};
}

RankNumbers measure_alone(const RankRun& run, const gpt::Corpus& corpus) {
  ComputeAlone alone(run.options, corpus, 2);
  for (int step = 0; step < warm_up_steps; ++step) {
    alone.step();
  }
  const Nanoseconds begin = now_ns();
  const Nanoseconds forward = alone.forward_ns();
  const Nanoseconds backward = alone.backward_ns();
  std::int64_t steps = 0;
  do {
    alone.step();
    ++steps;
  } while (static_cast<double>(now_ns() - begin) < run.seconds * 1e9);
  const auto each = [steps](Nanoseconds sum) {
    return static_cast<double>(sum) / static_cast<double>(steps);
  };
  return {.step_ns = each(now_ns() - begin),
          .forward_ns = each(alone.forward_ns() - forward),
          .backward_ns = each(alone.backward_ns() - backward),
          .steps = steps};
}

RankNumbers run_rank(const RankRun& run) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<unsigned>(run.core), &cores);
  sched_setaffinity(0, sizeof cores, &cores);
  gpt::use_one_blas_thread();
  const auto corpus = gpt::Corpus::load(run.options.data, run.options.config.sequence);
  if (const auto* error = std::get_if<gpt::CorpusError>(&corpus)) {
    throw std::runtime_error(error->text);
  }
  const auto& text = std::get<gpt::Corpus>(corpus);
  if (!run.options.join) {
    return measure_alone(run, text);
  }
  RankNumbers numbers;
  run.host.run([&] {
    World::join(*run.options.join).run([&](World& world) { numbers = measure(world, run, text); });
  });
  return numbers;
}

/// The child's part; its numbers go into the pipe.
[[noreturn]] void child(const RankRun& run, int pipe) {
  try {
    const RankNumbers numbers = run_rank(run);
    _exit(write(pipe, &numbers, sizeof numbers) == sizeof numbers ? 0 : 1);
  } catch (const std::exception& error) {
    std::cerr << "two_hosts, rank " << run.core << ": " << error.what() << "\n";
    _exit(1);
  }
}

}  // namespace

std::vector<RankNumbers> run_ranks(const std::vector<RankRun>& runs) {
  struct Child {
    pid_t id = -1;
    int pipe = -1;
  };
  std::vector<Child> children;
  for (const RankRun& run : runs) {
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) {
      throw std::runtime_error("pipe failed");
    }
    const pid_t id = fork();
    if (id == 0) {
      close(ends[0]);
      child(run, ends[1]);
    }
    close(ends[1]);
    children.push_back({id, ends[0]});
  }
  std::vector<RankNumbers> numbers(runs.size());
  bool complete = true;
  for (std::size_t i = 0; i < children.size(); ++i) {
    const ssize_t count = ::read(children[i].pipe, &numbers[i], sizeof numbers[i]);
    close(children[i].pipe);
    int status = 0;
    while (waitpid(children[i].id, &status, 0) < 0 && errno == EINTR) {
    }
    complete = complete && status == 0 && count == sizeof numbers[i];
  }
  if (!complete) {
    throw std::runtime_error("a rank has failed; its own message is above");
  }
  return numbers;
}

}  // namespace troupe::bench
