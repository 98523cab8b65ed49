#include "troupe/core/model.hpp"

#include "troupe/core/text.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace troupe {

namespace {

using detail::concat;
using detail::names_of;

[[noreturn]] void refuse(std::string text) {
  throw Error(detail::failure(ErrorCode::bad_configuration, std::move(text)));
}

/// Insertions, deletions and substitutions between two names (Levenshtein).
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

/// "; nearest: a, b, c", or "; there is none" if there are no names.
std::string nearest(std::string_view wanted, const std::vector<std::string>& names) {
  std::vector<std::pair<std::size_t, std::size_t>> order;  // (distance, index)
  order.reserve(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    order.emplace_back(distance(wanted, names[i]), i);
  }
  std::ranges::sort(order);
  std::vector<std::string> shown;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, order.size()); ++i) {
    shown.push_back(concat("'", names[order[i].second], "'"));
  }
  return shown.empty() ? std::string("; there is none") : "; nearest: " + detail::listed(shown, 3);
}

void check_shape(const std::string& full_name, const Shape& shape) {
  // Room is left for sizes in bytes and for padding.
  constexpr std::int64_t numel_max = std::int64_t{1} << 48;
  if (std::ranges::any_of(shape, [](std::int64_t extent) { return extent < 0; })) {
    refuse(concat("parameter '", full_name, "' has shape ", to_string(shape),
                  ": an extent is negative, expected 0 or more"));
  }
  std::int64_t left = numel_max;  // what the extents not seen yet may multiply to
  for (const std::int64_t extent : shape) {
    if (extent == 0) {
      return;
    }
    left /= extent;
  }
  if (left == 0) {
    refuse(concat("parameter '", full_name, "' has shape ", to_string(shape),
                  ": more than 2^48 elements"));
  }
}

}  // namespace

std::int64_t numel(const Shape& shape) {
  // With a 0 among them, the product of the others may be out of range.
  if (std::ranges::find(shape, 0) != shape.end()) {
    return 0;
  }
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::string to_string(const Shape& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += concat(i == 0 ? "" : ", ", shape[i]);
  }
  return text + ")";
}

UnitId Model::add_unit(std::string name, UnitId parent) {
  if (name.empty()) {
    refuse("a unit needs a name, got an empty one");
  }
  if (const auto found = unit_by_name_.find(name); found != unit_by_name_.end()) {
    refuse(concat("unit '", name, "' exists already (id ", found->second,
                  found->second == root_ ? ", made for parameters outside any unit)" : ")",
                  "; unit names are unique"));
  }
  if (parent != no_unit) {
    check_unit(parent, concat("parent of unit '", name, "'"));
  }
  const auto id = static_cast<UnitId>(units_.size());
  unit_by_name_.emplace(name, id);
  units_.push_back({.id = id, .name = std::move(name), .parent = parent, .parameters = {}});
  return id;
}

ParameterId Model::add_parameter(UnitId unit, ParameterSpec spec) {
  check_unit(unit, concat("unit of parameter '", spec.name, "'"));
  std::string full_name = check_parameter(unit, spec);
  return insert_parameter(unit, std::move(full_name), std::move(spec));
}

ParameterId Model::add_parameter(ParameterSpec spec) {
  std::string full_name = check_parameter(root_, spec);
  if (root_ == no_unit) {
    if (unit_by_name_.contains("root")) {
      refuse(concat("parameter '", spec.name,
                    "' is outside any unit and would make the unit 'root', "
                    "but a unit of that name exists; rename it, or give it the parameter"));
    }
    root_ = add_unit("root");
  }
  return insert_parameter(root_, std::move(full_name), std::move(spec));
}

void Model::tie(UnitId unit, std::string name, UnitId owner, std::string_view owner_name) {
  check_unit(unit, concat("unit of tied parameter '", name, "'"));
  check_unit(owner, concat("owner of tied parameter '", name, "'"));
  const auto& owned = units_[owner].parameters;
  const auto found = std::ranges::find(owned, owner_name, &UnitParameter::name);
  if (found == owned.end()) {
    const auto names = names_of(owned, [](const auto& parameter) { return parameter.name; });
    refuse(concat("cannot tie '", full_name(unit, name), "': unit '", units_[owner].name,
                  "' has no parameter '", owner_name, "'", nearest(owner_name, names)));
  }
  const ParameterId id = found->parameter;
  if (unit == owner) {
    refuse(concat("cannot tie '", full_name(unit, name), "' to '", parameters_[id].full_name,
                  "': both are in one unit; a tie joins two units"));
  }
  std::vector<UnitId>& users = parameters_[id].used_by;
  if (std::ranges::find(users, unit) != users.end()) {
    refuse(concat("cannot tie '", full_name(unit, name), "': unit '", units_[unit].name, "' uses '",
                  parameters_[id].full_name, "' already"));
  }
  check_name(unit, name);
  parameter_by_name_.emplace(full_name(unit, name), id);
  units_[unit].parameters.push_back({.name = std::move(name), .parameter = id});
  users.insert(std::ranges::upper_bound(users, unit), unit);
}

