#include "troupe/core/bucket_plan.hpp"

#include "troupe/core/text.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>
#include <utility>

namespace troupe {

namespace {

/// What the parameters of one bucket share.
auto key_of(const Parameter& parameter) {
  return std::make_tuple(parameter.unit, parameter.spec.dtype, parameter.spec.trainable,
                         parameter.spec.group, parameter.used_by);
}

/// Buckets in no particular order, without ids.
std::vector<Bucket> fill_buckets(const Model& model, std::int64_t bytes_max) {
  std::vector<Bucket> buckets;
  std::map<decltype(key_of(std::declval<Parameter>())), std::size_t> last;  // key → index
  for (const Parameter& parameter : model.parameters()) {
    const auto bytes_of = [&](std::int64_t numel) {
      return numel * static_cast<std::int64_t>(size_of(parameter.spec.dtype));
    };
    const auto [found, is_new] = last.try_emplace(key_of(parameter), buckets.size());
    const bool full = !is_new && bytes_max > 0 &&
                      bytes_of(buckets[found->second].numel + parameter.numel) > bytes_max;
    if (is_new || full) {
      found->second = buckets.size();
      buckets.push_back({.id = no_bucket,
                         .dtype = parameter.spec.dtype,
                         .trainable = parameter.spec.trainable,
                         .group = parameter.spec.group,
                         .units = parameter.used_by,
                         .parameters = {},
                         .numel = 0});
    }
    Bucket& bucket = buckets[found->second];
    bucket.parameters.push_back(parameter.id);
    bucket.numel += parameter.numel;
  }
  return buckets;
}

}  // namespace

BucketPlan plan_buckets(const Model& model, std::int64_t bytes_max) {
  BucketPlan plan;
  plan.buckets = fill_buckets(model, bytes_max);
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

std::string BucketPlan::describe(BucketId bucket, const Model& model) const {
  const std::vector<ParameterId>& ids = buckets[bucket].parameters;
  const auto names =
      detail::names_of(ids, [&](ParameterId id) { return model.parameters()[id].spec.name; });
  const UnitId owner = model.parameters()[ids.front()].unit;
  return detail::concat(bucket, " '", model.units()[owner].name, "' (", detail::listed(names, 3),
                        ")");
}

}  // namespace troupe
