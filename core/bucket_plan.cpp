#include "troupe/core/bucket_plan.hpp"

#include "troupe/core/text.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

namespace troupe {

namespace {

std::int64_t bytes_of(std::int64_t numel, DType dtype) {
  return numel * static_cast<std::int64_t>(size_of(dtype));
}

/// What the parameters of one bucket share. Untied parameters of several units are mixed if
/// `across_units`.
auto key_of(const Parameter& parameter, bool across_units) {
  const bool mixed = across_units && parameter.used_by.size() == 1;
  return std::make_tuple(mixed ? no_unit : parameter.unit, parameter.spec.dtype,
                         parameter.spec.trainable, parameter.spec.group,
                         mixed ? std::vector<UnitId>() : parameter.used_by);
}

/// By unit, so that a bucket spans as few units as can be even if their parameters were added in
/// turns; then in registration order.
std::vector<ParameterId> filling_order(const Model& model) {
  std::vector<ParameterId> order(model.parameters().size());
  std::iota(order.begin(), order.end(), ParameterId{0});
  std::ranges::stable_sort(order, {}, [&](ParameterId id) { return model.parameters()[id].unit; });
  return order;
}

void add(Bucket& bucket, const Parameter& parameter) {
  std::vector<UnitId> units;
  std::ranges::set_union(bucket.units, parameter.used_by, std::back_inserter(units));
  bucket.units = std::move(units);
  bucket.parameters.push_back(parameter.id);
  bucket.numel += parameter.numel;
}

/// Buckets in no particular order, without ids.
/// bytes_max  no limit if none; 0: every parameter has a bucket of its own
std::vector<Bucket> fill_buckets(const Model& model,
                                 bool across_units,
                                 std::optional<std::int64_t> bytes_max) {
  std::vector<Bucket> buckets;
  std::map<decltype(key_of(std::declval<Parameter>(), false)), std::size_t> last;  // key → index
  for (const ParameterId id : filling_order(model)) {
    const Parameter& parameter = model.parameters()[id];
    const auto [found, is_new] = last.try_emplace(key_of(parameter, across_units), buckets.size());
    const auto is_full = [&](const Bucket& bucket) {
      return bytes_max && (*bytes_max == 0 || bytes_of(bucket.numel + parameter.numel,
                                                       parameter.spec.dtype) > *bytes_max);
    };
    if (is_new || is_full(buckets[found->second])) {
      found->second = buckets.size();
      buckets.push_back({.id = no_bucket,
                         .dtype = parameter.spec.dtype,
                         .trainable = parameter.spec.trainable,
                         .group = parameter.spec.group,
                         .units = {},
                         .tied = parameter.used_by.size() > 1,
                         .parameters = {},
                         .numel = 0});
    }
    add(buckets[found->second], parameter);
  }
  return buckets;
}

std::vector<Bucket> fill_buckets(const Model& model, Strategy strategy, std::int64_t bytes_max) {
  switch (strategy) {
    case Strategy::owner_broadcast:
      return fill_buckets(model, false, bytes_max);
    case Strategy::sharded_optimizer:
      return fill_buckets(model, true, bytes_max > 0 ? bytes_max : fused_bytes_default(model));
    case Strategy::full_shard:
      break;
  }
  return fill_buckets(model, false, bytes_max > 0 ? std::optional(bytes_max) : std::nullopt);
}

}  // namespace

std::int64_t fused_bytes_default(const Model& model) {
  constexpr std::int64_t parts = 16;
  constexpr std::int64_t bytes_max = std::int64_t{25} << 20U;
  std::int64_t bytes = 0;
  for (const Parameter& parameter : model.parameters()) {
    bytes += parameter.spec.trainable ? bytes_of(parameter.numel, parameter.spec.dtype) : 0;
  }
  return std::clamp<std::int64_t>((bytes + parts - 1) / parts, 1, bytes_max);
}

BucketPlan plan_buckets(const Model& model, Strategy strategy, std::int64_t bytes_max) {
  BucketPlan plan;
  plan.buckets = fill_buckets(model, strategy, bytes_max);
  std::ranges::sort(plan.buckets, {}, [](const Bucket& bucket) {
    return std::pair(bucket.units.front(), bucket.parameters.front());
  });
  plan.unit_buckets.resize(model.units().size());
  plan.bucket_of.resize(model.parameters().size());
  for (std::size_t index = 0; index < plan.buckets.size(); ++index) {
    Bucket& bucket = plan.buckets[index];
    bucket.id = static_cast<BucketId>(index);
    for (const UnitId unit : bucket.units) {
      plan.unit_buckets[unit].push_back(bucket.id);
    }
    for (const ParameterId parameter : bucket.parameters) {
      plan.bucket_of[parameter] = bucket.id;
    }
  }
  return plan;
}

std::string BucketPlan::describe(BucketId id, const Model& model) const {
  const Bucket& bucket = buckets[id];
  const auto names = detail::names_of(bucket.parameters, [&](ParameterId parameter) {
    return model.parameters()[parameter].spec.name;
  });
  const auto name_of = [&](UnitId unit) {
    return detail::concat("'", model.units()[unit].name, "'");
  };
  // A tied bucket goes by the unit that its parameters were added to.
  const bool fused = !bucket.tied && bucket.units.size() > 1;
  const std::string units =
      fused ? detail::concat(name_of(bucket.units.front()), "..", name_of(bucket.units.back()))
            : name_of(model.parameters()[bucket.parameters.front()].unit);
  return detail::concat(id, " ", units, " (", detail::listed(names, 3), ")");
}

}  // namespace troupe
