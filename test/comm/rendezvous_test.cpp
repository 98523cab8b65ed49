#include "troupe/comm/rendezvous.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace troupe::test {
namespace {

struct Counting final : Wakeable {
  void notify() override { ++notified; }
  std::atomic<int> notified{0};
};

const Failure late{.code = ErrorCode::timeout, .text = "rank 2 is late", .rank = 2};

TEST_CASE("a meeting is over when all have come, and each knows what all have said") {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    LocalRendezvous place(ranks);
    const auto waiter = std::make_shared<Counting>();
    Rendezvous::Words right;
    for (int rank = 0; rank < ranks; ++rank) {
      CHECK_FALSE(place.over(1));
      right.push_back("word of " + std::to_string(rank));
      place.arrive(rank, 1, right.back(), waiter);
    }
    CHECK(place.over(1));
    CHECK(waiter->notified == ranks);
    CHECK(place.close(1, late).value() == right);
    CHECK_FALSE(place.over(2));
  }
}

TEST_CASE("a rank may be at the next meeting before another has read the words of the last") {
  LocalRendezvous place(2);
  const auto waiter = std::make_shared<Counting>();
  place.arrive(0, 1, "a", waiter);
  place.arrive(1, 1, "b", waiter);
  CHECK(place.close(1, late).value() == Rendezvous::Words{"a", "b"});
  place.arrive(0, 2, "c", waiter);
  CHECK(place.close(1, late).value() == Rendezvous::Words{"a", "b"});
  CHECK(place.absent(2).ranks == std::vector<int>{1});
  place.arrive(1, 2, "d", waiter);
  CHECK(place.close(2, late).value() == Rendezvous::Words{"c", "d"});
}

TEST_CASE("words of old meetings are forgotten, and nobody holds their waiters") {
  LocalRendezvous place(1);
  const auto waiter = std::make_shared<Counting>();
  for (std::uint64_t meeting = 1; meeting <= 100; ++meeting) {
    place.arrive(0, meeting, "word", waiter);
  }
  CHECK(waiter.use_count() == 1);
  CHECK(place.over(100));
  CHECK(place.over(99));
  CHECK_FALSE(place.over(98));
}

TEST_CASE("who closes a meeting first decides; who comes too late hears it") {
  LocalRendezvous place(3);
  const auto waiter = std::make_shared<Counting>();
  place.arrive(0, 1, "", waiter);
  place.arrive(1, 1, "", waiter);
  CHECK(place.absent(1).ranks == std::vector<int>{2});
  CHECK(place.absent(1).left.empty());
  CHECK(place.close(1, late).failure() == late);
  CHECK(waiter->notified == 2);
  const Failure other{.code = ErrorCode::timeout, .text = "another"};
  CHECK(place.close(1, other).failure() == late);
  CHECK(place.over(1));
  CHECK(place.over(2));
}

TEST_CASE("the last rank comes too late to a meeting that was closed") {
  LocalRendezvous place(2);
  const auto waiter = std::make_shared<Counting>();
  place.arrive(0, 1, "a", waiter);
  CHECK(place.close(1, late).failure() == late);
  place.arrive(1, 1, "b", waiter);
  CHECK(place.over(1));
  REQUIRE_FALSE(place.close(1, {.text = "another"}).ok());
  CHECK(place.close(1, {.text = "another"}).failure() == late);
}

TEST_CASE("a rank that has left is missed by those who wait, not by those who need not") {
  LocalRendezvous place(3);
  const auto waiter = std::make_shared<Counting>();
  for (int rank = 0; rank < 3; ++rank) {
    place.arrive(rank, 1, "", waiter);
  }
  place.arrive(0, 2, "", waiter);
  CHECK_FALSE(place.over(2));
  place.leave(2, "rank 2 has left");
  CHECK(waiter->notified == 3 + 1);
  CHECK(place.over(2));
  CHECK(place.absent(2).left == std::map<int, std::string>{{2, "rank 2 has left"}});
  CHECK(place.close(1, late).ok());
  CHECK_FALSE(place.close(2, late).ok());
}

TEST_CASE("updates are awaited of ranks that are there") {
  LocalRendezvous place(3);
  CHECK(place.all_have_made(0));
  place.note_updates(0, 2);
  place.note_updates(1, 1);
  CHECK_FALSE(place.all_have_made(1));
  place.leave(2, "gone");
  CHECK(place.all_have_made(1));
  CHECK_FALSE(place.all_have_made(2));
}

TEST_CASE("ranks on threads meet a thousand times") {
  constexpr int ranks = 4;
  LocalRendezvous place(ranks);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto waiter = std::make_shared<FutexWaiter>();
      for (std::uint64_t meeting = 1; meeting <= 1000; ++meeting) {
        place.arrive(rank, meeting, std::to_string(meeting), waiter);
        if (!waiter->wait([&] { return place.over(meeting); },
                          Clock::steady().now() + std::chrono::seconds{20})) {
          ++wrong;
        }
        const Result<Rendezvous::Words> words = place.close(meeting, late);
        if (!words || words.value() != Rendezvous::Words(ranks, std::to_string(meeting))) {
          ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace troupe::test
