// What the ranks of a runtime have to have in common: model and options from the start, and, where
// buckets keep their buffers, the order of launches from step to step.
#include "troupe/runtime/runtime_impl.hpp"

#include <bit>
#include <utility>

namespace troupe {

namespace {

/// FNV-1a; to compare what ranks were given.
class Hash {
 public:
  Hash& add(std::string_view text) {
    for (const char c : text) {
      word(static_cast<unsigned char>(c));
    }
    return add(static_cast<std::int64_t>(text.size()));
  }
  Hash& add(std::int64_t number) {
    for (int byte = 0; byte < 8; ++byte) {
      word(static_cast<std::uint64_t>(number) >> (8 * byte) & 0xffU);
    }
    return *this;
  }
  Hash& add(const std::optional<int>& number) { return add(std::int64_t{number.value_or(-1)}); }
  std::uint64_t value() const { return value_; }

 private:
  void word(std::uint64_t bits) { value_ = (value_ ^ bits) * 1099511628211ULL; }
  std::uint64_t value_ = 14695981039346656037ULL;
};

std::uint64_t hash_of(const Model& model) {
  Hash hash;
  for (const Unit& unit : model.units()) {
    hash.add(unit.name).add(std::int64_t{unit.parent});
    for (const UnitParameter& each : unit.parameters) {
      hash.add(each.name).add(std::int64_t{each.parameter});
    }
  }
  for (const Parameter& parameter : model.parameters()) {
    hash.add(parameter.full_name)
        .add(static_cast<std::int64_t>(parameter.spec.dtype))
        .add(std::int64_t{parameter.spec.trainable})
        .add(parameter.spec.group);
    for (const std::int64_t extent : parameter.spec.shape) {
      hash.add(extent);
    }
  }
  return hash.value();
}

std::uint64_t hash_of(const Options& options) {
  Hash hash;
  for (const std::string& unit : options.keep_gathered) {
    hash.add(unit);
  }
  const auto bits = [](const std::optional<float>& number) {
    return std::int64_t{std::bit_cast<std::int32_t>(number.value_or(-1.0F))};
  };
  return hash.add(static_cast<std::int64_t>(options.strategy))
      .add(std::int64_t{options.mesh.replicate})
      .add(std::int64_t{options.mesh.shard})
      .add(std::int64_t{options.mesh.ep})
      .add(std::int64_t{options.overlap})
      .add(std::int64_t{options.reshard_after_forward})
      .add(std::int64_t{options.regather_group_size})
      .add(std::int64_t{options.free_full_gradients})
      .add(std::int64_t{options.sum_replicas_at_step_end})
      .add(options.slots)
      .add(options.outsized_slots)
      .add(options.gradient_slots)
      .add(options.outsized_gradient_slots)
      .add(options.prefetch_depth)
      .add(options.bucket_bytes)
      .add(options.alignment_numel)
      .add(static_cast<std::int64_t>(options.reduce_dtype))
      .add(std::int64_t{options.gradient_dtype ? static_cast<int>(*options.gradient_dtype) : -1})
      .add(static_cast<std::int64_t>(options.main_gradient_dtype))
      .add(static_cast<std::int64_t>(options.main_weight_dtype))
      .add(bits(options.gradient_divisor))
      .add(bits(options.expert_gradient_divisor))
      .add(static_cast<std::int64_t>(options.unused_parameters))
      .add(std::int64_t{options.check_gradients})
      .value();
}

}  // namespace

void RuntimeImpl::agree_with_other_ranks() {
  constexpr std::size_t words = 2;
  const std::array<std::uint64_t, words> own{hash_of(model), hash_of(options)};
  // All-gather moves bits, whatever they mean as numbers.
  constexpr std::size_t floats = words * 2;
  std::vector<std::uint64_t> all(words * static_cast<std::size_t>(context.size()));
  rank.collective(Channel::gather,
                  {.op = Collective::all_gather,
                   .label = "of model and options",
                   .input = own.data(),
                   .output = all.data(),
                   .numel = floats},
                  {});
  for (std::size_t peer = 1; peer < static_cast<std::size_t>(context.size()); ++peer) {
    for (std::size_t word = 0; word < words; ++word) {
      if (all[peer * words + word] != all[word]) {
        throw Error({.code = ErrorCode::bad_configuration,
                     .text = "rank " + std::to_string(peer) + " was given " +
                             (word == 0 ? "another model" : "other options") +
                             " than rank 0; they have to be the same on all ranks",
                     .rank = static_cast<int>(peer)});
      }
    }
  }
}

/// Rank 0's record becomes the order of all ranks.
void RuntimeImpl::agree_on_order(AgreedOrder recorded) {
  const std::size_t gathers = recorded.gathers.size();
  std::vector<BucketId> order = std::move(recorded.gathers);
  order.insert(order.end(), recorded.reduces.begin(), recorded.reduces.end());
  if (context.size() > 1 && !order.empty()) {
    // A broadcast moves bits, whatever they mean as numbers.
    static_assert(sizeof(BucketId) == sizeof(float));
    rank.collective(Channel::reduce,
                    {.op = Collective::broadcast,
                     .runtime = actors_->id(),
                     .label = "of the order of launches",
                     .input = order.data(),
                     .output = order.data(),
                     .numel = static_cast<std::int64_t>(order.size())},
                    {});
  }
  const auto behind_gathers = order.begin() + static_cast<std::ptrdiff_t>(gathers);
  AgreedOrder agreed{{order.begin(), behind_gathers}, {behind_gathers, order.end()}};
  ask({.kind = TrainerEventKind::adopt_order,
       .order = std::make_shared<const AgreedOrder>(std::move(agreed))});
}

}  // namespace troupe
