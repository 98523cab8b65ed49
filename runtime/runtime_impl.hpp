/// The inside of a Runtime: memory, open uses, and the translation of calls into trainer events.
/// Split over runtime_setup.cpp (construction), runtime_agreement.cpp (with other ranks),
/// runtime_uses.cpp (scopes), runtime_views.cpp, runtime_gradients.cpp, runtime_streams.cpp
/// (waiting), runtime_update.cpp, runtime_replan.cpp, runtime_renewal.cpp (a step given up),
/// runtime_checkpoint.cpp (what checkpoints need) and runtime.cpp (the rest).
#pragma once

#include "troupe/actors/rank_actors.hpp"
#include "troupe/comm/device.hpp"
#include "troupe/runtime/process_groups.hpp"
#include "troupe/runtime/rank_context.hpp"
#include "troupe/runtime/runtime.hpp"

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

class SaveInProgress;

/// What a trainer's call is refused with.
inline Failure misuse(std::string text) {
  return {.code = ErrorCode::misuse, .text = std::move(text)};
}

class RuntimeImpl : public std::enable_shared_from_this<RuntimeImpl> {
 public:
  RuntimeImpl(World& world, Model model, Options options);
  /// Bounded: waits for what is in flight, or leaves memory behind rather than free it under a
  /// reader.
  ~RuntimeImpl();
  RuntimeImpl(const RuntimeImpl&) = delete;
  RuntimeImpl& operator=(const RuntimeImpl&) = delete;

  // Scopes (runtime_uses.cpp).
  std::uint32_t begin_use(UnitId unit, bool backward, Stream* stream);
  void skip_use(UnitId unit, bool backward);
  void reshard();
  void begin_micro_batch(MicroBatchOptions micro_batch);
  void begin_eval();
  void end_scope(ScopeId id) noexcept;
  void abandon_scope(ScopeId id) noexcept;
  TensorView parameter(std::uint32_t use, std::string_view name) const;
  GradientView gradient(std::uint32_t use, std::string_view name);

  // Gradients (runtime_gradients.cpp).
  /// Returns why the step is given up instead: nothing was divided, parameters await an update.
  std::optional<Failure> finish_gradients(float loss_scale);
  GradientNorm gradient_norm();
  GradientNorm clip_gradients(float max_norm);

  // Updates (runtime_update.cpp), exports and the report (runtime.cpp).
  void begin_update(Stream* stream);
  void finish_update(BucketId bucket, Stream* stream, bool changed);
  /// `complete`: every bucket is finished; `half`: shards may have been written, and not all are.
  void end_update(bool complete, bool half);
  ShardView shard(BucketId bucket, Stream* stream = nullptr);
  void put_back(BucketId bucket, Stream* stream);
  /// This rank's main weights and gradients in fp32: where they are stored, or widened on `stream`
  /// into the room that there is for one shard, until the next call. Refused (misuse) while an
  /// update uses it for another shard.
  std::span<float> main_weights(BucketId bucket, Stream& stream);
  std::span<const float> main_gradients(BucketId bucket, Stream& stream);
  /// Main weights from element `offset` of this rank's shard on, as they are stored.
  void store_weights(BucketId bucket, std::int64_t offset, const float* values, std::int64_t numel);
  /// Of the main weights of parameters of `dtype`.
  DType weight_dtype(DType dtype) const {
    return dtype == DType::f32 ? DType::f32 : options.main_weight_dtype;
  }
  void initialize(const std::function<void(ParameterView)>& fill, Update& update);
  std::vector<float> full_parameter(std::string_view full_name);
  Report report() const;
  /// Weights, state and counts of another plan of the same parameters (runtime_replan.cpp).
  void take_over(RuntimeImpl& old);

  // Checkpoints (runtime_checkpoint.cpp).
  /// Refused unless it is between steps; then waits until all updates are done. `drops`: the call
  /// has no use for finished gradients that await their update.
  void require_between_steps(const char* what, bool drops = false);
  /// Refused if some parameters have no values yet.
  void require_initialised(const char* what) const;
  /// What each rank has to say, by rank. Collective. `label`: a literal, for messages
  std::vector<std::string> exchange(const char* label, const std::string& own);
  /// The whole of a bucket, in fp32 main weights; of experts, that of this rank's group.
  /// Collective.
  Buffer gather_bucket(BucketId bucket);
  /// The same buffer on every rank, that of `root`. Collective.
  void broadcast_bucket(const Buffer& full, int root);
  /// The save that `finish` or the next save makes complete, if there was one.
  std::shared_ptr<SaveInProgress> save;