void Model::set_trainable(ParameterId parameter, bool trainable) {
  if (parameter >= parameters_.size()) {
    throw Error({.code = ErrorCode::bad_configuration,
                 .text = "parameter " + std::to_string(parameter) +
                         " does not exist; the model has " + std::to_string(parameters_.size())});
  }
  parameters_[parameter].spec.trainable = trainable;
}

ParameterId Model::parameter(std::string_view full_name) const {
  const auto found = parameter_by_name_.find(full_name);
  if (found == parameter_by_name_.end()) {
    const auto names = names_of(parameter_by_name_, [](const auto& entry) { return entry.first; });
    refuse(concat("no parameter '", full_name, "'", nearest(full_name, names)));
  }
  return found->second;
}

UnitId Model::unit(std::string_view name) const {
  const auto found = unit_by_name_.find(name);
  if (found == unit_by_name_.end()) {
    const auto names = names_of(units_, [](const Unit& unit) { return unit.name; });
    refuse(concat("no unit '", name, "'", nearest(name, names)));
  }
  return found->second;
}

std::int64_t Model::numel_total() const {
  std::int64_t total = 0;
  for (const Parameter& parameter : parameters_) {
    total += parameter.numel;
  }
  return total;
}

std::vector<UnitId> Model::ancestors(UnitId unit) const {
  check_unit(unit, "unit");
  std::vector<UnitId> ancestors;
  for (UnitId up = units_[unit].parent; up != no_unit; up = units_[up].parent) {
    ancestors.push_back(up);
  }
  if (root_ != no_unit && root_ != unit && std::ranges::find(ancestors, root_) == ancestors.end()) {
    ancestors.push_back(root_);
  }
  return ancestors;
}

std::string Model::full_name(UnitId unit, std::string_view name) const {
  const bool in_root = unit == root_;  // also while there is no root unit yet
  return in_root ? std::string(name) : concat(units_[unit].name, ".", name);
}

void Model::check_unit(UnitId unit, std::string_view role) const {
  if (unit >= units_.size()) {
    refuse(concat(role, ": there is no unit ", unit, "; the model has ",
                  detail::count_of(units_.size(), "unit"),
                  units_.empty() ? std::string() : concat(", ids 0 to ", units_.size() - 1)));
  }
}

std::string Model::check_name(UnitId unit, std::string_view name) const {
  if (name.empty()) {
    refuse(concat("a parameter of unit '", unit == root_ ? "root" : units_[unit].name,
                  "' needs a name, got an empty one"));
  }
  std::string full = full_name(unit, name);
  if (const auto found = parameter_by_name_.find(full); found != parameter_by_name_.end()) {
    const Parameter& other = parameters_[found->second];
    refuse(concat("parameter '", full, "' exists already (parameter ", other.id, " of unit '",
                  units_[other.unit].name, "'); full names are unique"));
  }
  return full;
}

std::string Model::check_parameter(UnitId unit, const ParameterSpec& spec) const {
  std::string full = check_name(unit, spec.name);
  check_shape(full, spec.shape);
  return full;
}

ParameterId Model::insert_parameter(UnitId unit, std::string full_name, ParameterSpec spec) {
  const auto id = static_cast<ParameterId>(parameters_.size());
  const std::int64_t elements = troupe::numel(spec.shape);
  parameter_by_name_.emplace(full_name, id);
  units_[unit].parameters.push_back({.name = spec.name, .parameter = id});
  parameters_.push_back({.id = id,
                         .full_name = std::move(full_name),
                         .spec = std::move(spec),
                         .unit = unit,
                         .used_by = {unit},
                         .numel = elements});
  return id;
}

}  // namespace troupe
