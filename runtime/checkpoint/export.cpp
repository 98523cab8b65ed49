// The whole model as one file, bucket by bucket.
#include "troupe/core/text.hpp"
#include "troupe/runtime/checkpoint.hpp"
#include "troupe/runtime/checkpoint/agreement.hpp"
#include "troupe/runtime/checkpoint/safetensors.hpp"
#include "troupe/runtime/checkpoint/storage.hpp"
#include "troupe/runtime/runtime_impl.hpp"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

namespace troupe {

namespace {

namespace fs = std::filesystem;

/// A bucket of one coordinate.
struct Part {
  BucketId bucket = 0;
  int coordinate = 0;
};

/// Writes what is gathered, in the order of the header. On rank 0 alone.
class ExportFile {
 public:
  ExportFile(const RuntimeImpl& runtime, const fs::path& path, const ExportOptions& options)
      : runtime_(runtime),
        storage_(options.before),
        dtype_(options.dtype),
        path_(path),
        unfinished_(path.string() + ".tmp") {}

  Result<void> begin(const std::vector<Part>& parts) {
    std::vector<TensorSpec> tensors;
    for (const Part& part : parts) {
      const Bucket& bucket = runtime_.plan.buckets[part.bucket];
      for (const ParameterId id : bucket.parameters) {
        const Parameter& parameter = runtime_.model.parameters()[id];
        const bool one_of_several = bucket.group == expert_group && runtime_.mesh.ep > 1;
        tensors.push_back(
            {.name = parameter.full_name +
                     (one_of_several ? ".ep" + std::to_string(part.coordinate) : ""),
             .type = dtype_of(bucket) == DType::f32 ? TensorType::f32 : TensorType::bf16,
             .shape = parameter.spec.shape});
      }
    }
    const auto header =
        safetensors_header(tensors, {{"format", "pt"}, {"step", std::to_string(runtime_.steps)}});
    if (!header) {
      return header.failure();
    }
    if (auto removed = storage_.remove(unfinished_); !removed) {  // of an export that was killed
      return removed;
    }
    auto created = OutputFile::create(storage_, unfinished_);
    if (!created) {
      return created.failure();
    }
    file_ = std::make_unique<OutputFile>(std::move(created).value());
    return file_->write(header.value());
  }

  Result<void> add(const Part& part, const float* full) {
    const Bucket& bucket = runtime_.plan.buckets[part.bucket];
    for (const Range& range : runtime_.layouts[part.bucket].parameters()) {
      if (auto written = write(dtype_of(bucket), full + range.offset, range.numel); !written) {
        return written;
      }
    }
    return {};
  }

  Result<void> end() {
    if (auto finished = file_->finish(); !finished) {
      return finished;
    }
    if (auto renamed = storage_.rename(unfinished_, path_); !renamed) {
      return renamed;
    }
    return storage_.sync_folder(path_.parent_path());
  }

  void give_up() const {
    static_cast<void>(without_exceptions([&] { return storage_.remove(unfinished_); }));
  }

 private:
  DType dtype_of(const Bucket& bucket) const { return dtype_.value_or(bucket.dtype); }

  Result<void> write(DType dtype, const float* values, std::int64_t numel) {
    if (dtype == DType::f32) {
      return numel == 0
                 ? Result<void>()
                 : file_->write(std::as_bytes(std::span(values, static_cast<std::size_t>(numel))));
    }
    constexpr std::int64_t together = 1 << 16;
    std::vector<BFloat16> room;
    for (std::int64_t done = 0; done < numel; done += together) {
      const std::int64_t end = std::min(numel, done + together);
      room.clear();
      std::ranges::transform(values + done, values + end, std::back_inserter(room), to_bfloat16);
      if (auto written = file_->write(std::as_bytes(std::span(room))); !written) {
        return written;
      }
    }
    return {};
  }

  const RuntimeImpl& runtime_;
  Storage storage_;
  std::optional<DType> dtype_;
  fs::path path_;
  fs::path unfinished_;
  std::unique_ptr<OutputFile> file_;
};

/// Wider dtypes first: each tensor begins at a multiple of its elements' size.
std::vector<Part> parts_of(const RuntimeImpl& runtime, const ExportOptions& options) {
  std::vector<Part> parts;
  for (const Bucket& bucket : runtime.plan.buckets) {
    const int coordinates = bucket.group == expert_group ? runtime.mesh.ep : 1;
    for (int coordinate = 0; coordinate < coordinates; ++coordinate) {
      parts.push_back({.bucket = bucket.id, .coordinate = coordinate});
    }
  }
  if (!options.dtype) {
    std::ranges::stable_sort(parts, {}, [&](const Part& part) {
      return runtime.plan.buckets[part.bucket].dtype == DType::f32 ? 0 : 1;
    });
  }
  return parts;
}

}  // namespace

void export_full(Runtime& runtime, const fs::path& path, const ExportOptions& options) {
  RuntimeImpl& impl = runtime.impl();
  impl.require_between_steps("troupe::export_full", true);
  impl.require_initialised("troupe::export_full");
  const bool first = impl.context.rank() == 0;
  const std::vector<Part> parts = parts_of(impl, options);
  const auto absolute = absolute_path(path);
  ExportFile file(impl, absolute ? absolute.value() : fs::path(), options);
  Result<void> met = absolute ? Result<void>() : absolute.failure();
  const auto on_first = [&](auto call) {
    if (first && met) {
      met = without_exceptions(call);
    }
  };
  const auto hear = [&] {
    if (!met && absolute) {
      file.give_up();
    }
    agree(impl, "of an export", {}, met);
  };
  on_first([&] { return file.begin(parts); });
  hear();
  for (const Part& part : parts) {
    // Ranks hear of rank 0 again behind the last bucket: one that cannot be written is gathered
    // all the same.
    const Buffer full = impl.gather_bucket(part.bucket);
    if (part.coordinate > 0) {
      impl.broadcast_bucket(full, part.coordinate);
    }
    on_first([&] { return file.add(part, full.as<float>()); });
  }
  on_first([&] { return file.end(); });
  hear();
}

}  // namespace troupe
