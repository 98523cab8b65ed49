#include "troupe/runtime/runtime_impl.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

namespace {

/// `Stream::caller()` and null mean the same.
Stream* normalized(Stream* stream) {
  return stream != nullptr && stream->is_caller() ? nullptr : stream;
}

}  // namespace

void RuntimeImpl::defer(Failure failure) {
  if (!deferred_) {
    deferred_ = std::move(failure);
  }
}

const Answer& RuntimeImpl::ask(TrainerEvent event) {
  const Answer& answer = actors_->ask(std::move(event));
  if (answer.refused) {
    Failure failure = *answer.refused;
    failure.rank = context.rank();
    throw Error(std::move(failure));
  }
  if (!options.overlap) {
    await_launches();
  }
  return answer;
}

void RuntimeImpl::report_deferred() {
  if (deferred_) {
    context.body_failed(*deferred_);
    deferred_.reset();
  }
}

void RuntimeImpl::check_unit(UnitId unit) const {
  if (unit >= model.units().size()) {
    throw Error(misuse("unit " + std::to_string(unit) + " does not exist; the model has " +
                       std::to_string(model.units().size()) + " units"));
  }
}

std::uint32_t RuntimeImpl::begin_use(UnitId unit, bool backward, Stream* stream) {
  const Call guard(*this, backward ? "Runtime::backward" : "Runtime::forward");
  stream = normalized(stream);
  check_unit(unit);
  check_stream(stream);
  const Answer& answer =
      ask({.kind = TrainerEventKind::begin_use, .unit = unit, .backward = backward});
  admit(stream);
  note_reduced(answer);
  note_filling(answer.used);
  auto free = std::ranges::find_if(uses_, [](const OpenUse& use) { return !use.open; });
  if (free == uses_.end()) {
    free = uses_.emplace(uses_.end());
  }
  free->open = true;
  free->unit = unit;
  free->backward = backward;
  free->stream = stream;
  free->buckets = answer.used;
  free->contributed.clear();
  try {
    for (const UsedBucket& bucket : free->buckets) {
      await(bucket, stream);
    }
  } catch (...) {
    free->open = false;  // the rank has failed: there is no use to end
    throw;
  }
  free->computing = context.compute_log().begin(stream);
  return static_cast<std::uint32_t>(free - uses_.begin());
}

/// Makes the parameters (and in a backward the gradient slot) of a bucket safe to touch: on the
/// calling thread now, on another stream behind the event. An event can be waited for only once it
/// is recorded, so in any case the launch is awaited.
void RuntimeImpl::await(const UsedBucket& bucket, Stream* stream) {
  const auto wait_for = [&](Ticket ticket, const Event& event, const char* what) {
    if (ticket == 0) {
      return;
    }
    if (stream == nullptr) {
      rank.wait(ticket, [&] { return event.done(); }, what, bucket.bucket);
    } else {
      rank.wait(ticket, [] { return true; }, what, bucket.bucket);
      if (!event.done()) {
        stream->wait(event);
      }
    }
  };
  wait_for(bucket.gather, table_.gathered[bucket.slot], "the gather");
  if (bucket.gradient_slot != no_slot) {
    wait_for(bucket.previous_reduce, table_.reduced[bucket.gradient_slot],
             "the reduce that frees a gradient slot");
  }
}

void RuntimeImpl::begin_micro_batch(MicroBatchOptions micro_batch) {
  const Call guard(*this, "Runtime::micro_batch");
  if (updating_ && row_of(options.strategy).full_buffer == FullBuffer::stays) {
    throw Error(misuse(
        "Runtime::micro_batch inside an update: the micro-batch ends with reduces, and the update "
        "may still read the gradients of the last step; end the update first"));
  }
  const auto began = step_began_ ? *step_began_ : context.compute_log().read();
  ask({.kind = TrainerEventKind::begin_micro_batch, .reduces = micro_batch.reduce});
  gradients_finished = false;
  step_began_ = began;
  ++micro_batches_;
  in_micro_batch_ = true;
}

