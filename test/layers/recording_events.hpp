/// A sink that writes down what it hears, and refuses what it is told to refuse.
#pragma once

#include "troupe/layers/layer_events.hpp"

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::test {

/// Uses are numbered from 0 in the order in which they begin: "forward 2 as #0", "end #0".
class RecordingEvents final : public LayerEvents {
 public:
  std::vector<std::string> log;
  std::optional<UnitId> refused{};  ///< begins of this unit throw `Error`

 protected:
  std::uint32_t begin_use(UnitId unit, bool backward, Stream* /*stream*/) override {
    if (unit == refused) {
      throw Error({.code = ErrorCode::misuse, .text = "refused"});
    }
    log.push_back(std::string(backward ? "backward " : "forward ") + std::to_string(unit) +
                  " as #" + std::to_string(use_count_));
    return use_count_++;
  }
  void skip_use(UnitId unit, bool backward) override {
    log.push_back(std::string("skip ") + (backward ? "backward " : "forward ") +
                  std::to_string(unit));
  }
  void begin_micro_batch(MicroBatchOptions options) override {
    log.emplace_back(options.reduce ? "micro_batch" : "micro_batch without a reduce");
  }
  void begin_eval() override { log.emplace_back("eval"); }
  void end_scope(ScopeId id) noexcept override { log.push_back("end " + name(id)); }
  void abandon_scope(ScopeId id) noexcept override { log.push_back("abandon " + name(id)); }
  TensorView parameter(std::uint32_t use, std::string_view name) const override {
    return {.name = name, .numel = use};
  }
  GradientView gradient(std::uint32_t use, std::string_view name) override {
    return {.name = name, .numel = use};
  }

 private:
  static std::string name(ScopeId id) {
    switch (id.kind) {
      case ScopeKind::use:
        return "#" + std::to_string(id.index);
      case ScopeKind::micro_batch:
        return "micro_batch";
      case ScopeKind::eval:
        return "eval";
    }
    return "?";
  }

  std::uint32_t use_count_ = 0;
};

using Log = std::vector<std::string>;

/// What a trainer's computation throws.
struct Boom : std::runtime_error {
  Boom() : std::runtime_error("boom") {}
};

/// The text of the `Error` that `call` throws; empty if it throws none.
template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace troupe::test
