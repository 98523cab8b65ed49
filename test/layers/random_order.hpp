/// Random orders that `check_order` accepts.
#pragma once

#include "troupe/layers/layer_order.hpp"

#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

namespace troupe::test {

/// From raw engine output, so that a seed means the same everywhere.
inline LayerOrder random_order(std::mt19937& random, std::size_t unit_count) {
  using Kind = LayerEvent::Kind;
  const auto below = [&](std::size_t n) { return random() % n; };
  LayerOrder order;
  std::vector<Kind> open;
  bool in_micro_batch = false;
  const auto begin = [&](const LayerEvent& event) {
    order.push_back(event);
    open.push_back(event.kind);
  };
  const auto end = [&] {
    order.push_back({Kind::end});
    open.pop_back();
  };
  const auto in_eval = [&] { return std::count(open.begin(), open.end(), Kind::eval) > 0; };
  for (std::size_t left = below(60); left > 0; --left) {
    switch (below(8)) {
      case 0:
        if (open.empty()) {
          order.push_back({Kind::micro_batch});
          in_micro_batch = true;
        }
        break;
      case 1:
        if (!in_eval()) {
          begin({Kind::eval});
        }
        break;
      case 2:
      case 3:
      case 4:
        if (!open.empty()) {
          end();
        }
        break;
      default:
        if (in_eval() || in_micro_batch) {
          begin({Kind::use, static_cast<UnitId>(below(unit_count)), !in_eval() && below(2) == 0});
        }
        break;
    }
  }
  while (!open.empty()) {
    end();
  }
  return order;
}

}  // namespace troupe::test