void RuntimeImpl::begin_eval() {
  const Call guard(*this, "Runtime::eval");
  ask({.kind = TrainerEventKind::begin_eval});
  in_eval_ = true;
}

/// The computation in a use is over, however it ended.
void RuntimeImpl::close(OpenUse& use, bool abandoned) {
  use.open = false;
  context.compute_log().end(use.computing, use.backward ? "backward" : "forward",
                            model.units()[use.unit].name, abandoned);
}

void RuntimeImpl::note_closed(ScopeKind kind) {
  in_micro_batch_ = in_micro_batch_ && kind != ScopeKind::micro_batch;
  in_eval_ = in_eval_ && kind != ScopeKind::eval;
}

void RuntimeImpl::end_scope(ScopeId id) noexcept {
  try {
    // First, and whatever comes next: the trainer has left it.
    note_closed(id.kind);
    if (id.kind == ScopeKind::use) {
      close(uses_[id.index], false);
    }
    if (rank.failed() || context.abandoned()) {
      return;  // the next call throws
    }
    const RankContext::Call guard(context, "the end of a scope");
    switch (id.kind) {
      case ScopeKind::use:
        end_use(id.index);
        break;
      case ScopeKind::micro_batch:
        note_reduced(ask({.kind = TrainerEventKind::end_micro_batch}));
        break;
      case ScopeKind::eval:
        ask({.kind = TrainerEventKind::end_eval});
        break;
    }
  } catch (const Error& error) {
    defer(error.failure());
  } catch (const std::exception& exception) {
    defer({.code = ErrorCode::internal,
           .text = std::string("the end of a scope: ") + exception.what()});
  }
}

void RuntimeImpl::end_use(std::uint32_t index) {
  const OpenUse& use = uses_[index];
  if (options.check_gradients) {
    check_gradients(use);
  }
  TrainerEvent event{.kind = TrainerEventKind::end_use, .unit = use.unit, .backward = use.backward};
  if (use.stream != nullptr) {
    event.event = use.stream->record();
  }
  event.unwritten = unwritten_of(use.buckets);
  note_reduced(ask(std::move(event)));
}

/// A use of which nothing is computed: nobody waits for its parameters.
void RuntimeImpl::skip_use(UnitId unit, bool backward) {
  const Call guard(*this, "Runtime::skip");
  check_unit(unit);
  const Answer& answer =
      ask({.kind = TrainerEventKind::begin_use, .unit = unit, .backward = backward});
  note_reduced(answer);
  note_filling(answer.used);
  TrainerEvent end{.kind = TrainerEventKind::end_use, .unit = unit, .backward = backward};
  end.unwritten = unwritten_of(answer.used);
  note_reduced(ask(std::move(end)));
}

void RuntimeImpl::reshard() {
  const Call guard(*this, "Runtime::reshard");
  ask({.kind = TrainerEventKind::reshard});
}

/// For messages about an abandoned use: "forward of unit 2 'block.1'".
std::string RuntimeImpl::describe(const OpenUse& use) const {
  return std::string(use.backward ? "backward" : "forward") + " of unit " +
         std::to_string(use.unit) + " '" + model.units()[use.unit].name + "'";
}

void RuntimeImpl::abandon_scope(ScopeId id) noexcept {
  try {
    note_closed(id.kind);
    if (rank.failed()) {
      end_scope(id);
      return;
    }
    switch (id.kind) {
      case ScopeKind::use: {
        OpenUse& use = uses_[id.index];
        close(use, true);
        context.abandon(describe(use));
        actors_->ask(
            {.kind = TrainerEventKind::abandon_use, .unit = use.unit, .backward = use.backward});
        break;
      }
      case ScopeKind::micro_batch:
        context.abandon("a micro-batch, between uses");
        break;
      case ScopeKind::eval:
        context.abandon("an eval pass, between uses");
        break;
    }
  } catch (const std::exception&) {
    // The rank fails meanwhile; its next call, or the world, says so.
    context.abandon("a scope");
  }
}

}  // namespace troupe
