/// The trainer of one rank of a ModelWorld: carries out its programs in virtual time and compares
/// all that it sees with what is expected.
#pragma once

#include "model_world.hpp"
#include "simulation.hpp"
#include "troupe/runtime/runtime.hpp"

#include <array>
#include <memory>
#include <optional>
#include <vector>

namespace troupe::test {

class ModelTrainer {
 public:
  ModelTrainer(Simulation& simulation,
               const ModelWorld& model_world,
               const Expected& expected,
               World& world);
  /// While an exception unwinds, what is left on its streams touches nothing any more.
  ~ModelTrainer();
  ModelTrainer(const ModelTrainer&) = delete;
  ModelTrainer& operator=(const ModelTrainer&) = delete;

  void train();

  Runtime& runtime() { return runtime_; }

 private:
  void step(std::size_t index);
  void micro_batch(const MicroBatchProgram& program, const Data& data);
  void next_operation();
  void forward(const Use& use, std::size_t unit, const Data& data, bool in_eval);
  void backward(const Use& use, const Op& op, const Data& data);
  void update(std::size_t step);
  void update_again();
  void all_reduce(std::size_t step);
  void compute(const char* what,
               std::uint64_t number,
               SimulatedStream* stream,
               std::vector<Access> accesses,
               std::function<void()> work);
  void compare(const TensorView& view, ParameterId parameter, std::size_t version);

  Simulation& simulation_;
  const ModelWorld& model_world_;
  const Expected& expected_;
  World& world_;
  const int rank_;
  Runtime runtime_;
  std::array<SimulatedStream*, 2> compute_streams_{};  // uses take turns; null: no streams
  SimulatedStream* compute_stream_ = nullptr;          // of the use at hand
  Event computed_;                                     // the last computation
  SimulatedStream* update_stream_ = nullptr;
  SimulatedStream* second_update_stream_ = nullptr;
  std::shared_ptr<Activations> activations_;
  std::shared_ptr<Activations> eval_activations_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::size_t version_ = 0;       ///< of the parameters: updates so far
  std::uint64_t operations_ = 0;  ///< of the program, so far
};

}  // namespace troupe::test
