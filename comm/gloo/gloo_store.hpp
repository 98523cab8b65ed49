/// Our store as Gloo's, for the time in which the members of a group connect.
#pragma once

#include "troupe/comm/process/world_link.hpp"
#include "troupe/comm/store/store.hpp"

#include <gloo/rendezvous/store.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// Waits look every `look_interval` whether the world has failed meanwhile. Throws `Error`: the
/// world's failure, or that of the store.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  /// prefix  of all keys
  GlooStore(troupe::Store& store, WorldLink& link, std::string prefix, TimePoint deadline)
      : store_(store), link_(link), prefix_(std::move(prefix)), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override;
  std::vector<char> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    wait(keys);
  }

  /// The first value that a member gives for `key`.
  std::string agree(std::string_view key, std::string_view value);
  /// What this member has set, or agreed to, with prefix.
  const std::vector<std::string>& own_keys() const { return own_keys_; }

 private:
  std::string full(std::string_view key) const { return prefix_ + std::string(key); }

  troupe::Store& store_;  // not the base
  WorldLink& link_;
  const std::string prefix_;
  const TimePoint deadline_;
  std::vector<std::string> own_keys_;
};

}  // namespace troupe
