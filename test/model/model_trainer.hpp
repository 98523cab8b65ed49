/// The trainer of one rank of a ModelWorld: carries out its programs in virtual time and compares
/// all that it sees with what is expected. It does one thing at a time, so that two of them can
/// take turns on a rank.
#pragma once

#include "model_world.hpp"
#include "simulation.hpp"
#include "troupe/runtime/runtime.hpp"

#include <array>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

namespace troupe::test {

class ModelTrainer {
 public:
  ModelTrainer(Simulation& simulation,
               const ModelWorld& model_world,
               const Expected& expected,
               World& world,
               bool shares_device);
  /// While an exception unwinds, what is left on its streams touches nothing any more.
  ~ModelTrainer();
  ModelTrainer(const ModelTrainer&) = delete;
  ModelTrainer& operator=(const ModelTrainer&) = delete;

  /// All there is to do, with the world's second trainer on this rank (null: there is none).
  void train(ModelTrainer* second);

  Runtime& runtime() { return runtime_; }

 private:
  /// Ends the scopes of a trainer, innermost first: abandons them while an exception unwinds.
  struct ScopesEnd {
    explicit ScopesEnd(ModelTrainer& of) : trainer(of) {}
    ~ScopesEnd() { trainer.close_scopes(); }
    ScopesEnd(const ScopesEnd&) = delete;
    ScopesEnd& operator=(const ScopesEnd&) = delete;
    ModelTrainer& trainer;
  };

  void initialize();
  void initialize_all();
  void give_up(const std::exception& why);
  void may_give_up(bool inside);
  /// One operation of a micro-batch, or the end of a step. False: nothing is left to do.
  bool advance();
  void let_second_advance();
  void compare_parameters();
  void begin_micro_batch();
  void end_step();
  void close_scopes();
  void next_operation();
  void operation(const Op& op);
  bool may_update(const MicroBatchProgram& program) const;
  void leave_out(const Op& op);
  void forward(const Use& use, std::size_t unit, const Data& data, bool in_eval);
  void backward(const Use& use, const Op& op, const Data& data);
  bool measure_gradients(std::size_t step);
  void update(std::size_t step);
  void update_again();
  bool touches(std::size_t bucket) const;
  void all_reduce(std::size_t step);
  void compute(const char* what,
               std::uint64_t number,
               SimulatedStream* stream,
               std::vector<Access> accesses,
               std::function<void()> work);
  void wrong(const char* invariant, const std::string& text);
  void compare(const TensorView& view, ParameterId parameter, std::size_t version);

  Simulation& simulation_;
  const ModelWorld& model_world_;
  const Expected& expected_;
  World& world_;
  const int rank_;
  const bool shares_device_;  ///< with another runtime
  Runtime runtime_;
  std::array<SimulatedStream*, 2> compute_streams_{};  // uses take turns; null: no streams
  SimulatedStream* compute_stream_ = nullptr;          // of the use at hand
  Event computed_;                                     // the last computation
  SimulatedStream* update_stream_ = nullptr;
  SimulatedStream* second_update_stream_ = nullptr;
  std::shared_ptr<Activations> activations_;
  std::shared_ptr<Activations> eval_activations_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::size_t version_ = 0;            ///< of the parameters: updates so far
  std::uint64_t operations_ = 0;       ///< of the program, so far
  std::uint64_t step_operations_ = 0;  ///< of the step, so far
  ModelTrainer* second_ = nullptr;     ///< takes turns with this one; null: there is none
  std::uint64_t advances_ = 0;

  // Where it is: the operation that comes next, and the scopes that are open.
  std::size_t step_ = 0;
  std::size_t batch_ = 0;
  std::size_t op_ = 0;
  bool in_batch_ = false;
  std::optional<MicroBatch> micro_batch_;
  std::deque<std::optional<Use>> open_;  ///< empty: this rank leaves it out
  std::optional<Eval> eval_;
};

}  // namespace troupe::test
