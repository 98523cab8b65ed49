#include "schedule_ranks.hpp"

#include "schedule_fixture.hpp"
#include "schedule_random.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace troupe::testing {

namespace {

/// One rank: its schedule, its own random choices, and what it has launched.
struct Rank {
  Rank(const SchedulePlan& plan, std::uint64_t seed) : schedule(plan), random(seed) {}

  Schedule schedule;
  Random random;
  std::vector<std::string> launches;
  std::vector<UnitId> seen;  ///< units of this micro-batch whose forward has ended
};

class Ranks {
 public:
  Ranks(std::uint64_t seed, RanksCoverage& coverage) : random_(seed), coverage_(coverage) {
    const SchedulePlan plan = random_agreed_plan(random_, false);
    const std::size_t world_size = std::array{1U, 2U, 3U, 4U, 7U}[random_.below(5)];
    for (std::size_t rank = 0; rank < world_size; ++rank) {
      ranks_.emplace_back(plan, random_.next());
    }
    for (UnitId unit = 0; unit < plan.unit_buckets.size(); ++unit) {
      order_.push_back(unit);
    }
    left_out_ = std::array{0U, 10U, 50U}[random_.below(3)];
    without_reduce_ = plan.accumulates ? std::array{0U, 50U}[random_.below(2)] : 0U;
  }

  std::optional<std::string> run() {
    for (int step = 0; step < 3 && !fault_; ++step) {
      begin_update();
      eval();
      for (std::uint32_t rest = 1 + random_.below(3); rest > 0; --rest) {
        micro_batch();
      }
      end_step();
    }
    coverage_.launches += ranks_.front().launches.size();
    for (std::size_t rank = 1; rank < ranks_.size() && !fault_; ++rank) {
      compare(rank);
    }
    return fault_;
  }

 private:
  /// A call that every rank makes, and that must be granted.
  void all(const Event& event) {
    for (Rank& rank : ranks_) {
      if (!call(rank, event) && !fault_) {
        fault_ = "every rank can " + describe(event);
      }
    }
  }

  bool call(Rank& rank, const Event& event) {
    if (!apply(event, rank.schedule).ok()) {
      return false;
    }
    for (const Decision& decision : rank.schedule.decisions()) {
      if (decision.ticket != 0) {
        rank.launches.push_back(std::string(to_string(decision.command)) + " " +
                                std::to_string(decision.bucket) + ", ticket " +
                                std::to_string(decision.ticket));
      }
    }
    return true;
  }

  /// Of the trainer: a norm, a barrier. It takes the device's next ticket.
  void own_collective() {
    if (!random_.percent(50)) {
      return;
    }
    ++coverage_.own_collectives;
    for (Rank& rank : ranks_) {
      const Ticket ticket = rank.schedule.next_ticket();
      rank.launches.push_back("own collective, ticket " + std::to_string(ticket));
      rank.schedule.set_next_ticket(ticket + 1);
    }
  }

  void begin_update() {
    finish_updates(100);
    if (left_) {
      for (Rank& rank : ranks_) {
        if (call(rank, {.kind = EventKind::begin_update}) && !fault_) {
          fault_ = "every rank refuses an update behind a micro-batch that did not reduce";
        }
      }
      return;
    }
    all({.kind = EventKind::begin_update});
    not_updated_.clear();
    for (BucketId bucket = 0; bucket < ranks_[0].schedule.plan().slot_class.size(); ++bucket) {
      not_updated_.push_back(bucket);
      coverage_.kept_gathered += ranks_[0].schedule.held(bucket) ? 1U : 0U;
    }
    if (random_.percent(60)) {
      shuffle(random_, not_updated_);
    }
    finish_updates(random_.percent(80) ? 100 : 80);
  }

  /// Each of the next buckets with `chance` percent, up to the first that is not.
  void finish_updates(std::uint32_t chance) {
    std::size_t count = 0;
    while (count < not_updated_.size() && random_.percent(chance)) {
      all({.kind = EventKind::updated, .id = not_updated_[count], .changed = random_.percent(50)});
      ++count;
    }
    not_updated_.erase(not_updated_.begin(),
                       not_updated_.begin() + static_cast<std::ptrdiff_t>(count));
  }

  /// A use of one rank; `inside` is what it does before the end. What is refused is left out.
  template <typename Inside>
  void use(Rank& rank, UnitId unit, bool backward, Inside inside) {
    const Event begin{.kind = backward ? EventKind::begin_backward : EventKind::begin_forward,
                      .id = unit};
    const bool granted = call(rank, begin);
    coverage_.uses_refused += granted ? 0U : 1U;
    inside();
    if (granted) {
      call(rank, {.kind = backward ? EventKind::end_backward : EventKind::end_forward, .id = unit});
    }
  }

