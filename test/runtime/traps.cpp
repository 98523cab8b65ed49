#include "traps.hpp"

#include "troupe/test/support/stepped_world.hpp"
#include "troupe/test/support/toy_trainer.hpp"

#include <cmath>
#include <mutex>
#include <thread>

namespace troupe::test {
namespace {

using Milliseconds = std::chrono::milliseconds;

/// What makes a missing wait visible: something slow in front of each operation of a stream.
struct Slow {
  bool gathers = false;
  bool reduces = false;
  bool compute = false;  // then the trainer computes on a worker stream
  bool update = false;   // then the optimizer writes shards on a worker stream
};

const WorldOptions& quiet() {
  static const WorldOptions options{.timeout = std::chrono::seconds{20},
                                    .on_failure = [](const std::string&) {},
                                    .on_warning = [](const std::string&) {}};
  return options;
}

void sleep_on(HostStream& stream) {
  stream.run([] { std::this_thread::sleep_for(Milliseconds{2}); });
}

/// p = p − lr · g on a worker stream, slowly; the update is finished before the work is done.
void update_on_stream(Runtime& runtime, HostStream& stream) {
  Update update = runtime.update(&stream);
  for (std::size_t index = 0; index < update.shard_count(); ++index) {
    const ShardView shard = update.shard(index);
    sleep_on(stream);
    stream.run([weights = shard.weights, gradients = shard.gradients] {
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        weights[i] = weights[i] - 0.125F * gradients[i];
      }
    });
    update.finish(shard.bucket);
  }
}

std::string train_and_compare(int ranks,
                              const Slow& slow,
                              const std::vector<StepProgram>& programs,
                              const Options& options) {
  const Model model = toy_model({{37, 5}, {64}, {1, 29, 3}, {61}});
  const ReferenceResult expected = Reference(model, ranks, OptimizerKind::sgd).train(programs);
  std::mutex mutex;
  std::string wrong;
  try {
    World::local(ranks, quiet()).run([&](World& world) {
      HostDevice& device = world.host_device();
      HostStream& gathers = *device.streams()[0];
      HostStream& reduces = *device.streams()[1];
      HostStream& compute = device.create_host_stream("compute");
      HostStream& updates = device.create_host_stream("updates");
      Runtime runtime(world, model, options);
      ToyTrainer trainer{runtime, world.rank(), slow.compute ? &compute : nullptr};
      trainer.before = [&](const Op&) {
        if (slow.gathers) {
          sleep_on(gathers);
        }
        if (slow.reduces) {
          sleep_on(reduces);
        }
        if (slow.compute) {
          sleep_on(compute);
        }
      };
      ToyOptimizer optimizer;
      trainer.initialize();
      for (std::size_t step = 0; step < programs.size(); ++step) {
        static_cast<void>(trainer.step(programs[step], static_cast<int>(step)));
        if (slow.update) {
          update_on_stream(runtime, updates);
        } else {
          optimizer.step(runtime);
        }
      }
      for (const auto& [name, values] : expected.parameters) {
        if (runtime.full_parameter(name) != values) {
          const std::scoped_lock lock(mutex);
          wrong = "parameter " + name + " on rank " + std::to_string(world.rank()) +
                  " differs from the reference";
        }
      }
    });
  } catch (const Error& error) {
    return std::string("training failed: ") + error.what();
  }
  return wrong;
}

std::string compare_plain(const Slow& slow, int ranks = 2, int micro_batches = 2) {
  Options options;
  options.slots = 2;
  options.gradient_slots = 1;
  options.outsized_gradient_slots = 1;
  return train_and_compare(ranks, slow, std::vector<StepProgram>(2, plain_step(4, micro_batches)),
                           options);
}

std::string plain_training(std::uint64_t seed) {
  return compare_plain({}, seed % 2 == 0 ? 3 : 4);
}
std::string slow_gathers(std::uint64_t) {
  return compare_plain({.gathers = true});
}
std::string slow_reduces(std::uint64_t) {
  return compare_plain({.reduces = true});
}
std::string slow_compute(std::uint64_t) {
  return compare_plain({.compute = true});
}
std::string slow_update(std::uint64_t) {
  return compare_plain({.update = true});
}

/// A bucket gathered ahead whose layer then does not run: at the update its gather is still under
/// way. The update may not begin before it has read the shard.
std::string skipped_layer_in_flight(std::uint64_t) {
  std::string wrong;
  World::local(2, quiet()).run([&](World& world) {
    HostStream& gathers = *world.host_device().streams()[0];
    const Model model = toy_model({{64}, {64}, {64}, {64}});
    Runtime runtime(world, model, {.slots = 3, .prefetch_depth = 2});
    ToyTrainer trainer{runtime, world.rank()};
    trainer.initialize();
    auto micro_batch = runtime.micro_batch();
    runtime.forward(0).end();
    gathers.run([] { std::this_thread::sleep_for(Milliseconds{20}); });
    runtime.forward(1).end();  // prefetches behind the pause; the units gathered are never used
    micro_batch.end();
    runtime.finish_gradients();
    const Event last = gathers.record();
    const Update update = runtime.update();
    if (!last.done()) {
      wrong = "an update began while a gather that reads its shards was under way";
    }
  });
  return wrong;
}

/// Gradients of some parameters only, on memory that still holds other values, with NaN in the
/// gaps.
std::string unwritten_gradients(std::uint64_t) {
  std::string wrong;
  World::local(2, quiet()).run([&](World& world) {
    Model model;
    const UnitId unit = model.add_unit("u");
    model.add_parameter(unit, {.name = "a", .shape = {5}});
    model.add_parameter(unit, {.name = "b", .shape = {20}});
    Runtime runtime(world, model, {.gradient_slots = 1});
    runtime.initialize([](ParameterView) {});
    for (int step = 0; step < 3; ++step) {
      {
        auto micro_batch = runtime.micro_batch();
        runtime.forward(unit).end();
        auto use = runtime.backward(unit);
        const GradientView a = use.gradient("a");
        std::fill_n(a.as<float>().data(), 5, static_cast<float>(world.rank() + 1));
        std::fill_n(static_cast<float*>(a.data) + 5, 11, std::nanf(""));  // up to the alignment
        if (step == 0) {
          std::fill_n(use.gradient("b").as<float>().data(), 20, 8.0F);
        }
      }
      runtime.finish_gradients();
      Update update = runtime.update();
      const ShardView shard = update.shard(0);
      std::vector<float> right(shard.gradients.size(), 0.0F);
      for (const ShardPiece& piece : shard.pieces) {
        const float value = piece.index == 0 ? 1.5F : step == 0 ? 8.0F : 0.0F;
        std::fill_n(right.begin() + piece.shard_offset, piece.numel, value);
      }
      if (!std::equal(right.begin(), right.end(), shard.gradients.begin())) {
        wrong = "gradients that nobody wrote are not zero";
      }
    }
    // A step without any backward: all gradients are zero, not those of the step before.
    {
      auto micro_batch = runtime.micro_batch();
    }
    runtime.finish_gradients();
    Update update = runtime.update();
    for (const float value : update.shard(0).gradients) {
      if (value != 0.0F) {
        wrong = "a step without a backward has the gradients of the step before";
      }
    }
  });
  return wrong;
}

/// The real actors on one thread, messages in a random order.
std::string any_order_of_messages(std::uint64_t seed) {
  const Model model = toy_model({{37, 5}, {64}, {1, 29, 3}, {61}});
  const std::vector<StepProgram> programs(2, plain_step(4, 2));
  const ReferenceResult expected = Reference(model, 2, OptimizerKind::sgd).train(programs);
  std::string wrong;
  std::vector<std::vector<LaunchRecord>> launches;
  try {
    SteppedWorld stepped(2, seed);
    stepped.run([&](World& world) {
      Runtime runtime(world, model, {.slots = 2, .prefetch_depth = 1});
      ToyTrainer trainer{runtime, world.rank()};
      ToyOptimizer optimizer;
      trainer.initialize();
      for (int step = 0; step < 2; ++step) {
        static_cast<void>(trainer.step(programs[static_cast<std::size_t>(step)], step));
        optimizer.step(runtime);
      }
      for (const auto& [name, values] : expected.parameters) {
        if (runtime.full_parameter(name) != values) {
          wrong = "parameter " + name + " differs from the reference";
        }
      }
    });
    for (const std::string& error : stepped.errors) {
      if (!error.empty()) {
        return "training failed: " + error;
      }
    }
    launches = stepped.launches;
  } catch (const std::exception& exception) {
    return std::string("training failed: ") + exception.what();
  }
  for (const auto& of_rank : launches) {
    for (std::size_t i = 0; i < of_rank.size(); ++i) {
      if (of_rank[i].ticket != i + 1) {
        return "tickets were not launched in order";
      }
    }
  }
  return wrong;
}

/// An update on a worker stream is still at work on a bucket that the next step does not use:
/// neither the end of that step nor the next update may touch the bucket before it is done.
std::string update_under_way(std::uint64_t) {
  std::string wrong;
  World::local(2, quiet()).run([&](World& world) {
    HostStream& updates = world.host_device().create_host_stream("updates");
    Runtime runtime(world, toy_model({{64}, {64}}), {.prefetch_depth = 0});
    runtime.initialize([](ParameterView) {});
    const auto expect_minus_eight = [&] {
      if (runtime.full_parameter("u1.p0") != std::vector<float>(64, -8.0F)) {
        wrong = "a bucket was touched while its last update was under way";
      }
    };
    {
      auto micro_batch = runtime.micro_batch();
      runtime.forward(1).end();
      auto use = runtime.backward(1);
      std::ranges::fill(use.gradient("p0").as<float>(), 2.0F);
    }
    runtime.finish_gradients();
    {
      Update update = runtime.update(&updates);
      const ShardView shard = update.shard(1);
      updates.run([] { std::this_thread::sleep_for(Milliseconds{30}); });
      updates.run([weights = shard.weights, gradients = shard.gradients] {
        for (std::size_t i = 0; i < gradients.size(); ++i) {
          weights[i] = weights[i] - gradients[i];
        }
      });
    }
    {
      auto micro_batch = runtime.micro_batch();
    }
    runtime.finish_gradients();
    {
      Update update = runtime.update();
      for (float& weight : update.shard(1).weights) {
        weight = weight * 4.0F;
      }
    }
    expect_minus_eight();
    {
      Update update = runtime.update(&updates);
      const ShardView shard = update.shard(1);
      updates.run([] { std::this_thread::sleep_for(Milliseconds{30}); });
      updates.run([weights = shard.weights] { std::ranges::fill(weights, -2.0F); });
    }
    {
      Update update = runtime.update();  // no step in between
      for (float& weight : update.shard(1).weights) {
        weight = weight * 4.0F;
      }
    }
    expect_minus_eight();
  });
  return wrong;
}

/// Two models in one process keep apart.
std::string two_runtimes(std::uint64_t) {
  const Model model = toy_model({{37, 5}, {64}});
  const std::vector<StepProgram> programs(2, plain_step(2, 1));
  const ReferenceResult expected = Reference(model, 2, OptimizerKind::sgd).train(programs);
  std::string wrong;
  World::local(2, quiet()).run([&](World& world) {
    Runtime first(world, model, {});
    Runtime second(world, model, {.slots = 1});
    ToyTrainer trainers[] = {{first, world.rank()}, {second, world.rank()}};
    ToyOptimizer optimizer;
    for (ToyTrainer& trainer : trainers) {
      trainer.initialize();
    }
    for (int step = 0; step < 2; ++step) {
      for (ToyTrainer& trainer : trainers) {
        static_cast<void>(trainer.step(programs[static_cast<std::size_t>(step)], step));
      }
      optimizer.step(first);
      optimizer.step(second);
    }
    for (const auto& [name, values] : expected.parameters) {
      if (first.full_parameter(name) != values || second.full_parameter(name) != values) {
        wrong = "parameter " + name + " differs from the reference";
      }
    }
  });
  return wrong;
}

}  // namespace

const std::vector<Trap>& traps() {
  static const std::vector<Trap> all{
      {"plain training equals the reference", plain_training},
      {"a use never sees a gather that has not arrived", slow_gathers},
      {"a gradient buffer is not written while it is being reduced", slow_reduces},
      {"a slot is not gathered into, nor a gradient reduced, before the computation on it is done",
       slow_compute},
      {"a gather never reads a shard that is still being updated", slow_update},
      {"a step and an update leave alone what the last update is at work on", update_under_way},
      {"a bucket whose layer did not run is not forgotten in flight", skipped_layer_in_flight},
      {"a parameter without a gradient neither stops its bucket nor keeps old values",
       unwritten_gradients},
      {"launches follow the program, whatever the order of messages", any_order_of_messages},
      {"two models live side by side", two_runtimes},
  };
  return all;
}

}  // namespace troupe::test
