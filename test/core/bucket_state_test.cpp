#include "troupe/core/bucket_state.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

namespace troupe {
namespace {

using enum BucketState;

std::optional<BucketState> after(BucketState from, std::initializer_list<BucketEvent> events) {
  std::optional<BucketState> state = from;
  for (const BucketEvent event : events) {
    state = state ? next_state(*state, event) : std::nullopt;
  }
  return state;
}

/// The drawing in docs/bucket-life.md.
std::string table_in_markdown() {
  std::ostringstream table;
  table << "| state | full buffer |";
  for (std::size_t event = 0; event < bucket_event_count; ++event) {
    table << ' ' << to_string(static_cast<BucketEvent>(event)) << " |";
  }
  table << "\n|";
  for (std::size_t column = 0; column < bucket_event_count + 2; ++column) {
    table << " --- |";
  }
  for (std::size_t row = 0; row < bucket_state_count; ++row) {
    const auto from = static_cast<BucketState>(row);
    table << "\n| " << to_string(from) << " | " << (holds_full_buffer(from) ? "held" : "-") << " |";
    for (std::size_t event = 0; event < bucket_event_count; ++event) {
      const auto to = next_state(from, static_cast<BucketEvent>(event));
      table << ' ' << (to ? to_string(*to) : "-") << " |";
    }
  }
  table << '\n';
  return table.str();
}

TEST_CASE("a bucket is gathered, used, kept until its slot is wanted, and evicted") {
  using enum BucketEvent;
  CHECK(after(sharded, {gather}) == gathering);
  CHECK(after(sharded, {gather, use}) == in_use);
  CHECK(after(sharded, {gather, use, use, release}) == in_use);
  CHECK(after(sharded, {gather, use, use, release, release_last}) == ready);
  CHECK(after(sharded, {gather, use, release_last, use}) == in_use);
  CHECK(after(sharded, {gather, use, release_last, evict}) == sharded);
}

TEST_CASE("a bucket gathered for nothing goes back without a use") {
  CHECK(after(sharded, {BucketEvent::gather, BucketEvent::evict}) == sharded);
  CHECK(after(sharded, {BucketEvent::gather, BucketEvent::step_end}) == sharded);
}

TEST_CASE("a pinned bucket can be neither evicted nor end its step") {
  CHECK_FALSE(next_state(in_use, BucketEvent::evict));
  CHECK_FALSE(next_state(in_use, BucketEvent::step_end));
  CHECK_FALSE(next_state(in_use, BucketEvent::gather));
  CHECK_FALSE(next_state(sharded, BucketEvent::use));
  CHECK_FALSE(next_state(sharded, BucketEvent::evict));
  CHECK_FALSE(next_state(ready, BucketEvent::release));
}

TEST_CASE("any state fails, and a failed bucket stays failed whatever arrives") {
  for (std::size_t state = 0; state < bucket_state_count; ++state) {
    CHECK(next_state(static_cast<BucketState>(state), BucketEvent::fail) == failed);
  }
  for (std::size_t event = 0; event < bucket_event_count; ++event) {
    CHECK(next_state(failed, static_cast<BucketEvent>(event)) == failed);
  }
  CHECK(next_state(in_use, BucketEvent::abandon) == failed);
  CHECK_FALSE(next_state(ready, BucketEvent::abandon));
}

TEST_CASE("a full buffer is held from the request of the gather until eviction") {
  CHECK_FALSE(holds_full_buffer(sharded));
  CHECK(holds_full_buffer(gathering));
  CHECK(holds_full_buffer(in_use));
  CHECK(holds_full_buffer(ready));
  CHECK_FALSE(holds_full_buffer(failed));
}

TEST_CASE("docs/bucket-life.md shows the table as it is") {
  std::ifstream file(TROUPE_SOURCE_DIR "/docs/bucket-life.md");
  REQUIRE_MESSAGE(file.is_open(), "docs/bucket-life.md is missing");
  std::ostringstream content;
  content << file.rdbuf();
  const std::string text = content.str();
  constexpr std::string_view opening = "<!-- table -->\n";
  const std::size_t begin = text.find(opening);
  const std::size_t end = text.find("<!-- /table -->");
  REQUIRE(begin != std::string::npos);
  REQUIRE(end != std::string::npos);
  const std::size_t from = begin + opening.size();
  INFO("The table to paste between the markers:\n", table_in_markdown());
  CHECK(text.substr(from, end - from) == table_in_markdown());
}

}  // namespace
}  // namespace troupe
