#include "troupe/layers/layer_events.hpp"

#include <exception>

namespace troupe {

Scope::Scope(LayerEvents& events, ScopeId id)
    : events_(&events), id_(id), exceptions_(std::uncaught_exceptions()) {}

Scope::Scope(Scope&& other) noexcept
    : events_(std::exchange(other.events_, nullptr)),
      id_(other.id_),
      exceptions_(other.exceptions_) {}

Scope& Scope::operator=(Scope&& other) noexcept {
  if (this != &other) {
    end();
    events_ = std::exchange(other.events_, nullptr);
    id_ = other.id_;
    exceptions_ = other.exceptions_;
  }
  return *this;
}

Scope::~Scope() {
  if (events_ != nullptr && std::uncaught_exceptions() > exceptions_) {
    std::exchange(events_, nullptr)->abandon_scope(id_);
  }
  end();
}

void Scope::end() noexcept {
  if (events_ != nullptr) {
    std::exchange(events_, nullptr)->end_scope(id_);
  }
}

LayerEvents& Scope::events() const {
  if (events_ == nullptr) {
    throw Error({.code = ErrorCode::misuse,
                 .text = "this use has ended (or was moved from); its parameters are gone"});
  }
  return *events_;
}

TensorView Use::operator[](std::string_view name) const {
  return events().parameter(id().index, name);
}

GradientView Use::gradient(std::string_view name) const {
  return events().gradient(id().index, name);
}

Use LayerEvents::forward(UnitId unit, Stream* stream) {
  return Use(*this, {ScopeKind::use, begin_use(unit, false, stream)});
}

Use LayerEvents::backward(UnitId unit, Stream* stream) {
  return Use(*this, {ScopeKind::use, begin_use(unit, true, stream)});
}

void LayerEvents::skip(UnitId unit, Pass pass) {
  skip_use(unit, pass == Pass::backward);
}

MicroBatch LayerEvents::micro_batch(MicroBatchOptions options) {
  begin_micro_batch(options);
  return MicroBatch(*this, {ScopeKind::micro_batch, 0});
}

Eval LayerEvents::eval() {
  begin_eval();
  return Eval(*this, {ScopeKind::eval, 0});
}

}  // namespace troupe
