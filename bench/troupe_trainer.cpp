// Passes on the public runtime.
#include "pass_trainer.hpp"
#include "troupe/comm/host_device.hpp"
#include "troupe/comm/host_stream.hpp"
#include "troupe/runtime/runtime.hpp"

#include <optional>
#include <string>

namespace troupe::bench {

namespace {

class TroupeTrainer final : public PassTrainer {
 public:
  TroupeTrainer(Runtime& runtime, Stream* stream) : runtime_(runtime), stream_(stream) {}

  void begin_pass() override { pass_.emplace(runtime_.eval()); }
  void begin(UnitId unit) override { use_.emplace(runtime_.forward(unit, stream_)); }
  void end() override { use_.reset(); }
  void end_pass() override { pass_.reset(); }
  ScheduleCounters counters() const override { return runtime_.report().schedule; }

 private:
  Runtime& runtime_;
  Stream* stream_;
  std::optional<Eval> pass_;
  std::optional<Use> use_;
};

}  // namespace

Model equal_units(const PassSetup& setup) {
  Model model;
  for (int i = 0; i < setup.units; ++i) {
    const UnitId unit = model.add_unit("unit." + std::to_string(i));
    model.add_parameter(unit, {.name = "w", .shape = {setup.unit_numel}});
  }
  return model;
}

void with_troupe(const PassSetup& setup, const PassBody& body) {
  WorldOptions options;
  options.poll = setup.poll;
  options.on_warning = [](const std::string&) {};  // few slots are meant
  if (setup.on_launch) {
    options.on_launch = [&setup](int rank, const LaunchRecord&) { setup.on_launch(rank); };
  }
  HostDevice device;  // of the trainers' own computation; outlives the world
  World::local(setup.ranks, options).run([&](World& world) {
    HostStream* stream = setup.worker_stream ? &device.create_host_stream("compute") : nullptr;
    Runtime runtime(world, equal_units(setup),
                    {.slots = setup.slots, .prefetch_depth = setup.prefetch_depth});
    runtime.initialize([](ParameterView) {});
    TroupeTrainer trainer(runtime, stream);
    body(trainer, world.rank());
  });
}

}  // namespace troupe::bench
