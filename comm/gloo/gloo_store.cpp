#include "troupe/comm/gloo/gloo_store.hpp"

#include <algorithm>

namespace troupe {

namespace {

constexpr Duration look_interval = std::chrono::milliseconds{200};

}  // namespace

void GlooStore::set(const std::string& key, const std::vector<char>& data) {
  own_keys_.push_back(full(key));
  const auto done = store_.set(full(key), {data.data(), data.size()}, deadline_);
  if (!done) {
    throw Error(done.failure());
  }
}

std::vector<char> GlooStore::get(const std::string& key) {
  wait({key});
  const std::string value = value_or_throw(store_.get(full(key), deadline_));
  return {value.begin(), value.end()};
}

void GlooStore::wait(const std::vector<std::string>& keys) {
  std::vector<std::string> all;
  all.reserve(keys.size());
  for (const std::string& key : keys) {
    all.push_back(full(key));
  }
  for (;;) {
    const TimePoint now = std::chrono::steady_clock::now();
    const auto set = store_.wait(all, std::min(deadline_, now + look_interval));
    if (set) {
      return;
    }
    if (auto failure = link_.failure()) {
      throw Error(*std::move(failure));
    }
    if (set.failure().code != ErrorCode::timeout || now >= deadline_) {
      throw Error(set.failure());
    }
  }
}

std::string GlooStore::agree(std::string_view key, std::string_view value) {
  own_keys_.push_back(full(key));
  return value_or_throw(store_.compare_and_set(full(key), std::nullopt, value, deadline_));
}

}  // namespace troupe
