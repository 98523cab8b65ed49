/// What a trainer embeds: parameters, gradients and optimizer state of one model, sharded over the
/// ranks of a world, with communication hidden behind computation.
///
///     troupe::Runtime runtime(world, model, {.strategy = troupe::Strategy::full_shard});
///     runtime.initialize([&](troupe::ParameterView p) { … fill p.data … });
///     for (…) {
///       for (…) {
///         auto micro_batch = runtime.micro_batch();
///         for (auto unit : forward)  { auto use = runtime.forward(unit);  compute(use["wq"], …); }
///         for (auto unit : backward) { auto use = runtime.backward(unit); compute(use["wq"],
///         use.gradient("wq"), …); }
///       }
///       runtime.finish_gradients();
///       optimizer.step(runtime);
///     }
///
/// Every call that is marked *collective* is made by all ranks at the same place of their sequence;
/// that includes each use, since a use may gather. Ranks whose calls lead to other launches are
/// found out before data moves, and named on every rank.
///
/// Lifetimes: scopes and updates end before their runtime, the runtime before the world's body
/// does. Thread rules: see World. Errors: `Error`; after a failure of the world every call throws
/// the first one. A refused call (misuse) changes nothing.
#pragma once

#include "troupe/core/bucket_layout.hpp"
#include "troupe/core/bucket_plan.hpp"
#include "troupe/core/memory_plan.hpp"
#include "troupe/core/model.hpp"
#include "troupe/layers/layer_events.hpp"
#include "troupe/runtime/options.hpp"
#include "troupe/runtime/report.hpp"
#include "troupe/runtime/world.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace troupe {

class Runtime;
class RuntimeImpl;

/// This rank's part of one bucket, inside an update.
struct ShardView {
  BucketId bucket = 0;
  bool trainable = true;
  /// (own numel) main weights in fp32: parameters and the gaps between them; empty if another rank
  /// owns the bucket (owner_broadcast). Keep gaps zero:
  /// element-wise updates with a zero gradient and weight do, and `pieces` names what is not a gap.
  std::span<float> weights;
  /// (own numel) fp32, averaged; zero in gaps and where nothing was contributed. Empty if the
  /// bucket is frozen, or if `finish_gradients` was not called since the last micro-batch.
  std::span<const float> gradients;
  /// Which parts of which parameters lie here; `index` counts
  /// `BucketPlan::buckets[bucket].parameters`.
  std::vector<ShardPiece> pieces;
};

/// Of all gradients together; the same bits on every rank.
struct GradientNorm {
  double norm = 0;     ///< L2, each parameter counted once; not finite if an element is not
  bool finite = true;  ///< whether every element on every rank is a finite number
};

/// The only time in which parameters change: from here until `finish` nothing reads the shards. The
/// gradients that it reads are those of the last step as long as no micro-batch ends.
class Update {
 public:
  Update(Update&& other) noexcept;
  Update(const Update&) = delete;
  Update& operator=(const Update&) = delete;
  Update& operator=(Update&&) = delete;
  /// Finishes what is left; the next call throws if that failed.
  ~Update();

  /// All buckets in plan order.
  std::size_t shard_count() const;
  /// A frozen bucket whose shard nobody asks for has not changed: where full buffers stay, it is
  /// not gathered again. Every rank asks for the same ones.
  ///
  /// Where main weights or gradients are stored in bf16, a view is of a widened copy, which
  /// `finish` stores, rounded to nearest even; for that there is room for one shard at a time:
  /// asking for another one before is refused (misuse).
  ShardView shard(std::size_t index);
  /// Stores such a copy without finishing the bucket; it may be asked for again.
  void put_back(std::size_t index);
  /// The bucket is up to date as far as the update's stream has got: it may be gathered again, also
  /// while later buckets are still being updated. Collective in effect (it may prefetch).
  void finish(BucketId bucket);
  Runtime& runtime() { return *owner_; }

 private:
  friend class Runtime;
  Update(Runtime& owner, RuntimeImpl& runtime, Stream* stream);

  Runtime* owner_;
  RuntimeImpl* runtime_;
  Stream* stream_;
  std::vector<bool> finished_;
  std::vector<bool> seen_;  ///< whose shards the trainer has asked for
  int exceptions_;
};

class Runtime final : public LayerEvents {
 public:
  /// Collective. `Error` (bad_configuration) names the field, unit or parameter, also when ranks
  /// disagree about the model or the options. All memory of a step is allocated here.
  Runtime(World& world, Model model, Options options = {});
  /// Waits for what is in flight. While an exception unwinds, this is left to the world.
  ~Runtime() override;
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Calls `fill` for every parameter with room for the whole of it and keeps this rank's part.
  /// Every rank has to fill in the same values. No more than one parameter is held unsharded at a
  /// time. Collective in effect.
  void initialize(const std::function<void(ParameterView)>& fill);

