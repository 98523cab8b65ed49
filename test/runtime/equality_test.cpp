/// Sharded training equals unsharded training, bit for bit.
#include "troupe/test/support/toy_trainer.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <mutex>

namespace troupe::test {
namespace {

struct Row {
  int ranks = 1;
  Options options;
  int micro_batches = 1;
  OptimizerKind optimizer = OptimizerKind::sgd;
  bool worker_stream = false;
  DType dtype = DType::f32;
};

/// Sizes that divide by nothing, several parameters per unit, one element and none.
std::vector<std::vector<std::int64_t>> sizes() {
  return {{37, 5}, {64}, {1, 29, 3}, {101}, {17, 17}, {2, 0, 61}};
}

std::string describe(const Row& row) {
  const auto number = [](const std::optional<int>& value) {
    return value ? std::to_string(*value) : std::string("auto");
  };
  return "ranks " + std::to_string(row.ranks) + ", depth " + number(row.options.prefetch_depth) +
         ", slots " + number(row.options.slots) + ", micro-batches " +
         std::to_string(row.micro_batches) +
         (row.optimizer == OptimizerKind::sgd ? ", SGD" : ", AdamW") +
         (row.worker_stream ? ", worker stream" : ", caller") + ", " + to_string(row.dtype);
}

void check_row(const Row& row) {
  constexpr int steps = 20;
  const Model model = toy_model(sizes(), row.dtype);
  const std::size_t units = model.units().size();
  const std::vector<StepProgram> programs(steps, plain_step(units, row.micro_batches));
  const ReferenceResult expected = Reference(model, row.ranks, row.optimizer).train(programs);

  std::mutex mutex;
  std::vector<std::vector<std::vector<float>>> losses(
      static_cast<std::size_t>(row.ranks));  // [rank][step][micro-batch]
  World::local(row.ranks,
               {.timeout = std::chrono::seconds{60}, .on_warning = [](const std::string&) {}})
      .run([&](World& world) {
        Runtime runtime(world, model, row.options);
        ToyTrainer trainer{
            runtime, world.rank(),
            row.worker_stream ? &world.host_device().create_host_stream("compute") : nullptr};
        ToyOptimizer optimizer{row.optimizer};
        trainer.initialize();
        for (int step = 0; step < steps; ++step) {
          static_cast<void>(trainer.step(programs[static_cast<std::size_t>(step)], step));
          losses[static_cast<std::size_t>(world.rank())].push_back(trainer.losses);
          optimizer.step(runtime);
        }
        for (const auto& [name, values] : expected.parameters) {
          const std::vector<float> full = runtime.full_parameter(name);
          const std::scoped_lock lock(mutex);
          CHECK_MESSAGE(full == values, "parameter ", name, " on rank ", world.rank());
        }
      });
  for (int step = 0; step < steps; ++step) {
    float loss = 0.0F;
    for (int batch = 0; batch < row.micro_batches; ++batch) {
      float batch_loss = 0.0F;
      for (const auto& of_rank : losses) {
        batch_loss =
            batch_loss + of_rank[static_cast<std::size_t>(step)][static_cast<std::size_t>(batch)];
      }
      loss = loss + batch_loss;
    }
    CHECK(loss == expected.losses[static_cast<std::size_t>(step)]);
  }
}

/// All rows of the table, in an order that makes every prefix a fair sample of it.
std::vector<Row> table() {
  std::vector<Row> rows;
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const int depth : {0, 1, 2, 5}) {
      for (const int slots : {1, 2, 3, 100}) {
        for (const int micro_batches : {1, 3}) {
          for (const OptimizerKind optimizer : {OptimizerKind::sgd, OptimizerKind::adamw}) {
            for (const bool worker : {false, true}) {
              Row row{ranks, {}, micro_batches, optimizer, worker, DType::f32};
              row.options.prefetch_depth = depth;
              row.options.slots = slots;
              rows.push_back(row);
            }
          }
        }
      }
    }
  }
  // A stride coprime to the number of rows visits all of them, spread evenly.
  constexpr std::size_t stride = 263;
  std::vector<Row> mixed;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    mixed.push_back(rows[i * stride % rows.size()]);
  }
  return mixed;
}

TEST_CASE("sharded training equals the unsharded reference bit for bit, over the whole table") {
  const std::vector<Row> rows = table();
  const char* limit = std::getenv("TROUPE_EQUALITY_ROWS");
  const std::size_t count = limit != nullptr
                                ? std::min(rows.size(), static_cast<std::size_t>(std::atoi(limit)))
                                : rows.size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::string name = describe(rows[i]);
    CAPTURE(name);
    check_row(rows[i]);
  }
  MESSAGE(count, " of ", rows.size(), " rows");
}

}  // namespace
}  // namespace troupe::test
