#include "troupe/runtime/checkpoint.hpp"
#include "troupe/runtime/checkpoint/save_in_progress.hpp"
#include "troupe/runtime/runtime_impl.hpp"

#include <utility>

namespace troupe {

namespace {

void finish_last(RuntimeImpl& runtime) {
  if (const auto last = std::exchange(runtime.save, nullptr)) {
    last->commit(runtime);
  }
}

}  // namespace

void save(Runtime& runtime, const std::filesystem::path& folder, const SaveOptions& options) {
  RuntimeImpl& impl = runtime.impl();
  impl.require_between_steps("troupe::save");
  impl.require_initialised("troupe::save");
  finish_last(impl);
  SaveInProgress save(impl, folder, options);
  save.write();
  save.commit(impl);
}

AsyncSave save_async(Runtime& runtime,
                     const std::filesystem::path& folder,
                     const SaveOptions& options) {
  RuntimeImpl& impl = runtime.impl();
  impl.require_between_steps("troupe::save_async");
  impl.require_initialised("troupe::save_async");
  finish_last(impl);
  impl.save = std::make_shared<SaveInProgress>(impl, folder, options);
  impl.save->owner = impl.weak_from_this();
  impl.save->start();
  return AsyncSave(impl.save);
}

bool AsyncSave::done() const {
  return save_->done();
}

std::int64_t AsyncSave::snapshot_bytes() const {
  return save_->snapshot_bytes();
}

void AsyncSave::finish() {
  const auto runtime = save_->owner.lock();
  if (!runtime) {
    throw Error({.code = ErrorCode::misuse,
                 .text = "AsyncSave::finish after the end of its runtime; the save was given up"});
  }
  if (runtime->save == save_) {
    runtime->save.reset();
  }
  save_->commit(*runtime);
}

}  // namespace troupe