  // The step: scopes are in LayerEvents (`micro_batch`, `forward`, `backward`, `eval`).

  /// Waits until every gradient of the step is summed, and divides it once, by the divisor of the
  /// options times `loss_scale`: what the loss was multiplied with. Collective.
  void finish_gradients(float loss_scale = 1.0F);
  /// Of the finished gradients. The verdict is the same on all ranks, also those without a shard.
  /// Collective.
  GradientNorm gradient_norm();
  /// Divides the finished gradients by norm / max_norm if the norm is larger than `max_norm`;
  /// leaves them as they are if it is not finite. Returns the norm before. Collective.
  GradientNorm clip_gradients(float max_norm);
  /// Waits until nothing reads the shards. `stream` is where shards are written: null means on the
  /// calling thread. Collective.
  Update update(Stream* stream = nullptr);

  /// A step that is left out: an update that changes nothing. Collective.
  void skip_update();
  /// Freezes parameters, or lets them be trained from now on, and plans anew: buckets, slots and
  /// what was given by reference (also `model`, `options`) is gone afterwards. Weights move to
  /// their new places, and state of parameters that stay trainable; one that is frozen loses its
  /// state and counts from 0 when it is trained again. Between steps only, behind the update. Old
  /// and new memory exist together for a moment. Collective.
  void set_trainable(const std::vector<std::string>& full_names, bool trainable);

  /// Gives up the step under way, outside of all scopes: what it has launched is aborted, its
  /// gradients are dropped, and parameters and optimizer state are those of the last update.
  /// Collective, wherever the ranks are: if the world has not failed yet, this call makes it fail
  /// ("rank 1 has given up step 4: <reason>"), and the others, who hear that as an `Error` from
  /// their next call, catch it and call this, too. Then all go on with the next micro-batch or eval
  /// pass. One call is for all runtimes of the rank. It also mends a world that has failed by
  /// itself (a misuse, a mismatch, a peer that threw).
  ///
  ///     try { step(); } catch (const std::exception& error) { runtime.abort_step(error.what()); }
  ///
  /// Communicators are new and tickets start at 1. `steps()` (without the step given up),
  /// `version`, states and counts stay. The order of uses is learned anew. Streams passed
  /// to a use or an update are waited for and work again, whatever failed on them; their events
  /// recorded so far count as done.
  ///
  /// `Error` (misuse) while a scope, use or update is open on this rank; nothing is changed then.
  /// `Error`, the same on all ranks, and the world has failed for good: a rank does not come within
  /// the world's timeout or has left; ranks do not stand behind the same update; a rank was inside
  /// one; a stream cannot be used again; ranks have different numbers of runtimes.
  void abort_step(std::string_view reason = {});

  /// Gives back the buffers of all parameters that are not in use; the next use gathers again.
  /// full_shard only, elsewhere refused (misuse). Collective in effect.
  void reshard();

  /// The whole of one parameter, in fp32 main weights; of an expert, that of this rank's group.
  /// Collective; not inside an update.
  std::vector<float> full_parameter(std::string_view full_name);

  // What there is.

  World& world();
  const Model& model() const;
  const Options& options() const;
  const BucketPlan& bucket_plan() const;
  const MemoryPlan& memory_plan() const;
  const BucketLayout& layout(BucketId bucket) const;
  /// Steps finished, counted at `finish_gradients`.
  std::uint64_t steps() const;
  /// How often the parameters of a bucket were updated, initialisation included.
  std::uint64_t version(BucketId bucket) const;
  /// Whether gradients are complete and no micro-batch has begun since.
  bool gradients_finished() const;
  Report report() const;

  // Optimizer state lives in the runtime, by name, so that it is divided, saved and loaded with the
  // weights. Optimizers of different kinds use different names ("adamw.m"); those of one kind share
  // them, each for its own parameters. Names are the same on every rank.

  /// Of this rank's shard of a bucket: as long as `ShardView::weights`, fp32, zero at first; gaps
  /// stay zero. Counted in the report. Valid until the runtime ends or is planned anew.
  std::span<float> state(std::string_view name, BucketId bucket);
  /// A count for each parameter of the model, such as the updates it has seen; 0 at first. The same
  /// on every rank.
  std::span<std::uint64_t> counts(std::string_view name);

  RuntimeImpl& impl() { return *impl_; }

 protected:
  std::uint32_t begin_use(UnitId unit, bool backward, Stream* stream) override;
  void skip_use(UnitId unit, bool backward) override;
  void begin_micro_batch(MicroBatchOptions options) override;
  void begin_eval() override;
  void end_scope(ScopeId id) noexcept override;
  void abandon_scope(ScopeId id) noexcept override;
  TensorView parameter(std::uint32_t use, std::string_view name) const override;
  GradientView gradient(std::uint32_t use, std::string_view name) override;

 private:
  std::shared_ptr<RuntimeImpl> impl_;
  int exceptions_;
};

}  // namespace troupe
