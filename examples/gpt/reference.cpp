#include "reference.hpp"

#include "ops.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <thread>

namespace gpt {

namespace {

void adamw(const OptimizerOptions& options,
           int64_t step,
           std::span<const float> g,
           std::span<float> p,
           std::span<float> m,
           std::span<float> v) {
  const auto correction = [step](float beta) {
    return static_cast<float>(1.0 - std::pow(static_cast<double>(beta), static_cast<double>(step)));
  };
  const float c1 = correction(options.beta1);
  const float c2 = correction(options.beta2);
  const float beta1 = options.beta1;
  const float beta2 = options.beta2;
  for (size_t i = 0; i < p.size(); ++i) {
    m[i] = beta1 * m[i] + (1.0F - beta1) * g[i];
    v[i] = beta2 * v[i] + (1.0F - beta2) * (g[i] * g[i]);
    const float m_hat = m[i] / c1;
    const float v_hat = v[i] / c2;
    p[i] = p[i] -
           options.lr * (m_hat / (std::sqrt(v_hat) + options.eps) + options.weight_decay * p[i]);
  }
}

Config checked(const Config& config, const ReferenceOptions& options, const Corpus& corpus) {
  if (const auto error = validate(config)) {
    throw std::invalid_argument(*error);
  }
  if (config.sequence != corpus.sequence()) {
    throw std::invalid_argument("the corpus was loaded for sequences of another length");
  }
  if (options.ranks < 1 || options.micro_batches < 1 || options.threads < 1) {
    throw std::invalid_argument("ranks, micro_batches and threads must be at least 1");
  }
  if (options.replicas < 1 || options.ranks % options.replicas != 0) {
    throw std::invalid_argument("replicas must divide ranks");
  }
  return config;
}

}  // namespace

void optimizer_step(const OptimizerOptions& options,
                    int64_t step,
                    std::span<const float> g,
                    std::span<float> p,
                    std::span<float> m,
                    std::span<float> v) {
  switch (options.kind) {
    case OptimizerOptions::Kind::sgd:
      for (size_t i = 0; i < p.size(); ++i) {
        p[i] = p[i] - options.lr * g[i];
      }
      return;
    case OptimizerOptions::Kind::adamw:
      adamw(options, step, g, p, m, v);
      return;
  }
}

float round_to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) {
    return std::bit_cast<float>((bits | 0x00400000U) & 0xffff0000U);
  }
  // Half of the last kept bit, less one unless that bit is odd: carries as round-to-even does.
  const uint32_t rounded = bits + 0x7fffU + ((bits >> 16U) & 1U);
  return std::bit_cast<float>(rounded & 0xffff0000U);
}

ReferenceTrainer::Rank::Rank(const Config& config, int64_t numel)
    : network(config),
      tokens(static_cast<size_t>(config.batch * config.sequence)),
      targets(tokens.size()),
      gradient(numel) {}

ReferenceTrainer::ReferenceTrainer(const Config& config,
                                   const ReferenceOptions& options,
                                   const Corpus& corpus)
    : options_(options), specs_(units(checked(config, options, corpus))), corpus_(corpus) {
  int64_t numel_flat = 0;
  for (const UnitSpec& unit : specs_) {
    std::vector<Place>& places = places_.emplace_back();
    for (const ParameterSpec& parameter : unit.parameters) {
      places.push_back({numel_flat, numel(parameter)});
      numel_flat += padded(numel(parameter));
    }
  }
  for (FloatBuffer* buffer :
       {&weights_, &main_grad_, &micro_batch_grad_, &replica_grad_, &m_, &v_}) {
    *buffer = FloatBuffer(numel_flat);
  }
  for (int64_t replica = 1; options_.sum_at_step_end && replica < options_.replicas; ++replica) {
    replica_main_grads_.emplace_back(numel_flat);
  }
  if (options_.bf16_parameters) {
    compute_weights_ = FloatBuffer(numel_flat);
  }
  for (int64_t rank = 0; rank < options_.ranks; ++rank) {
    ranks_.push_back(std::make_unique<Rank>(config, numel_flat));
  }
  for (size_t unit = 0; unit < specs_.size(); ++unit) {
    for (size_t i = 0; i < places_[unit].size(); ++i) {
      const ParameterSpec& parameter = specs_[unit].parameters[i];
      const Place& place = places_[unit][i];
      initialize(parameter, full_name(specs_[unit], parameter), options_.seed,
                 {weights_.data() + place.offset, static_cast<size_t>(place.numel)});
    }
  }
  update_compute_weights();
}

