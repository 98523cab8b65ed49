/// What a step of the GPT trainer computes, without anything else: no runtime, no communication.
#pragma once

#include "troupe/bench/samples.hpp"
#include "troupe/examples/gpt/buffer.hpp"
#include "troupe/examples/gpt/corpus.hpp"
#include "troupe/examples/gpt/network.hpp"
#include "troupe/examples/gpt/options.hpp"

#include <vector>

namespace troupe::bench {

class ComputeAlone {
 public:
  /// Of one rank of `ranks`, which updates its part of the parameters. `corpus` outlives it.
  ComputeAlone(const gpt::Options& options, const gpt::Corpus& corpus, int ranks);

  /// Forward, backward, and an SGD update.
  void step();

  // Of all steps so far.
  Nanoseconds forward_ns() const { return forward_ns_; }
  Nanoseconds backward_ns() const { return backward_ns_; }

 private:
  struct Unit {
    std::vector<gpt::FloatBuffer> weights;  // by parameter
    std::vector<gpt::FloatBuffer> gradients;
    std::vector<const float*> weights_in;
    std::vector<gpt::GradientOut> gradients_out;
  };

  const gpt::Options options_;
  const gpt::Corpus& corpus_;
  const int ranks_;
  gpt::Network network_;
  std::vector<Unit> units_;
  std::vector<std::uint8_t> tokens_, targets_;
  std::int64_t steps_ = 0;
  Nanoseconds forward_ns_ = 0;
  Nanoseconds backward_ns_ = 0;
};

}  // namespace troupe::bench
