// One rank of a small training, as a process, that a fault may be put into.
//
//     fault_rank [name=value]...
//
// The launcher's variables say which rank it is. Values, all of them optional:
//   steps=4            steps to train
//   timeout_ms=2000    of collectives; also how long a rank may be silent
//   strategy=0         its row in the table
//   fault=none         what this rank does: see `act`
//   at=0               the point where; points are counted, `points_per_step` in each step
//   trace=FILE         write a trace after each step
//   cycles=1           how many worlds to join, one after the other
//
// Output, a line each: "point N" before the point where it acts, "step N sum S" after each step.
// When its world fails it says so on its errors, "failed code=… rank=… ticket=…: text", and ends
// with 1.
#include "troupe/core/trace.hpp"
#include "troupe/runtime/chrome_trace.hpp"
#include "troupe/runtime/optimizer.hpp"
#include "troupe/runtime/runtime.hpp"
#include "troupe/runtime/world.hpp"
#include "troupe/test/processes/rank_options.hpp"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace troupe::test {
namespace {

constexpr UnitId units = 4;

Model model_of(const RankOptions& options) {
  Model model;
  for (UnitId unit = 0; unit < units; ++unit) {
    const UnitId id = model.add_unit("block." + std::to_string(unit));
    const bool larger = options.fault == "model" && unit == 2;
    model.add_parameter(id, {.name = "w",
                             .shape = {larger ? 65 : 64},
                             .dtype = options.fault == "dtype" ? DType::bf16 : DType::f32});
  }
  return model;
}

class Rank {
 public:
  Rank(World& world, const RankOptions& options, Trace& trace)
      : world_(world),
        options_(options),
        trace_(trace),
        runtime_(world, model_of(options), runtime_options(options)) {
    runtime_.initialize([](ParameterView view) {
      std::ranges::generate(view.data, [value = 0.0F]() mutable { return value += 0.5F; });
    });
  }

  void train() {
    for (int step = 0; step < options_.steps && !left_; ++step) {
      this->step();
    }
  }

 private:
  static Options runtime_options(const RankOptions& options) {
    const Strategy strategy = strategies[static_cast<std::size_t>(options.strategy)].strategy;
    return strategy == Strategy::full_shard ? Options{.strategy = strategy, .slots = 2}
                                            : Options{.strategy = strategy};
  }

  void step() {
    {
      auto micro_batch = runtime_.micro_batch();
      std::vector<UnitId> order{0, 1, 2, 3};
      if (options_.fault == "order") {
        std::swap(order[1], order[2]);
      }
      for (const UnitId unit : order) {
        point();
        auto use = runtime_.forward(unit);
        sum_ += use["w"].as<float>()[0];
      }
      for (auto unit = order.rbegin(); unit != order.rend(); ++unit) {
        auto use = runtime_.backward(*unit);
        point();
        const GradientView gradient = use.gradient("w");
        std::ranges::fill(gradient.as<float>(), 1.0F + static_cast<float>(world_.rank()));
      }
    }
    point();
    runtime_.finish_gradients();
    optimizer_.step(runtime_);
    point();
    std::vector<float> sum{sum_};
    world_.all_reduce(sum);
    std::cout << "step " << runtime_.steps() << " sum " << sum[0] << std::endl;
    point(/*between_steps=*/true);
    if (!options_.trace.empty()) {
      write_trace();
    }
  }

  void write_trace() const {
    std::ofstream file(options_.trace, std::ios::binary);
    write_chrome_trace(file, trace_);
    file.close();
    if (!file) {
      throw Error({.code = ErrorCode::storage,
                   .text = "cannot write the trace to " + options_.trace,
                   .rank = world_.rank()});
    }
  }

  void point(bool between_steps = false) {
    if (points_++ < options_.at || acted_ || options_.fault == "none") {
      return;
    }
    if (options_.fault == "leave" && !between_steps) {
      return;  // inside a step an open scope would be its end, too
    }
    acted_ = true;
    std::cout << "point " << points_ - 1 << std::endl;
    act();
  }

  void act() {
    const std::string& fault = options_.fault;
    if (fault == "kill") {
      static_cast<void>(::raise(SIGKILL));
    } else if (fault == "stop") {
      static_cast<void>(::raise(SIGSTOP));
    } else if (fault == "throw") {
      throw std::runtime_error("a bad batch");
    } else if (fault == "exit") {
      ::_exit(3);  // as by a library that calls exit
    } else if (fault == "leave") {
      left_ = true;
    } else if (fault == "hang") {
      std::this_thread::sleep_for(std::chrono::hours{1});
    } else if (fault == "late") {
      std::this_thread::sleep_for(options_.timeout / 4);  // no fault
    }
  }

  World& world_;
  const RankOptions& options_;
  Trace& trace_;
  Runtime runtime_;
  Sgd optimizer_{{.learning_rate = 0.125F}};
  float sum_ = 0;
  int points_ = 0;
  bool acted_ = false;
  bool left_ = false;
};

void run_world(const RankOptions& options) {
  JoinOptions join = JoinOptions::from_environment();
  join.silence_limit = options.timeout;
  join.join_timeout = std::chrono::seconds{20};
  Trace trace;
  const WorldOptions world_options{
      .timeout = options.timeout,
      .on_failure = [](const std::string& text) { std::cerr << text << std::endl; },
      .trace = options.trace.empty() ? nullptr : &trace};
  World::join(join, world_options).run([&](World& world) { Rank(world, options, trace).train(); });
}

}  // namespace
}  // namespace troupe::test

int main(int count, char** arguments) {
  using namespace troupe::test;
  try {
    const RankOptions options = RankOptions::parse({arguments + 1, arguments + count});
    for (int cycle = 0; cycle < options.cycles; ++cycle) {
      if (cycle == 10) {
        std::cout << "at first " << what_is_held() << std::endl;
      }
      run_world(options);
    }
    if (options.cycles > 10) {
      std::cout << "at last " << what_is_held() << std::endl;
    }
    return 0;
  } catch (const troupe::Error& error) {
    const troupe::Failure& failure = error.failure();
    std::cerr << "failed code=" << to_string(failure.code) << " rank=" << failure.rank
              << " ticket=" << failure.ticket << ": " << failure.text << std::endl;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
  }
  return 1;
}
