/// The calls of `Store` as requests and answers: what all stores have in common. A store that
/// derives from it brings the way from here to the `StoreState` and back.
///
/// Thread rules: those of `Store`.
#pragma once

#include "troupe/comm/store/message.hpp"
#include "troupe/comm/store/store.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::store {

class StoreCalls : public Store {
 public:
  Result<void> set(std::string_view key, std::string_view value, TimePoint deadline) final;
  Result<std::string> get(std::string_view key, TimePoint deadline) final;
  Result<std::optional<std::string>> look(std::string_view key, TimePoint deadline) final;
  Result<void> wait(std::span<const std::string> keys, TimePoint deadline) final;
  Result<std::int64_t> add(std::string_view key, std::int64_t amount, TimePoint deadline) final;
  Result<std::string> compare_and_set(std::string_view key,
                                      std::optional<std::string_view> expected,
                                      std::string_view desired,
                                      TimePoint deadline) final;
  Result<bool> erase(std::string_view key, TimePoint deadline) final;
  Result<std::uint64_t> append(std::string_view log,
                               std::string_view entry,
                               TimePoint deadline) final;
  Result<std::vector<std::string>> read(std::string_view log,
                                        std::uint64_t from,
                                        TimePoint deadline) final;
  Result<void> leave_will(std::string_view log,
                          std::string_view entry,
                          Duration silence,
                          Duration grace,
                          TimePoint deadline) final;
  Result<void> revoke_will(TimePoint deadline) final;

 protected:
  /// What the store is called in messages: "the store at 127.0.0.1:29500".
  virtual std::string place() const = 0;
  /// The answer to the request, of which number and what is settled are not set yet; or why there
  /// is none, by `failure`.
  virtual Result<Response> call(Request request, TimePoint deadline) = 0;
  /// The text names the store, the operation and the key.
  Failure failure(ErrorCode code, const Request& request, std::string_view what) const;

 private:
  Result<Response> ask(Request request, TimePoint deadline);
};

}  // namespace troupe::store
