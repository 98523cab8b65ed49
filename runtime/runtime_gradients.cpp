// Gradients from the end of the last backward to the update: complete, divided, measured, clipped;
// and the checks on the way.
#include "troupe/runtime/runtime_impl.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

namespace troupe {

std::optional<Failure> RuntimeImpl::finish_gradients(float loss_scale) {
  const Call guard(*this, "Runtime::finish_gradients");
  if (gradients_finished) {
    throw Error(
        misuse("Runtime::finish_gradients: the gradients are finished already; a micro-batch comes "
               "first"));
  }
  if (updating_) {
    throw Error(misuse(
        "Runtime::finish_gradients inside an update, which may still read the gradients of the "
        "last step; end the update first"));
  }
  if (!(std::isfinite(loss_scale) && loss_scale > 0)) {
    throw Error(misuse("Runtime::finish_gradients: the loss scale is " +
                       std::to_string(loss_scale) + "; expected a finite number above 0"));
  }
  for (const Bucket& bucket : plan.buckets) {
    if (const float divisor = divisor_of(bucket) * loss_scale;
        bucket.trainable && !(std::isfinite(divisor) && divisor > 0)) {
      throw Error(
          misuse("Runtime::finish_gradients: the loss scale times the gradient divisor is " +
                 std::to_string(divisor) + " in fp32; expected a finite number above 0"));
    }
  }
  const Answer& answer = ask({.kind = TrainerEventKind::step_end});
  note_reduced(answer);  // what micro-batches have left
  const std::vector<BucketId> unreduced = answer.unreduced;
  AgreedOrder recorded = answer.recorded;
  const Event& last = rank.state().last_event[static_cast<std::size_t>(Channel::reduce)];
  rank.wait(rank.next_ticket() - 1, [&] { return last.done(); }, "the last reduce of the step");
  if (!recorded.gathers.empty()) {
    agree_on_order(std::move(recorded));
  }
  micro_batches_ = 0;
  if (auto unused = find_unused()) {
    forget_step();
    return unused;
  }
  divide_gradients(unreduced, loss_scale);
  gradients_finished = true;
  updated_since_ = false;
  ++steps;
  ++context.steps;
  note_step_end();
  return std::nullopt;
}

/// By what the options and the loss scale say. Zero where nothing was contributed on any rank.
void RuntimeImpl::divide_gradients(const std::vector<BucketId>& unreduced, float loss_scale) {
  for (const Bucket& bucket : plan.buckets) {
    if (!bucket.trainable) {
      continue;
    }
    const std::int64_t numel = own_range(bucket.id).numel;
    if (std::ranges::find(unreduced, bucket.id) == unreduced.end()) {
      device.divide(Stream::caller(), options.main_gradient_dtype, gradients_of_[bucket.id], numel,
                    divisor_of(bucket) * loss_scale);
    } else {
      await_update(bucket.id, nullptr);
      device.zero(Stream::caller(), gradients_of_[bucket.id],
                  numel * static_cast<std::int64_t>(size_of(options.main_gradient_dtype)));
    }
  }
}

/// The tokens of all ranks reach an expert, whatever its group: it is divided as the others are.
float RuntimeImpl::divisor_of(const Bucket& bucket) const {
  const auto divisor = options.gradient_divisor.value_or(static_cast<float>(context.size()));
  return bucket.group == expert_group ? options.expert_gradient_divisor.value_or(divisor) : divisor;
}

void RuntimeImpl::check_finished(const char* call) const {
  if (!gradients_finished) {
    throw Error(misuse(std::string(call) +
                       ": the gradients are not complete; call finish_gradients() first"));
  }
}

GradientNorm RuntimeImpl::gradient_norm() {
  const Call guard(*this, "Runtime::gradient_norm");
  check_finished("Runtime::gradient_norm");
  return measure_gradients();
}

GradientNorm RuntimeImpl::clip_gradients(float max_norm) {
  const Call guard(*this, "Runtime::clip_gradients");
  check_finished("Runtime::clip_gradients");
  if (!(max_norm > 0)) {
    throw Error(misuse("Runtime::clip_gradients: max_norm is " + std::to_string(max_norm) +
                       "; expected a number above 0"));
  }
  if (updating_) {
    throw Error(
        misuse("Runtime::clip_gradients inside an update, which reads the gradients; clip before"));
  }
  const GradientNorm result = measure_gradients();
  if (result.finite && result.norm > static_cast<double>(max_norm)) {
    const double ratio = result.norm / static_cast<double>(max_norm);
    // One that fp32 cannot hold is divided by in two halves.
    const bool halves = ratio > static_cast<double>(std::numeric_limits<float>::max());
    const auto divisor = static_cast<float>(halves ? std::sqrt(ratio) : ratio);
    for (const Bucket& bucket : plan.buckets) {
      if (bucket.trainable) {
        await_update(bucket.id, nullptr);
        for (int time = 0; time < (halves ? 2 : 1); ++time) {
          device.divide(Stream::caller(), options.main_gradient_dtype, gradients_of_[bucket.id],
                        own_range(bucket.id).numel, divisor);
        }
      }
    }
  }
  return result;
}

/// Each rank adds the squares of its shards in fp64; those sums are added in rank order on every
/// rank. Of several copies of the model (HSDP) the first one counts, the finiteness of all does.
GradientNorm RuntimeImpl::measure_gradients() {
  struct Part {
    double squares = 0;
    double non_finite = 0;
  };
  Part own;
  bool non_finite = false;
  for (const Bucket& bucket : plan.buckets) {
    if (bucket.trainable) {
      device.squared_norm(Stream::caller(), options.main_gradient_dtype, gradients_of_[bucket.id],
                          own_range(bucket.id).numel, &own.squares, &non_finite);
    }
  }
  own.non_finite = non_finite ? 1 : 0;
  if (context.rank() >= mesh.shard) {
    own.squares = 0;
  }
  // An all-gather moves bits, whatever they mean as numbers.
  constexpr std::size_t floats = sizeof(Part) / sizeof(float);
  std::vector<Part> parts(static_cast<std::size_t>(context.size()));
  rank.collective(Channel::reduce,
                  {.op = Collective::all_gather,
                   .runtime = actors_->id(),
                   .label = "of gradient norms",
                   .input = &own,
                   .output = parts.data(),
                   .numel = floats},
                  {});
  GradientNorm result;
  double squares = 0;
  for (const Part& part : parts) {
    squares += part.squares;
    result.finite = result.finite && part.non_finite == 0;
  }
  result.norm = std::sqrt(squares);
  return result;
}

/// What a backward has contributed to, before anything is reduced. On failure the world hears.
void RuntimeImpl::check_gradients(const OpenUse& use) {
  if (use.contributed.empty()) {
    return;
  }
  if (use.stream != nullptr) {
    await_work(use.stream->record(), nullptr, "the " + describe(use), no_bucket);
  }
  for (const std::uint32_t index : use.contributed) {
    const Place& place = places_[use.unit][index];
    const DType dtype = gradient_dtype();
    const std::byte* slot = table_.gradient_slots[used(use, place.bucket).gradient_slot];
    double squares = 0;
    bool non_finite = false;
    device.squared_norm(Stream::caller(), dtype,
                        slot + place.range.offset * static_cast<std::int64_t>(size_of(dtype)),
                        place.range.numel, &squares, &non_finite);
    if (non_finite) {
      rank.fail_and_throw({.code = ErrorCode::non_finite,
                           .text = "rank " + std::to_string(context.rank()) +
                                   ": the gradient of '" + place.parameter->full_name +
                                   "' is infinite or not a number behind the " + describe(use) +
                                   ", in micro-batch " + std::to_string(micro_batches_) +
                                   " of step " + std::to_string(steps + 1),
                           .rank = context.rank(),
                           .bucket = place.bucket});
    }
  }
}

/// Under `UnusedParameters::error`: all ranks tell each other what got no gradient.
std::optional<Failure> RuntimeImpl::find_unused() {
  std::vector<bool> contributed =
      std::exchange(contributed_, std::vector<bool>(contributed_.size()));
  if (options.unused_parameters != UnusedParameters::error) {
    return std::nullopt;
  }
  constexpr std::size_t bits = 32;
  const std::size_t words = (contributed.size() + bits - 1) / bits;
  if (words == 0) {
    return std::nullopt;
  }
  std::vector<std::uint32_t> own(words);
  for (const Parameter& parameter : model.parameters()) {
    // Nobody has anything to write for one without elements.
    if (parameter.spec.trainable && parameter.numel > 0 && !contributed[parameter.id]) {
      own[parameter.id / bits] |= 1U << (parameter.id % bits);
    }
  }
  std::vector<std::uint32_t> all(words * static_cast<std::size_t>(context.size()));
  rank.collective(Channel::reduce,
                  {.op = Collective::all_gather,
                   .runtime = actors_->id(),
                   .label = "of unused parameters",
                   .input = own.data(),
                   .output = all.data(),
                   .numel = static_cast<std::int64_t>(words)},
                  {});
  std::string text;
  for (const Bucket& bucket : plan.buckets) {
    for (int peer = 0; peer < context.size(); ++peer) {
      const std::uint32_t* unused = all.data() + words * static_cast<std::size_t>(peer);
      std::string names;
      std::size_t count = 0;
      for (const ParameterId id : bucket.parameters) {
        if ((unused[id / bits] >> (id % bits) & 1U) != 0) {
          names += (count++ > 0 ? ", '" : "'") + model.parameters()[id].full_name + "'";
        }
      }
      if (count > 0) {
        text += "; bucket " + std::to_string(bucket.id) + ": " +
                std::to_string(bucket.parameters.size() - count) + " of " +
                std::to_string(bucket.parameters.size()) + " gradients ready on rank " +
                std::to_string(peer) + ", none of " + names;
      }
    }
  }
  if (text.empty()) {
    return std::nullopt;
  }
  return misuse("step " + std::to_string(steps + 1) + " is given up" + text +
                " (Options::unused_parameters is error)");
}

}  // namespace troupe
