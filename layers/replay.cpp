#include "troupe/layers/replay.hpp"

#include "troupe/layers/scope_stack.hpp"

#include <optional>
#include <utility>

namespace troupe {

Replay::Replay(LayerOrder order, Compute compute)
    : order_(std::move(order)), compute_(std::move(compute)) {
  if (auto valid = check_order(order_); !valid) {
    throw Error(valid.failure());
  }
}

void Replay::run(LayerEvents& events) {
  std::optional<MicroBatch> micro_batch;
  ScopeStack open;  // inside the micro-batch, so it is unwound before it
  ReplayedUse at;
  std::size_t micro_batch_count = 0;
  std::size_t eval_depth = 0;  // scopes around the eval
  bool in_backward = false;
  for (const LayerEvent& event : order_) {
    switch (event.kind) {
      case LayerEvent::Kind::micro_batch:
        micro_batch.reset();
        micro_batch.emplace(events.micro_batch());
        at.micro_batch = micro_batch_count++;
        in_backward = false;
        break;
      case LayerEvent::Kind::eval:
        eval_depth = open.size();
        open.push(events.eval());
        at.eval = true;
        break;
      case LayerEvent::Kind::use: {
        Use use = event.backward ? events.backward(event.unit) : events.forward(event.unit);
        at.unit = event.unit;
        in_backward = in_backward || event.backward;
        at.pass = event.backward            ? Pass::backward
                  : in_backward && !at.eval ? Pass::recompute
                                            : Pass::forward;
        compute_(use, at);
        open.push(std::move(use));
        break;
      }
      case LayerEvent::Kind::end:
        open.pop();
        at.eval = at.eval && open.size() > eval_depth;
        break;
    }
  }
}

}  // namespace troupe