  /// In the bucket actor's own view, which lags behind the scheduler's by messages in flight.
  BucketState state(BucketId bucket) const { return actors_->state(bucket); }

  /// One call of the trainer: the rank's guard, then what an ended scope could not throw.
  class [[nodiscard]] Call {
   public:
    Call(RuntimeImpl& runtime, const char* what) : guard_(runtime.context, what) {
      if (runtime.deferred_) {
        Error error(*runtime.deferred_);
        runtime.deferred_.reset();
        throw std::move(error);
      }
    }

   private:
    RankContext::Call guard_;
  };
  // A step given up (runtime_renewal.cpp), called by the context in this order.

  /// Finished steps, if the one under way is given up.
  std::uint64_t steps_kept() const;
  std::string open_scope() const;
  /// Waits until its collectives have ended. Why not, or empty.
  std::string settle(TimePoint deadline);
  const std::vector<Stream*>& streams() const { return streams_; }
  bool half_updated() const;
  RuntimeStatement statement() const;
  bool end_actors();
  /// As new on the context's new actors. `common_steps`: finished, on all ranks from now on;
  /// `keep_save`: all ranks still have the asynchronous save.
  void renew(std::uint64_t common_steps, bool keep_save);
  /// Once all ranks are ready.
  void resume();

  /// Keeps a failure of a scope's end for the next call.
  void defer(Failure failure);
  /// At the end of the runtime there is no next call: the world hears of it.
  void report_deferred();

  World& world;
  RankContext& context;
  RankActors& rank;
  Device& device;
  const Model model;
  const Options options;
  const DeviceMesh mesh;  ///< resolved
  const BucketPlan plan;
  const std::vector<BucketLayout> layouts;
  const MemoryPlan memory;

  // The trainer's own state.
  std::uint64_t steps = 0;
  bool gradients_finished = false;
  std::vector<std::uint64_t> versions;  ///< per bucket
  /// Optimizer state by name; per bucket, empty where nobody has asked for it.
  std::map<std::string, std::vector<Buffer>, std::less<>> states;
  /// Which of them were asked for, here and on every rank, also where this one's shard is empty.
  std::map<std::string, std::vector<bool>, std::less<>> states_made;
  std::map<std::string, std::vector<std::uint64_t>, std::less<>> counts;  ///< per parameter
  std::span<float> state(std::string_view name, BucketId bucket);

 private:
  struct OpenUse {
    bool open = false;
    UnitId unit = 0;
    bool backward = false;
    Stream* stream = nullptr;
    std::vector<UsedBucket> buckets;
    std::vector<std::uint32_t> contributed;  ///< places of the unit, if gradients are checked
    ComputeLog::Open computing;
  };
  /// A parameter as a unit finds it.
  struct Place {
    std::string_view name;
    const Parameter* parameter = nullptr;
    BucketId bucket = 0;
    std::uint32_t index = 0;  ///< within the bucket
    Range range;              ///< within the full buffer
  };
  /// Which parameters of a filling gradient slot have been written.
  struct GradientSlot {
    BucketId bucket = no_bucket;
    std::vector<bool> written;
  };

