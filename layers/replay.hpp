/// Runs an order of layer events (a file, or a record of what ran) on a sink and lets the trainer
/// compute in each use:
///
///     troupe::Replay replay(order, [&](troupe::Use& use, const troupe::ReplayedUse& at) {
///       if (at.pass == troupe::Pass::backward) { … use["wq"], use.gradient("wq") … }
///     });
///     for (…) { replay.run(runtime);  runtime.finish_gradients();  optimizer.step(runtime); }
///
/// Thread rules: as the sink's. Errors: what the sink or the callback throws leaves `run`; every
/// open scope is then abandoned, innermost first.
#pragma once

#include "troupe/core/ids.hpp"
#include "troupe/layers/layer_events.hpp"
#include "troupe/layers/layer_order.hpp"

#include <cstddef>
#include <functional>

namespace troupe {

/// Which use of the order is open.
struct ReplayedUse {
  UnitId unit = 0;
  Pass pass = Pass::forward;    ///< `recompute` as the schedule understands it
  std::size_t micro_batch = 0;  ///< counted from 0 in each run; before the first one 0 too
  bool eval = false;            ///< inside an evaluation pass
};

class Replay final : public LayerEventSource {
 public:
  /// Called at the begin of each use, before what lies inside it. The use stays open until its end
  /// in the order, but `use` itself is valid during the call only; views taken from it last longer.
  using Compute = std::function<void(Use& use, const ReplayedUse& at)>;

  /// `Error` (misuse) if `check_order` refuses the order.
  Replay(LayerOrder order, Compute compute);

  /// The whole order, once.
  void run(LayerEvents& events) override;

  const LayerOrder& order() const { return order_; }

 private:
  const LayerOrder order_;
  const Compute compute_;
};

}  // namespace troupe
