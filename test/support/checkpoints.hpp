/// For tests of checkpoints: folders that go with the test, and all that a checkpoint has to bring
/// back, put together from the ranks of a world.
#pragma once

#include "ranks.hpp"
#include "test_folder.hpp"
#include "toy_trainer.hpp"
#include "troupe/runtime/checkpoint.hpp"
#include "troupe/runtime/runtime_impl.hpp"

#include <bit>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace troupe::test {

/// Names in a folder, one behind the other.
inline std::string listing(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : " ") + name;
  }
  return text;
}

inline std::string bytes_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

inline void write_bytes(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

/// Whole parameters, optimizer states and counts of a world by name, as bits; experts by
/// coordinate; of what has elements. Ranks add what they hold; those that hold the same have to
/// agree.
class WholeState {
 public:
  void add(Runtime& runtime) {
    const std::scoped_lock lock(mutex_);
    RuntimeImpl& impl = runtime.impl();
    for (const Bucket& bucket : impl.plan.buckets) {
      const ShardView shard = impl.shard(bucket.id);
      add(impl, shard, "weights", shard.weights);
      for (const auto& [name, buffers] : impl.states) {
        if (buffers[bucket.id].data() != nullptr) {
          add(impl, shard, name, runtime.state(name, bucket.id));
        }
      }
    }
    for (const auto& [name, counts] : impl.counts) {
      counts_[name] = counts;
    }
    steps_ = runtime.steps();
  }
  bool operator==(const WholeState& other) const {
    return values_ == other.values_ && counts_ == other.counts_ && steps_ == other.steps_ &&
           !torn_ && !other.torn_;
  }
  /// What differs first; empty if nothing.
  std::string difference(const WholeState& other) const {
    if (torn_ || other.torn_) {
      return "ranks that hold the same differ";
    }
    for (const auto& [name, values] : values_) {
      const auto found = other.values_.find(name);
      if (found == other.values_.end()) {
        return name + " is missing";
      }
      if (found->second != values) {
        return name + " differs";
      }
    }
    return *this == other ? "" : "counts, steps or names differ";
  }
  std::size_t tensors() const { return values_.size(); }
  /// (numel) of one of them, by name, as bits.
  const std::vector<std::uint32_t>& values(const std::string& name) const {
    return values_.at(name);
  }

 private:
  void add(const RuntimeImpl& impl,
           const ShardView& shard,
           const std::string& what,
           std::span<const float> own) {
    const Bucket& bucket = impl.plan.buckets[shard.bucket];
    const bool expert = bucket.group == expert_group;
    const int coordinate = expert ? impl.context.rank() % impl.mesh.shard % impl.mesh.ep : 0;
    for (const ShardPiece& piece : shard.pieces) {
      const ParameterId id = bucket.parameters[piece.index];
      const auto numel = static_cast<std::size_t>(impl.model.parameters()[id].numel);
      auto& whole =
          values_.try_emplace(key(impl, what, id, coordinate), numel, unset).first->second;
      for (std::int64_t i = 0; i < piece.numel; ++i) {
        const auto bits =
            std::bit_cast<std::uint32_t>(own[static_cast<std::size_t>(piece.shard_offset + i)]);
        std::uint32_t& at = whole[static_cast<std::size_t>(piece.parameter_offset + i)];
        torn_ = torn_ || (at != unset && at != bits);
        at = bits;
      }
    }
  }
  static std::string key(const RuntimeImpl& impl,
                         const std::string& what,
                         ParameterId id,
                         int coordinate) {
    return what + "/" + name_of_copy(impl.model.parameters()[id].full_name, coordinate);
  }

  static constexpr std::uint32_t unset = 0x7fc12345;  // a NaN that nothing computes
  std::mutex mutex_;
  std::map<std::string, std::vector<std::uint32_t>> values_;
  std::map<std::string, std::vector<std::uint64_t>> counts_;
  std::uint64_t steps_ = 0;
  bool torn_ = false;
};

/// One training step of the toy, with an optimizer.
template <class Optimizer>
void toy_step(Runtime& runtime, int rank, int index, Optimizer& optimizer) {
  ToyTrainer trainer{.runtime = runtime, .rank = rank};
  trainer.step(plain_step(runtime.model().units().size(), 1), index);
  optimizer.step(runtime);
}

/// All ranks of a world: makes a runtime and lets `body` go on with it. Empty if all is well.
inline std::string with_runtime(int ranks,
                                const Model& model,
                                const Options& options,
                                const std::function<void(Runtime&, World&, Findings&)>& body) {
  return on_ranks(ranks, [&](World& world, Findings& findings) {
    Runtime runtime(world, model, options);
    body(runtime, world, findings);
  });
}

/// Errors of a call that every rank makes, by rank; "" where there was none.
struct Errors {
  explicit Errors(int ranks) : texts(static_cast<std::size_t>(ranks)) {}
  void note(World& world, const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      texts[static_cast<std::size_t>(world.rank())] =
          std::string(to_string(error.code())) + ": " + error.what();
    }
  }
  /// That of all ranks, with the folder as "DIR".
  std::string same(const std::filesystem::path& folder) const {
    for (const std::string& text : texts) {
      if (text != texts[0]) {
        return "ranks differ: " + texts[0] + " / " + text;
      }
    }
    std::string text = texts[0];
    const std::string name = folder.string();
    for (auto at = text.find(name); at != std::string::npos; at = text.find(name)) {
      text.replace(at, name.size(), "DIR");
    }
    return text;
  }
  std::vector<std::string> texts;
};

}  // namespace troupe::test
