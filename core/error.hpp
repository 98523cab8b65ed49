/// How things fail: `Failure` is the value that the rooms below `runtime/` return and send,
/// `Result<T>` carries it, and `Error` is what a trainer catches.
///
/// The first failure of a world is the one that every rank reports; see docs/errors.md.
#pragma once

#include "troupe/core/ids.hpp"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

namespace troupe {

/// Named by what the caller can do about it.
enum class ErrorCode : std::uint8_t {
  bad_configuration,  ///< change an option, the model or the input; nothing was started
  misuse,             ///< the trainer's calls are wrong; the text says which and what is expected
  timeout,            ///< a peer or a device did not answer in time; the ranks waited for are named
  peer_failed,        ///< another rank failed or left; its own error is in the text
  mismatch,           ///< ranks disagree about a collective; both sides are named
  device,             ///< a device, stream or allocation failed
  non_finite,         ///< a gradient is infinite or not a number; parameter and rank are named
  storage,            ///< a file could not be written or read, or is damaged; the text names it
  network,            ///< no connection, or it was lost; the text names the address and why
  internal,           ///< a fault of Troupe; please report it with the text
};

constexpr const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::bad_configuration:
      return "bad configuration";
    case ErrorCode::misuse:
      return "misuse";
    case ErrorCode::timeout:
      return "timeout";
    case ErrorCode::peer_failed:
      return "peer failed";
    case ErrorCode::mismatch:
      return "mismatch";
    case ErrorCode::device:
      return "device";
    case ErrorCode::non_finite:
      return "non-finite";
    case ErrorCode::storage:
      return "storage";
    case ErrorCode::network:
      return "network";
    case ErrorCode::internal:
      return "internal";
  }
  return "?";
}

/// An expected failure, as a value. `text` is complete by itself: it names rank, ticket and bucket
/// where they matter; the members repeat them for programs.
struct Failure {
  ErrorCode code = ErrorCode::internal;
  std::string text = {};
  int rank = -1;                ///< the rank at fault, -1 if none can be named
  Ticket ticket = 0;            ///< the collective concerned, 0 if none
  BucketId bucket = no_bucket;  ///< the bucket concerned, if any

  bool operator==(const Failure&) const = default;
};

/// A value or the reason why there is none. Check before use: `value()` of a failure is undefined.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Failure failure)
      : state_(std::in_place_index<1>, std::move(failure)) {
  }  // NOLINT(google-explicit-constructor)

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & { return *std::get_if<0>(&state_); }
  const T& value() const& { return *std::get_if<0>(&state_); }
  T&& value() && { return std::move(*std::get_if<0>(&state_)); }
  const Failure& failure() const { return *std::get_if<1>(&state_); }

 private:
  std::variant<T, Failure> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Failure failure)
      : failure_(std::move(failure)), ok_(false) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return ok_; }
  explicit operator bool() const { return ok_; }
  const Failure& failure() const { return failure_; }

 private:
  Failure failure_;
  bool ok_ = true;
};

/// What the public API throws. `what()` is the failure's text.
class Error : public std::runtime_error {
 public:
  explicit Error(Failure failure)
      : std::runtime_error(failure.text), failure_(std::move(failure)) {}

  const Failure& failure() const noexcept { return failure_; }
  ErrorCode code() const noexcept { return failure_.code; }

 private:
  Failure failure_;
};

/// The value, or the `Error` that says why there is none.
template <class T>
T value_or_throw(Result<T> result) {
  if (!result) {
    throw Error(result.failure());
  }
  return std::move(result).value();
}

}  // namespace troupe
