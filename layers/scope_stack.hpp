/// Open scopes, innermost last: for event sources that are driven by hooks and cannot keep a scope
/// on the call stack. When an exception unwinds it, the innermost scope is abandoned first, so that
/// the failure names the layer that was at work.
#pragma once

#include "troupe/core/error.hpp"
#include "troupe/layers/layer_events.hpp"

#include <cstddef>
#include <utility>
#include <vector>

namespace troupe {

class ScopeStack {
 public:
  ScopeStack() = default;
  ScopeStack(const ScopeStack&) = delete;
  ScopeStack& operator=(const ScopeStack&) = delete;
  ~ScopeStack() {
    while (!scopes_.empty()) {
      scopes_.pop_back();  // a vector's own destructor would begin with the outermost
    }
  }

  /// Keeps a scope open. Views taken from a `Use` before stay valid until it is popped.
  void push(Scope&& scope) { scopes_.push_back(std::move(scope)); }
  /// Ends the innermost scope. `Error` (misuse) if none is open.
  void pop() {
    if (scopes_.empty()) {
      throw Error({.code = ErrorCode::misuse, .text = "an end without a begin: no scope is open"});
    }
    scopes_.pop_back();
  }
  std::size_t size() const { return scopes_.size(); }

 private:
  std::vector<Scope> scopes_;
};

}  // namespace troupe
