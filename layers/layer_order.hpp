/// An order of layer events as a value: what a replay runs, and what an order file holds.
///
/// Uses and evals nest. A micro-batch lasts until the next one begins or the order ends, so an eval
/// behind its uses lies inside it.
#pragma once

#include "troupe/core/error.hpp"
#include "troupe/core/ids.hpp"
#include "troupe/core/use_order.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct LayerEvent {
  enum class Kind : std::uint8_t {
    micro_batch,  ///< one begins; the one before it ends
    eval,         ///< one begins
    use,          ///< one begins, of `unit`
    end,          ///< of the innermost open use or eval
  };
  Kind kind = Kind::end;
  UnitId unit = no_unit;
  bool backward = false;
  bool operator==(const LayerEvent&) const = default;
};

using LayerOrder = std::vector<LayerEvent>;

/// What is recorded or predicted for training (`Schedule::predicted(false)`), a micro-batch for
/// each segment. A record does not say which uses lay inside others: every use is a whole one.
LayerOrder training_order(const std::vector<std::vector<PredictedUse>>& segments);
/// The same for evaluation: one eval around all segments.
LayerOrder eval_order(const std::vector<std::vector<PredictedUse>>& segments);

/// Whether the events may follow each other: uses inside a micro-batch or eval, no backward and no
/// eval inside eval, every use and eval ended. A `Failure` (misuse) names the first event, counted
/// from 1, that may not stand where it does. Whether the units exist is for the sink to say.
Result<void> check_order(const LayerOrder& order);

namespace detail {

/// What is open at a place of an order, as its events come one by one.
class OrderNesting {
 public:
  /// `noun`: what places count, "line" or "event".
  explicit OrderNesting(std::string_view noun) : noun_(noun) {}
  /// Why `event` may not come next, to be read behind "found 'backward x'"; then nothing changes.
  std::optional<std::string> add(const LayerEvent& event, std::size_t place);
  /// Why the order may not end here, to be read behind "found its end".
  std::optional<std::string> finish() const;

 private:
  struct Open {
    LayerEvent event;
    std::size_t place = 0;
  };
  std::string describe(const Open& open) const;

  std::string_view noun_;
  std::vector<Open> open_;
  std::optional<std::size_t> eval_;  ///< index in `open_`
  bool in_micro_batch_ = false;
};

}  // namespace detail

}  // namespace troupe
