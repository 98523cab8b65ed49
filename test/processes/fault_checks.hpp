/// What has to be true of the ranks of a world when one of them had a fault.
#pragma once

#include "fault_world.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <vector>

namespace troupe::test {

/// Of collectives, and how long a rank may be silent.
inline constexpr std::chrono::milliseconds timeout{2000};
/// From the fault to the end of a rank.
inline constexpr std::chrono::milliseconds limit = timeout + std::chrono::seconds{5};

/// What is expected of the ranks that the fault is not in.
struct Expected {
  int culprit = 0;
  bool ticket = true;      ///< a collective is named
  std::string code{};      ///< empty: any
  std::string contains{};  ///< in the text
  /// Without rank 0, which serves the store, each says for itself how it has lost that.
  bool own_words = false;
};

/// All but the culprit ended with 1, named it alike, and in time.
inline void check_others(const std::vector<RankEnd>& ends, const Expected& expected) {
  INFO(to_text(ends));
  std::string text;
  for (int rank = 0; rank < static_cast<int>(ends.size()); ++rank) {
    if (rank == expected.culprit) {
      continue;
    }
    CAPTURE(rank);
    const RankEnd& end = ends[static_cast<std::size_t>(rank)];
    CHECK(end.status == 1);
    CHECK(end.after <= limit);
    CHECK(end.culprit == expected.culprit);
    CHECK((end.ticket > 0) == expected.ticket);
    if (!expected.code.empty()) {
      CHECK(end.code == expected.code);
    }
    CHECK(end.text.find(expected.contains) != std::string::npos);
    if (text.empty()) {
      text = end.text;
    }
    if (!expected.own_words) {
      CHECK(end.text == text);  // the first failure is everyone's
    }
  }
}

/// The own status of the rank with the fault.
inline void check_culprit(const std::vector<RankEnd>& ends, int culprit, int status) {
  INFO(to_text(ends));
  const RankEnd& end = ends[static_cast<std::size_t>(culprit)];
  CHECK(end.status == status);
  CHECK(end.after <= limit);
}

}  // namespace troupe::test
