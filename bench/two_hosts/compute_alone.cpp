#include "compute_alone.hpp"

#include "troupe/examples/gpt/model.hpp"

#include <cstddef>

namespace troupe::bench {

ComputeAlone::ComputeAlone(const gpt::Options& options, const gpt::Corpus& corpus, int ranks)
    : options_(options),
      corpus_(corpus),
      ranks_(ranks),
      network_(options.config),
      tokens_(static_cast<std::size_t>(options.config.batch * options.config.sequence)),
      targets_(tokens_.size()) {
  for (const gpt::UnitSpec& spec : gpt::units(options.config)) {
    Unit& unit = units_.emplace_back();
    for (const gpt::ParameterSpec& parameter : spec.parameters) {
      const std::int64_t numel = gpt::numel(parameter);
      gpt::initialize(parameter, gpt::full_name(spec, parameter), options.seed,
                      unit.weights.emplace_back(numel).span());
      unit.gradients.emplace_back(numel);
      unit.weights_in.push_back(unit.weights.back().data());
      unit.gradients_out.push_back({.data = unit.gradients.back().data()});
    }
  }
}

void ComputeAlone::step() {
  corpus_.batch(steps_++, 0, 0, ranks_, options_.seed, tokens_, targets_);
  network_.set_batch(tokens_, targets_);
  const Nanoseconds begin = now_ns();
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    network_.forward(unit, units_[unit].weights_in);
  }
  const Nanoseconds turn = now_ns();
  for (std::size_t unit = units_.size(); unit-- > 0;) {
    network_.backward(unit, units_[unit].weights_in, units_[unit].gradients_out);
  }
  forward_ns_ += turn - begin;
  backward_ns_ += now_ns() - turn;
  for (Unit& unit : units_) {
    for (std::size_t i = 0; i < unit.weights.size(); ++i) {
      float* const weights = unit.weights[i].data();
      const float* const gradients = unit.gradients[i].data();
      const std::size_t own = unit.weights[i].size() / static_cast<std::size_t>(ranks_);
      for (std::size_t j = 0; j < own; ++j) {
        weights[j] -= options_.optimizer.lr * gradients[j];
      }
    }
  }
}

}  // namespace troupe::bench