void ReferenceTrainer::sum_replica(int64_t replica, FloatBuffer& sum) {
  const size_t count = ranks_.size() / static_cast<size_t>(options_.replicas);
  const size_t first = static_cast<size_t>(replica) * count;
  std::ranges::copy(ranks_[first]->gradient.span(), sum.data());
  for (size_t rank = first + 1; rank < first + count; ++rank) {
    add(ranks_[rank]->gradient.data(), static_cast<int64_t>(sum.size()), sum.data());
  }
}

double ReferenceTrainer::sum_gradients() {
  const auto numel = static_cast<int64_t>(weights_.size());
  double loss = 0;
  for (int64_t micro_batch = 0; micro_batch < options_.micro_batches; ++micro_batch) {
    compute_micro_batch(micro_batch);
    double micro_batch_loss = 0;
    for (const auto& rank : ranks_) {
      micro_batch_loss += static_cast<double>(rank->loss);
    }
    loss += micro_batch_loss;
    const auto add_or_begin = [&](FloatBuffer& total, const FloatBuffer& part) {
      if (micro_batch > 0) {
        add(part.data(), numel, total.data());
      } else {
        std::ranges::copy(part.span(), total.data());
      }
    };
    sum_replica(0, micro_batch_grad_);
    for (int64_t replica = 1; replica < options_.replicas; ++replica) {
      sum_replica(replica, replica_grad_);
      if (options_.sum_at_step_end) {
        add_or_begin(replica_main_grads_[static_cast<size_t>(replica) - 1], replica_grad_);
      } else {
        add(replica_grad_.data(), numel, micro_batch_grad_.data());
      }
    }
    add_or_begin(main_grad_, micro_batch_grad_);
  }
  for (const FloatBuffer& replica : replica_main_grads_) {
    add(replica.data(), numel, main_grad_.data());
  }
  return loss;
}

double ReferenceTrainer::step() {
  const double loss = sum_gradients();
  const auto divisor = static_cast<float>(options_.ranks);
  for (float& g : main_grad_.span()) {
    g = g / divisor;
  }
  ++step_count_;
  optimizer_step(options_.optimizer, step_count_, main_grad_.span(), weights_.span(), m_.span(),
                 v_.span());
  update_compute_weights();
  return loss / static_cast<double>(options_.ranks * options_.micro_batches);
}

std::span<const float> ReferenceTrainer::weight(size_t unit, size_t parameter) const {
  const Place& place = places_.at(unit).at(parameter);
  return weights_.span().subspan(static_cast<size_t>(place.offset),
                                 static_cast<size_t>(place.numel));
}

std::span<const float> ReferenceTrainer::gradient(size_t unit, size_t parameter) const {
  const Place& place = places_.at(unit).at(parameter);
  return main_grad_.span().subspan(static_cast<size_t>(place.offset),
                                   static_cast<size_t>(place.numel));
}

void ReferenceTrainer::compute_micro_batch(int64_t micro_batch) {
  const int64_t thread_count = std::min(options_.threads, options_.ranks);
  const auto compute_share = [this, micro_batch, thread_count](int64_t thread) {
    for (int64_t rank = thread; rank < options_.ranks; rank += thread_count) {
      compute_rank(rank, micro_batch);
    }
  };
  std::vector<std::thread> threads;
  for (int64_t thread = 1; thread < thread_count; ++thread) {
    threads.emplace_back(compute_share, thread);
  }
  compute_share(0);
  for (std::thread& thread : threads) {
    thread.join();
  }
}

void ReferenceTrainer::compute_rank(int64_t rank, int64_t micro_batch) {
  Rank& r = *ranks_[static_cast<size_t>(rank)];
  corpus_.batch(step_count_, micro_batch, rank, options_.ranks, options_.seed, r.tokens, r.targets);
  r.network.set_batch(r.tokens, r.targets);
  for (size_t unit = 0; unit < specs_.size(); ++unit) {
    r.network.forward(unit, weight_pointers(unit));
  }
  r.loss = r.network.loss();
  for (size_t unit = specs_.size(); unit-- > 0;) {
    std::vector<GradientOut> gradients;
    for (const Place& place : places_[unit]) {
      gradients.push_back({.data = r.gradient.data() + place.offset, .accumulate = false});
    }
    r.network.backward(unit, weight_pointers(unit), gradients);
  }
}

void ReferenceTrainer::update_compute_weights() {
  if (options_.bf16_parameters) {
    std::ranges::transform(weights_.span(), compute_weights_.data(), round_to_bf16);
  }
}

std::vector<const float*> ReferenceTrainer::weight_pointers(size_t unit) const {
  const FloatBuffer& weights = options_.bf16_parameters ? compute_weights_ : weights_;
  std::vector<const float*> pointers;
  for (const Place& place : places_[unit]) {
    pointers.push_back(weights.data() + place.offset);
  }
  return pointers;
}

}  // namespace gpt