  void forwards(bool in_eval) {
    for (Rank& rank : ranks_) {
      for (std::size_t i = 0; i < order_.size(); ++i) {
        if (rank.random.percent(left_out_)) {
          ++coverage_.uses_left_out;
          continue;
        }
        use(rank, order_[i], false, [&] {
          if (rank.random.percent(20)) {  // nested
            const UnitId inner = order_[rank.random.below(static_cast<std::uint32_t>(i + 1))];
            use(rank, inner, false, [] {});
            rank.seen.push_back(inner);
          }
        });
        rank.seen.push_back(order_[i]);
      }
      if (in_eval) {
        rank.seen.clear();
      }
    }
  }

  /// Of what a rank has seen, the last `part` percent.
  void backwards(std::uint32_t part) {
    for (Rank& rank : ranks_) {
      const std::size_t rest = rank.seen.size() * (100 - part) / 100;
      while (rank.seen.size() > rest) {
        const UnitId unit = rank.seen.back();
        rank.seen.pop_back();
        if (rank.random.percent(3)) {
          continue;  // a forward without a backward
        }
        use(rank, unit, true, [&] {
          if (rank.random.percent(10)) {  // recomputed
            use(rank, unit, false, [] {});
          }
          if (rank.random.percent(10)) {
            use(rank, order_[rank.random.below(static_cast<std::uint32_t>(order_.size()))], true,
                [] {});
          }
        });
      }
    }
  }

  void eval() {
    if (!random_.percent(20)) {
      return;
    }
    all({.kind = EventKind::begin_eval});
    const std::vector<std::vector<UnitId>> seen = [&] {
      std::vector<std::vector<UnitId>> of_ranks;
      for (const Rank& rank : ranks_) {
        of_ranks.push_back(rank.seen);
      }
      return of_ranks;
    }();
    forwards(true);
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].seen = seen[rank];
    }
    all({.kind = EventKind::end_eval});
  }

  void micro_batch() {
    const bool reduces = !random_.percent(without_reduce_);
    coverage_.accumulated += reduces ? 0U : 1U;
    all({.kind = EventKind::begin_micro_batch, .reduces = reduces});
    if (random_.percent(30)) {
      shuffle(random_, order_);
    }
    forwards(false);
    finish_updates(50);
    eval();
    if (random_.percent(5)) {
      begin_update();
    }
    if (random_.percent(20)) {
      forwards(false);
    }
    finish_updates(random_.percent(80) ? 100 : 50);
    backwards(random_.below(101));
    finish_updates(50);
    eval();
    backwards(random_.percent(90) ? 100 : 50);
    for (Rank& rank : ranks_) {
      rank.seen.clear();
    }
    all({.kind = EventKind::end_micro_batch});
    left_ = !reduces;
    own_collective();
    finish_updates(50);
    own_collective();
    if (random_.percent(20)) {
      finish_updates(100);
    }
  }

  void end_step() {
    all({.kind = EventKind::step_end});
    left_ = false;
    own_collective();
    const AgreedOrder record = ranks_[0].schedule.recorded();
    coverage_.orders_changed += record == ranks_[0].schedule.agreed_order() ? 0U : 1U;
    for (Rank& rank : ranks_) {
      coverage_.zero_reduces += rank.schedule.counters().zero_reduces;
      rank.schedule.adopt(record);
    }
    begin_update();
    own_collective();
  }

  void compare(std::size_t rank) {
    const auto& right = ranks_[0].launches;
    const auto& own = ranks_[rank].launches;
    const auto [at_0, at_own] = std::ranges::mismatch(right, own);
    if (at_0 != right.end() || at_own != own.end()) {
      fault_ = "all ranks launch alike: rank 0 " + (at_0 == right.end() ? "nothing" : *at_0) +
               ", rank " + std::to_string(rank) + " " + (at_own == own.end() ? "nothing" : *at_own);
    }
  }

  Random random_;
  RanksCoverage& coverage_;
  std::vector<Rank> ranks_;
  std::vector<UnitId> order_;
  std::uint32_t left_out_ = 0;        ///< percent of the uses of a rank
  std::uint32_t without_reduce_ = 0;  ///< percent of the micro-batches
  bool left_ = false;                 ///< the last one did not reduce
  std::vector<BucketId> not_updated_;
  std::optional<std::string> fault_;
};

}  // namespace

std::optional<std::string> ranks_part(std::uint64_t seed, RanksCoverage& coverage) {
  return Ranks(seed, coverage).run();
}

}  // namespace troupe::testing
