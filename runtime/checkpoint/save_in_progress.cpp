#include "troupe/runtime/checkpoint/save_in_progress.hpp"

#include "troupe/core/text.hpp"
#include "troupe/runtime/checkpoint/agreement.hpp"
#include "troupe/runtime/runtime_impl.hpp"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

namespace troupe {

namespace {

namespace fs = std::filesystem;
using detail::concat;

constexpr std::chrono::seconds stop_limit{10};

/// The hook of the options, and the end of what is given up.
FileHook watched(FileHook before, const std::atomic<bool>& stopped) {
  return [before = std::move(before), &stopped](FileOperation operation,
                                                const fs::path& path) -> Result<void> {
    if (stopped) {
      return Failure{.code = ErrorCode::storage, .text = "the save was given up"};
    }
    return before ? before(operation, path) : Result<void>();
  };
}

/// Empty if there is none.
fs::path absolute_or_empty(const fs::path& folder) {
  const auto absolute = absolute_path(folder);
  return absolute ? absolute.value() : fs::path();
}

/// What a rank finds wrong with what it was given. The names of states are told to the other ranks
/// as JSON, which would replace what is no UTF-8.
Result<void> check(const RuntimeImpl& runtime, const fs::path& folder) {
  if (const auto absolute = absolute_path(folder); !absolute) {
    return absolute.failure();
  }
  for (const auto& [name, buffers] : runtime.states) {
    try {
      static_cast<void>(Json(name).dump());
    } catch (const Json::exception&) {
      return detail::failure(ErrorCode::bad_configuration,
                             concat("the name of the state '", name, "' is no UTF-8"));
    }
  }
  return {};
}

}  // namespace

SaveInProgress::SaveInProgress(RuntimeImpl& runtime,
                               const fs::path& folder,
                               const SaveOptions& options)
    : folder_(absolute_or_empty(folder)),
      unfinished_(folder_ / (step_name(runtime.steps) + std::string(unfinished_suffix))),
      finished_(folder_ / step_name(runtime.steps)),
      step_(runtime.steps),
      keep_(options.keep),
      rank_(runtime.context.rank()),
      work_(std::make_shared<Work>()) {
  work_->storage = Storage(watched(options.before, work_->stopped));
  work_->file = unfinished_ / rank_file_name(rank_);
  work_->blob = options.blob;
  written_ = work_->promise.get_future();
  Result<void> met = check(runtime, folder);
  if (met && rank_ == 0) {
    met = without_exceptions([&] { return prepare(); });
  }
  const auto said = agree(runtime, "of what is saved", states_of(runtime), met);
  StateTable states;
  for (const Json& each : said) {
    for (const auto& [name, buckets] : each.items()) {
      for (const Json& bucket : buckets) {
        states[name].push_back(bucket.get<BucketId>());
      }
    }
  }
  for (auto& [name, buckets] : states) {
    std::ranges::sort(buckets);
    buckets.erase(std::ranges::unique(buckets).begin(), buckets.end());
  }
  work_->content = rank_content(runtime, states, work_->blob);
  if (rank_ == 0) {
    index_ = make_index(runtime, states);
  }
}

SaveInProgress::~SaveInProgress() {
  give_up("its runtime ended before that");
}

void SaveInProgress::give_up(const char* why) {
  if (!ended_) {
    ended_ = true;
    failure_ = {.code = ErrorCode::misuse,
                .text = "the save of step " + std::to_string(step_) + " was not finished: " + why};
  }
  work_->stopped = true;
  if (thread_.joinable()) {
    if (written_.valid() && written_.wait_for(stop_limit) != std::future_status::ready) {
      thread_.detach();
    } else {
      thread_.join();
    }
  }
}

/// Rank 0: the folder as the files of this checkpoint need it.
Result<void> SaveInProgress::prepare() const {
  if (keep_ < 1) {
    return detail::failure(ErrorCode::bad_configuration,
                           concat("SaveOptions::keep is ", keep_, "; expected at least 1"));
  }
  const Storage& storage = work_->storage;
  if (auto made = storage.make_folders(folder_); !made) {
    return made;
  }
  auto names = storage.list(folder_);
  if (!names) {
    return names.failure();
  }
  for (const std::string& name : names.value()) {
    const auto step = parse_step_name(name);
    if (step && !step->finished) {  // of a save that was killed
      if (auto removed = storage.remove(folder_ / name); !removed) {
        return removed;
      }
    }
    if (step && step->finished && step->step >= step_) {
      return detail::failure(
          ErrorCode::bad_configuration,
          concat("cannot save step ", step_, " to ", folder_.string(), ": it has ", name,
                 "; save to another folder, or remove what is not to be kept"));
    }
  }
  if (auto made = storage.make_folders(unfinished_); !made) {
    return made;
  }
  return storage.sync_folder(folder_);
}

void SaveInProgress::write() {
  Work& work = *work_;
  work.end_with(
      without_exceptions([&] { return write_rank_file(work.storage, work.file, work.content); }));
}

void SaveInProgress::start() {
  Work& work = *work_;
  const auto take = [&]() -> Result<void> {
    work.snapshot.resize(static_cast<std::size_t>(work.content.data_bytes()));
    std::byte* to = work.snapshot.data();
    for (auto& data : work.content.data) {
      std::ranges::copy(data, to);
      data = {to, data.size()};
      to += data.size();
    }
    thread_ = std::thread([shared = work_] {
      shared->end_with(without_exceptions(
          [&] { return write_rank_file(shared->storage, shared->file, shared->content); }));
    });
    return {};
  };
  // Memory or a thread that is not to be had fails the save, which all hear at its commit.
  if (auto taken = without_exceptions(take); !taken) {
    work.end_with(taken.failure());
  }
}

bool SaveInProgress::done() const {
  return work_->done;
}

std::int64_t SaveInProgress::snapshot_bytes() const {
  return static_cast<std::int64_t>(work_->snapshot.size());
}

void SaveInProgress::commit(RuntimeImpl& runtime) {
  if (!ended_) {
    ended_ = true;
    try {
      commit_now(runtime);
    } catch (const Error& error) {
      failure_ = error.failure();
    }
  }
  if (failure_) {
    throw Error(*failure_);
  }
}

void SaveInProgress::commit_now(RuntimeImpl& runtime) {
  const Result<WrittenFile> written = await_writer(runtime);
  try {
    const auto said =
        written ? agree(runtime, "of files written",
                        {{"bytes", written.value().bytes}, {"hash", written.value().hash}})
                : agree(runtime, "of files written", {}, written.failure());
    std::vector<IndexedFile> files;
    files.reserve(said.size());
    for (const Json& each : said) {
      files.push_back(
          {.bytes = each["bytes"].get<std::int64_t>(), .hash = each["hash"].get<std::uint64_t>()});
    }
    agree(runtime, "of a checkpoint", {},
          rank_ == 0 ? without_exceptions([&] { return complete(std::move(files)); })
                     : Result<void>());
  } catch (const Error&) {
    // The next save removes what cannot be removed now, or is still being written.
    if (rank_ == 0 && !thread_.joinable()) {
      static_cast<void>(without_exceptions([&] { return work_->storage.remove(unfinished_); }));
    }
    throw;
  }
  if (rank_ == 0) {
    delete_old();
  }
}

/// This rank's file. A writer that takes too long is left to itself, with all that it uses; the
/// other ranks wait for what this one says a little longer than it waits for its writer.
Result<WrittenFile> SaveInProgress::await_writer(const RuntimeImpl& runtime) {
  const Duration limit = runtime.context.timeout() - runtime.context.timeout() / 4;
  if (written_.wait_for(limit) != std::future_status::ready) {
    work_->stopped = true;
    const auto limit_ms = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
    return detail::failure(ErrorCode::storage, concat(work_->file.string(), " of step ", step_,
                                                      " was not written within ", limit_ms, " ms"));
  }
  Result<WrittenFile> written = written_.get();
  if (thread_.joinable()) {
    thread_.join();
  }
  work_->snapshot = {};
  work_->content = {};
  return written;
}

/// Rank 0: everything is on the medium before the name says so.
Result<void> SaveInProgress::complete(std::vector<IndexedFile> files) {
  const Storage& storage = work_->storage;
  index_.files = std::move(files);
  const auto text = to_json(index_);
  if (!text) {
    return text.failure();
  }
  auto created = OutputFile::create(storage, unfinished_ / index_name);
  if (!created) {
    return created.failure();
  }
  OutputFile file = std::move(created).value();
  if (auto done = file.write(text.value()); !done) {
    return done;
  }
  if (auto done = file.finish(); !done) {
    return done;
  }
  if (auto done = storage.sync_folder(unfinished_); !done) {
    return done;
  }
  if (auto done = storage.rename(unfinished_, finished_); !done) {
    return done;
  }
  auto synced = storage.sync_folder(folder_);
  if (!synced) {  // what was told to have failed is not to be found later
    static_cast<void>(storage.rename(finished_, unfinished_));
  }
  return synced;
}

/// Rank 0. What cannot be deleted stays until the next save: this one is complete.
void SaveInProgress::delete_old() const {
  static_cast<void>(without_exceptions([&]() -> Result<void> {
    const Storage& storage = work_->storage;
    auto names = storage.list(folder_);
    if (!names) {
      return names.failure();
    }
    std::vector<std::string> complete;  // oldest first, by step
    for (const std::string& name : names.value()) {
      if (const auto step = parse_step_name(name); step && step->finished) {
        complete.push_back(name);
      }
    }
    std::ranges::sort(complete, {},
                      [](const std::string& name) { return parse_step_name(name)->step; });
    for (std::size_t i = 0; i + static_cast<std::size_t>(keep_) < complete.size(); ++i) {
      // By its name half of it must not pass for a checkpoint.
      const fs::path old = folder_ / (complete[i] + std::string(unfinished_suffix));
      if (auto renamed = storage.rename(folder_ / complete[i], old); !renamed) {
        return renamed;
      }
      if (auto removed = storage.remove(old); !removed) {
        return removed;
      }
    }
    return {};
  }));
}

}  // namespace troupe
