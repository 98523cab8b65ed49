/// Where layer events go and where they come from.
///
/// `LayerEvents` is the sink: the runtime implements it. A trainer written by hand uses its scopes:
///
///     auto micro_batch = events.micro_batch();
///     { auto use = events.forward(unit);  compute(use["wq"].as<float>()); }
///     { auto use = events.backward(unit); compute(use["wq"], use.gradient("wq")); }
///
/// A framework with an executor of its own derives a `LayerEventSource` that opens and closes the
/// same scopes from its hooks (examples/custom_event_source).
///
/// Thread rules: the calls of one rank form one sequence: any thread, never two at once.
/// Errors: opening a scope throws `Error`; closing one never does: what went wrong is thrown by the
/// next call. A scope that an exception unwinds is abandoned: nothing half-written is reduced and
/// the rank has failed. Lifetimes: a scope ends before its sink does.
#pragma once

#include "troupe/core/ids.hpp"
#include "troupe/core/tensor_view.hpp"

#include <cstdint>
#include <string_view>
#include <utility>

namespace troupe {

class Stream;  // comm/stream.hpp
class LayerEvents;

enum class ScopeKind : std::uint8_t { use, micro_batch, eval };

/// Names an open scope to the sink.
struct ScopeId {
  ScopeKind kind = ScopeKind::use;
  std::uint32_t index = 0;
};

/// Common part of the scopes: ends on destruction, abandons when an exception unwinds it. Moves,
/// does not copy.
class Scope {
 public:
  Scope(Scope&& other) noexcept;
  Scope& operator=(Scope&& other) noexcept;
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope();

  /// Ends the scope early. Later calls and destruction do nothing.
  void end() noexcept;

 protected:
  Scope(LayerEvents& events, ScopeId id);
  /// The sink while the scope is open; `Error` afterwards.
  LayerEvents& events() const;
  ScopeId id() const { return id_; }

 private:
  LayerEvents* events_;
  ScopeId id_;
  int exceptions_;  // in flight when the scope was opened
};

/// The parameters of a unit, gathered, for as long as the use is open.
class Use : public Scope {
 public:
  /// A parameter by the unit's own name for it; valid until the use ends. `Error` if there is none.
  TensorView operator[](std::string_view name) const;
  /// In a backward: where the gradient of a trainable parameter goes; valid until the use ends.
  /// Says whether to overwrite or to add; ask once for each contribution.
  GradientView gradient(std::string_view name) const;

 private:
  friend class LayerEvents;
  using Scope::Scope;
};

struct MicroBatchOptions {
  /// false: nothing is reduced; gradients stay in the full buffers of their buckets, and the next
  /// micro-batch adds to them. The same on every rank.
  bool reduce = true;
};

/// One micro-batch: every training use lies inside one. Its end reduces what is left.
class MicroBatch : public Scope {
  friend class LayerEvents;
  using Scope::Scope;
};

/// An evaluation pass: forwards only, with an order of its own; leaves training undisturbed.
class Eval : public Scope {
  friend class LayerEvents;
  using Scope::Scope;
};

class LayerEvents {
 public:
  LayerEvents() = default;
  LayerEvents(const LayerEvents&) = delete;
  LayerEvents& operator=(const LayerEvents&) = delete;
  virtual ~LayerEvents() = default;

  /// Begins a use of `unit`. `stream` is where the computation is issued: null means on the calling
  /// thread, then the parameters are ready on return; otherwise `stream` is made to wait for them.
  Use forward(UnitId unit, Stream* stream = nullptr);
  Use backward(UnitId unit, Stream* stream = nullptr);
  /// This rank does not use `unit` where others do. Said at that place of its sequence, for the
  /// forward and for the backward alike, so that it takes part in their collectives, with zeros.
  /// Needed under full_shard; the other strategies find out by themselves.
  void skip(UnitId unit, Pass pass = Pass::forward);
  MicroBatch micro_batch(MicroBatchOptions options = {});
  Eval eval();

 protected:
  friend class Scope;
  friend class Use;
  virtual std::uint32_t begin_use(UnitId unit, bool backward, Stream* stream) = 0;
  virtual void skip_use(UnitId unit, bool backward) = 0;
  virtual void begin_micro_batch(MicroBatchOptions options) = 0;
  virtual void begin_eval() = 0;
  virtual void end_scope(ScopeId id) noexcept = 0;
  virtual void abandon_scope(ScopeId id) noexcept = 0;
  virtual TensorView parameter(std::uint32_t use, std::string_view name) const = 0;
  virtual GradientView gradient(std::uint32_t use, std::string_view name) = 0;
};

/// Something that drives the layers of a model and says so to a sink.
class LayerEventSource {
 public:
  LayerEventSource() = default;
  LayerEventSource(const LayerEventSource&) = delete;
  LayerEventSource& operator=(const LayerEventSource&) = delete;
  virtual ~LayerEventSource() = default;
  /// Runs one micro-batch (or whatever the source deals in) with its events.
  virtual void run(LayerEvents& events) = 0;
};

}  // namespace troupe
