/// What a model consists of: units and their parameters. A value that the trainer fills in, the
/// same on every rank; nothing here allocates parameters.
///
/// A *unit* is a layer or block whose parameters are gathered together. A parameter is added to a
/// unit, or to the model itself: such parameters form the *root unit*, which the trainer uses like
/// any other (normally around all others, so it counts as an ancestor of every unit).
///
///     troupe::Model model;
///     auto embed = model.add_unit("embed");
///     model.add_parameter(embed, {.name = "tokens", .shape = {256, 512}});
///     auto block = model.add_unit("block.0");
///     model.add_parameter(block, {.name = "wq", .shape = {512, 512}});
///     auto head = model.add_unit("head");
///     model.tie(head, "out", embed, "tokens");      // one weight, used by two units
///     model.add_parameter({.name = "scale", .shape = {1}});   // root unit
#pragma once

#include "troupe/core/dtype.hpp"
#include "troupe/core/error.hpp"
#include "troupe/core/ids.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

using Shape = std::vector<std::int64_t>;

/// Number of elements; 1 for a scalar (an empty shape). Precondition: no extent is negative.
std::int64_t numel(const Shape& shape);
std::string to_string(const Shape& shape);  ///< "(4, 16)"

struct ParameterSpec {
  std::string name = {};  ///< unique within its unit
  Shape shape = {};
  DType dtype = DType::f32;  ///< of the unsharded parameter; main weights are fp32
  bool trainable = true;     ///< a frozen parameter is gathered where it is used and never reduced
  std::string group = {};    ///< process group that shares it; empty: the data-parallel group
};

/// One parameter as the model holds it.
struct Parameter {
  ParameterId id = 0;
  std::string full_name;  ///< "block.0.wq"; of the root unit just "scale"
  ParameterSpec spec;
  UnitId unit = 0;              ///< the unit that it was added to
  std::vector<UnitId> used_by;  ///< all units that use it, ascending; more than one if tied
  std::int64_t numel = 0;
};

/// A parameter under the name by which one unit knows it (tied parameters have several).
struct UnitParameter {
  std::string name;
  ParameterId parameter = 0;
};

struct Unit {
  UnitId id = 0;
  std::string name;
  UnitId parent = no_unit;  ///< the unit that is open while this one is used, if any
  std::vector<UnitParameter> parameters;
};

/// Thread rules: a plain value. Errors: every `add_…` throws `Error` (bad_configuration) that names
/// what was wrong and what is expected; the model is then unchanged.
class Model {
 public:
  /// `parent` is a unit whose use encloses the uses of this one (composite layers); the memory
  /// plan then holds room for both.
  UnitId add_unit(std::string name, UnitId parent = no_unit);
  ParameterId add_parameter(UnitId unit, ParameterSpec spec);
  /// A parameter outside any unit: it joins the root unit, which is made with the first of them.
  ParameterId add_parameter(ParameterSpec spec);
  /// Lets `unit` use a parameter of another unit under a name of its own.
  void tie(UnitId unit, std::string name, UnitId owner, std::string_view owner_name);

  /// `Error` if there is no such parameter.
  void set_trainable(ParameterId parameter, bool trainable);

  const std::vector<Unit>& units() const { return units_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  /// The root unit, or `no_unit` if every parameter was given to a unit.
  UnitId root() const { return root_; }
  /// Id by full name, or by the name that a tie gave it ("head.out"). Nothing found: `Error` that
  /// lists the nearest names.
  ParameterId parameter(std::string_view full_name) const;
  /// Id of the unit of that name; `Error` otherwise.
  UnitId unit(std::string_view name) const;
  std::int64_t numel_total() const;

  /// Units that are open around `unit` when it is used: its parents, and the root unit.
  std::vector<UnitId> ancestors(UnitId unit) const;

 private:
  std::string full_name(UnitId unit, std::string_view name) const;
  // Each throws `Error` and changes nothing. Where a unit may be the root unit that is not made
  // yet, it is given as `no_unit` (the value of `root_` until then).
  void check_unit(UnitId unit, std::string_view role) const;
  std::string check_name(UnitId unit, std::string_view name) const;  // its full name
  std::string check_parameter(UnitId unit, const ParameterSpec& spec) const;
  ParameterId insert_parameter(UnitId unit, std::string full_name, ParameterSpec spec);

  std::vector<Unit> units_;
  std::vector<Parameter> parameters_;
  UnitId root_ = no_unit;
  std::map<std::string, UnitId, std::less<>> unit_by_name_;
  std::map<std::string, ParameterId, std::less<>> parameter_by_name_;  // ties too
};

}  // namespace troupe
