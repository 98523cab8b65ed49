#include "troupe/layers/layer_order.hpp"

#include "troupe/core/text.hpp"

#include <utility>

namespace troupe {

namespace {

using Kind = LayerEvent::Kind;
using detail::concat;

void append_uses(LayerOrder& order, const std::vector<PredictedUse>& uses) {
  for (const PredictedUse& use : uses) {
    // A recomputation is a forward; the schedule tells it by what came before.
    order.push_back({Kind::use, use.unit, use.pass == Pass::backward});
    order.push_back({Kind::end});
  }
}

std::string describe(const LayerEvent& event) {
  switch (event.kind) {
    case Kind::micro_batch:
      return "a micro-batch";
    case Kind::eval:
      return "an eval";
    case Kind::use:
      return concat("a ", to_string(event.backward ? Pass::backward : Pass::forward), " of unit ",
                    event.unit);
    case Kind::end:
      return "an end";
  }
  return "?";
}

}  // namespace

LayerOrder training_order(const std::vector<std::vector<PredictedUse>>& segments) {
  LayerOrder order;
  for (const std::vector<PredictedUse>& uses : segments) {
    order.push_back({Kind::micro_batch});
    append_uses(order, uses);
  }
  return order;
}

LayerOrder eval_order(const std::vector<std::vector<PredictedUse>>& segments) {
  LayerOrder order{{Kind::eval}};
  for (const std::vector<PredictedUse>& uses : segments) {
    append_uses(order, uses);
  }
  order.push_back({Kind::end});
  return order;
}

Result<void> check_order(const LayerOrder& order) {
  detail::OrderNesting nesting("event");
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (auto wrong = nesting.add(order[i], i + 1)) {
      return detail::failure(ErrorCode::misuse, concat("order of layer events: event ", i + 1,
                                                       " is ", describe(order[i]), *wrong));
    }
  }
  if (auto wrong = nesting.finish()) {
    return detail::failure(ErrorCode::misuse, concat("order of layer events: it ends", *wrong));
  }
  return {};
}

namespace detail {

std::string OrderNesting::describe(const Open& open) const {
  const char* what = open.event.kind == Kind::eval ? "the eval"
                     : open.event.backward         ? "the backward"
                                                   : "the forward";
  return concat(what, " begun in ", noun_, " ", open.place);
}

std::optional<std::string> OrderNesting::add(const LayerEvent& event, std::size_t place) {
  switch (event.kind) {
    case Kind::micro_batch:
      if (!open_.empty()) {
        return concat(" inside ", describe(open_.back()), "; expected the 'end' of that first");
      }
      in_micro_batch_ = true;
      return std::nullopt;
    case Kind::eval:
      if (eval_) {
        return concat(" inside ", describe(open_[*eval_]), "; expected the 'end' of that first");
      }
      eval_ = open_.size();
      break;
    case Kind::use:
      if (!eval_ && !in_micro_batch_) {
        return std::string(
            " outside a micro-batch and eval; expected 'micro_batch' or 'eval' first");
      }
      if (eval_ && event.backward) {
        return concat(" inside ", describe(open_[*eval_]),
                      "; expected only forwards until the 'end' of that");
      }
      break;
    case Kind::end:
      if (open_.empty()) {
        return std::string(
            " with nothing to end; expected a begun use or an eval before it (a micro-batch lasts "
            "until the next one)");
      }
      open_.pop_back();
      if (eval_ == open_.size()) {
        eval_.reset();
      }
      return std::nullopt;
  }
  open_.push_back({event, place});
  return std::nullopt;
}

std::optional<std::string> OrderNesting::finish() const {
  if (open_.empty()) {
    return std::nullopt;
  }
  return concat(" inside ", describe(open_.back()), "; expected the 'end' of that first");
}

}  // namespace detail

}  // namespace troupe