  void give_up_save();
  void agree_with_other_ranks();
  void agree_on_order(AgreedOrder recorded);
  Range own_range(BucketId bucket) const;
  Range kept_range(BucketId bucket) const;
  bool weights_in_slot(BucketId bucket) const;
  float* wide_room(BucketId bucket, std::int64_t offset);
  DType gradient_dtype() const { return options.gradient_dtype.value_or(options.reduce_dtype); }
  float divisor_of(const Bucket& bucket) const;
  void allocate();
  void spawn();
  void find_places();
  void check_stream(Stream* stream) const;
  void admit(Stream* stream);
  bool await_streams(Duration limit);
  bool await_event(const Event& event, TimePoint deadline, bool or_failed);
  void await_update(BucketId bucket, Stream* stream);
  void await_uses(Stream* stream);
  void await_work(const Event& event, Stream* stream, const std::string& what, BucketId bucket);
  const OpenUse& open_use(std::uint32_t use) const;
  const Place& place(UnitId unit, std::string_view name) const;
  const UsedBucket& used(const OpenUse& use, BucketId bucket) const;
  void await(const UsedBucket& bucket, Stream* stream);
  const Answer& ask(TrainerEvent event);
  void check_unit(UnitId unit) const;
  void note_reduced(const Answer& answer);
  void note_filling(const std::vector<UsedBucket>& buckets);
  Unwritten unwritten_of(const std::vector<UsedBucket>& buckets) const;
  Ranges unwritten(const GradientSlot& slot) const;
  void end_use(std::uint32_t use);
  void close(OpenUse& use, bool abandoned);
  void check_gradients(const OpenUse& use);
  void check_finished(const char* call) const;
  std::optional<Failure> find_unused();
  void divide_gradients(const std::vector<BucketId>& unreduced, float loss_scale);
  GradientNorm measure_gradients();
  void note_closed(ScopeKind kind);
  ScheduleCounters schedule() const;
  /// Slot bytes, at any time.
  struct MostHeld {
    std::int64_t unsharded = 0;
    std::int64_t gradients = 0;
  };
  MostHeld most_held() const;
  void note_step_end();
  /// What a step given up has launched, and its time, are not those of the next one.
  void forget_step();
  Buffer gather_bucket(BucketId bucket, DType dtype, const void* own);
  void place_whole(const RuntimeImpl& old,
                   BucketId from,
                   const float* whole,
                   std::string_view state);
  std::string describe(const OpenUse& use) const;
  void await_launches();

  // Memory, before the actors that work on it.
  Buffer main_weights_;
  Buffer main_gradients_;
  Buffer parameter_slots_;
  Buffer gradient_slots_memory_;
  Buffer gradient_staging_;
  Buffer kept_parameters_;
  Buffer wide_shard_;                 ///< fp32: weights, from `wide_gradients_` on gradients
  std::int64_t wide_gradients_ = 0;   ///< elements
  BucketId wide_bucket_ = no_bucket;  ///< whose shard an update has asked for, in there
  ProcessGroups groups_;
  std::vector<std::byte*> weights_of_;    ///< per bucket
  std::vector<std::byte*> gradients_of_;  ///< per bucket; null: frozen
  std::vector<std::byte*> kept_of_;       ///< per bucket; null: nothing is kept
  SlotTable table_;
  std::unique_ptr<RuntimeActors> actors_;

  std::vector<std::vector<Place>> places_;  ///< per unit
  std::vector<OpenUse> uses_;
  std::vector<GradientSlot> gradient_slots_;
  std::vector<SlotId> filling_;   ///< per bucket: its gradient slot, or no_slot
  std::vector<Event> updated_;    ///< per bucket: end of its last update
  std::vector<Stream*> streams_;  ///< that the trainer has computed on
  std::optional<Failure> deferred_;
  std::vector<bool> contributed_;    ///< per parameter: it got a gradient in this step
  std::uint64_t micro_batches_ = 0;  ///< begun in this step
  bool in_micro_batch_ = false;
  bool in_eval_ = false;
  bool updating_ = false;
  bool half_updated_ = false;
  bool updated_since_ = false;        ///< since `finish_gradients`
  ScheduleCounters schedule_before_;  ///< of the epochs before
  MostHeld most_held_before_;         ///< in them
  ComputeLog::Open update_;           ///< while `updating_`
  std::array<std::uint64_t, collective_count> launches_at_step_{};
  std::array<std::uint64_t, collective_count> launches_last_step_{};
  std::array<std::uint64_t, collective_count> bytes_at_step_{};
  std::array<std::uint64_t, collective_count> bytes_last_step_{};
  TraceRow steps_row_ = 0;  ///< if there is a trace
  std::optional<TrainerTime::Reading> step_began_;
  std::optional<StepTime> time_last_step_;
  StepTime time_steps_;
  std::uint64_t steps_timed_ = 0;
};

}  // namespace troupe
