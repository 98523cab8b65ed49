/// [Note: the agreed order] of core/schedule.hpp written down as plainly as possible, as
/// `ReferenceSchedule` has the twelve rules: lists are walked, and little is remembered. A header
/// only, so that whoever uses the reference need not name it.
#pragma once

#include "schedule_random.hpp"
#include "troupe/core/schedule.hpp"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace troupe::testing {

class AgreedReference {
 public:
  explicit AgreedReference(const SchedulePlan& plan)
      : plan_(plan), order_(plan.first_order), stale_(plan.slot_class.size(), true) {
    for (const SchedulePlan::Class& limit : plan.gradient_classes) {
      auto& slots = free_gradient_.emplace_back();
      for (std::uint32_t i = 0; i < limit.count; ++i) {
        slots.push_back(limit.first + i);
      }
    }
  }

  void adopt(AgreedOrder order) { order_ = std::move(order); }
  const AgreedOrder& order() const { return order_; }
  const AgreedOrder& recorded() const { return recorded_; }

  std::vector<Decision> decide(const Event& event) {
    told_.clear();
    switch (event.kind) {
      case EventKind::begin_micro_batch:
        in_micro_batch_ = true;
        reduces_ = event.reduces;
        break;
      case EventKind::end_micro_batch:
        end_micro_batch();
        break;
      case EventKind::begin_forward:
      case EventKind::begin_backward:
        begin(event.id, event.kind == EventKind::begin_backward);
        break;
      case EventKind::end_forward:
      case EventKind::end_backward:
        end(event.id, event.kind == EventKind::end_backward);
        break;
      case EventKind::begin_eval:
        in_eval_ = true;
        break;
      case EventKind::end_eval:
        gather_all();
        in_eval_ = false;
        break;
      case EventKind::step_end:
        end_step();
        break;
      case EventKind::begin_update:
        if (in_micro_batch_) {
          gather_all();
        }
        all_stale();
        break;
      case EventKind::updated:
        updated(event.id, event.changed);
        break;
      case EventKind::reshard:
      case EventKind::adopt:
        break;
    }
    return told_;
  }

 private:
  struct OpenUse {
    UnitId unit = 0;
    Pass pass = Pass::forward;
    bool in_eval = false;
  };

  static bool contains(const std::vector<BucketId>& buckets, BucketId bucket) {
    return std::ranges::find(buckets, bucket) != buckets.end();
  }
  bool trains(BucketId bucket) const {
    return plan_.gradient_class[bucket] != SchedulePlan::no_class;
  }
  std::deque<SlotId>& free_gradient(BucketId bucket) {
    return free_gradient_[plan_.gradient_class[bucket]];
  }
  std::size_t place_of(BucketId bucket) const {
    return static_cast<std::size_t>(std::ranges::find(order_.gathers, bucket) -
                                    order_.gathers.begin());
  }
  std::ptrdiff_t count(const std::vector<OpenUse>& uses, BucketId bucket, Pass pass) const {
    return std::ranges::count_if(uses, [&](const OpenUse& use) {
      return use.pass == pass && contains(plan_.unit_buckets[use.unit], bucket);
    });
  }
  /// In this micro-batch: nothing is missing from its gradient, and it is not reduced yet.
  bool complete(BucketId bucket) const {
    const auto ended = count(ended_, bucket, Pass::backward);
    return ended > 0 && filling_.contains(bucket) &&
           ended == count(begun_, bucket, Pass::backward) &&
           ended >= count(begun_, bucket, Pass::forward);
  }

  void tell(Command command, BucketId bucket, SlotId slot, Ticket ticket = 0) {
    told_.push_back({command, bucket, slot, ticket});
  }

  // Gathers.

  /// In order, up to the first stale bucket.
  void gather_before(std::size_t place) {
    for (const BucketId bucket : order_.gathers) {
      if (stale_[bucket] || place_of(bucket) >= place) {
        return;
      }
      if (!held_.contains(bucket)) {
        const bool again =
            !plan_.regathers.empty() && plan_.regathers[bucket] && gathered_.contains(bucket);
        const SlotId slot = plan_.slot_classes[plan_.slot_class[bucket]].first;
        tell(again ? Command::regather : Command::gather, bucket, slot, next_ticket_++);
        held_[bucket] = slot;
        gathered_.insert(bucket);
      }
    }
  }
  void gather_all() {
    reached_ = order_.gathers.size();
    gather_before(reached_);
  }
  void prefetch() { gather_before(reached_ + static_cast<std::size_t>(plan_.prefetch_depth)); }

  void give_back(BucketId bucket) {
    tell(Command::step_end, bucket, held_[bucket]);
    held_.erase(bucket);
  }
  void all_stale() {
    for (BucketId bucket = 0; bucket < stale_.size(); ++bucket) {
      if (held_.contains(bucket) && trains(bucket)) {
        give_back(bucket);
      }
    }
    stale_.assign(stale_.size(), true);
    gathered_.clear();
    reached_ = 0;
  }
  void updated(BucketId bucket, bool changed) {
    if (stale_[bucket] && held_.contains(bucket) && changed) {
      give_back(bucket);
    }
    stale_[bucket] = false;
    prefetch();
  }

  // Reduces.

  void take_gradient_slot(BucketId bucket) {
    filling_[bucket] = free_gradient(bucket).front();
    free_gradient(bucket).pop_front();
    tell(Command::contribute, bucket, filling_[bucket]);
  }
  void reduce(BucketId bucket) {
    tell(Command::reduce, bucket, filling_[bucket], next_ticket_);
    next_ticket_ += plan_.replica_sum == ReplicaSum::every_reduce ? 2U : 1U;
    free_gradient(bucket).push_back(filling_[bucket]);
    filling_.erase(bucket);
    reduced_.insert(bucket);
    reduced_in_step_.insert(bucket);
  }
  /// In order: complete ones, and unused ones in front of a complete one, as long as these find a
  /// slot for their zeros. The end of a micro-batch reduces all.
  void reduce_in_order(bool all) {
    for (auto next = order_.reduces.begin(); next != order_.reduces.end(); ++next) {
      if (reduced_.contains(*next)) {
        continue;
      }
      const bool waited_for = std::any_of(next, order_.reduces.end(),
                                          [&](BucketId bucket) { return complete(bucket); });
      const bool unused =
          count(begun_, *next, Pass::backward) == 0 && count(begun_, *next, Pass::forward) == 0;
      if (!all && !complete(*next) && !(unused && waited_for)) {
        return;
      }
      if (!filling_.contains(*next)) {
        if (free_gradient(*next).empty()) {
          return;
        }
        take_gradient_slot(*next);
      }
      reduce(*next);
    }
  }
  /// Where all slots of a class are held and its first bucket has none for its zeros, the first
  /// that holds one goes out of turn.
  void relieve_zeros() {
    for (const BucketId bucket : order_.reduces) {
      const auto next = std::ranges::find_if(order_.reduces, [&](BucketId other) {
        return plan_.gradient_class[other] == plan_.gradient_class[bucket] &&
               !reduced_.contains(other);
      });
      if (filling_.contains(bucket) && free_gradient(bucket).empty() && !filling_.contains(*next)) {
        reduce(bucket);
      }
    }
  }
  /// Complete buckets out of turn, until a backward of `unit` finds its gradient slots.
  void relieve(UnitId unit) {
    const std::vector<BucketId>& own = plan_.unit_buckets[unit];
    for (const BucketId needy : own) {
      const auto lacks = [&](BucketId bucket) {
        return trains(bucket) && !filling_.contains(bucket) &&
               plan_.gradient_class[bucket] == plan_.gradient_class[needy];
      };
      const auto wanted = static_cast<std::size_t>(std::ranges::count_if(own, lacks));
      for (const BucketId other : order_.reduces) {
        if (lacks(needy) && free_gradient(needy).size() < wanted && complete(other) &&
            plan_.gradient_class[other] == plan_.gradient_class[needy] && !contains(own, other)) {
          reduce(other);
        }
      }
    }
  }

  // Events.

  void begin(UnitId unit, bool backward) {
    const bool recomputes =
        std::ranges::any_of(begun_, [](const OpenUse& use) { return use.pass == Pass::backward; });
    const Pass forward = recomputes && !in_eval_ ? Pass::recompute : Pass::forward;
    const OpenUse use{unit, backward ? Pass::backward : forward, in_eval_};
    open_.push_back(use);
    if (!in_eval_) {
      begun_.push_back(use);
    }
    const std::vector<BucketId>& own = plan_.unit_buckets[unit];
    std::vector<BucketId> absent;
    for (const BucketId bucket : own) {
      if (held_.contains(bucket)) {
        tell(Command::use, bucket, held_[bucket]);
      } else {
        absent.push_back(bucket);
      }
    }
    for (const BucketId bucket : absent) {
      gather_before(place_of(bucket) + 1);
      tell(Command::use, bucket, held_[bucket]);
    }
    if (backward) {
      gather_all();
      relieve(unit);
    }
    for (const BucketId bucket : own) {
      reached_ = std::max(reached_, place_of(bucket) + 1);
      if (!in_eval_ && !contains(record_.gathers, bucket)) {
        record_.gathers.push_back(bucket);
      }
      if (backward && trains(bucket) && !filling_.contains(bucket)) {
        take_gradient_slot(bucket);
      }
    }
    prefetch();
  }

  void end(UnitId unit, bool backward) {
    const auto fits = [&](const OpenUse& open) {
      return open.unit == unit && (open.pass == Pass::backward) == backward &&
             open.in_eval == in_eval_;
    };
    const auto latest = std::find_if(open_.rbegin(), open_.rend(), fits);
    if (latest == open_.rend()) {
      return;
    }
    if (!in_eval_) {
      ended_.push_back(*latest);
    }
    open_.erase(std::next(latest).base());
    for (const BucketId bucket : plan_.unit_buckets[unit]) {
      tell(Command::release, bucket, held_[bucket]);
    }
    if (backward) {
      for (const BucketId bucket : plan_.unit_buckets[unit]) {
        if (complete(bucket) && !contains(record_.reduces, bucket)) {
          record_.reduces.push_back(bucket);
        }
      }
      if (reduces_) {
        reduce_in_order(false);
      }
    }
    prefetch();
  }

  /// Puts each bucket that only `next` names behind those before it there, and behind those that
  /// only `list` names as long as the order in force has these before it.
  /// by_time  gathers: what has nothing in common with `list` is behind it as a whole
  void merge(std::vector<BucketId>& list, const std::vector<BucketId>& next, bool by_time) const {
    const std::vector<BucketId> old = list;
    const std::vector<BucketId>& order = by_time ? order_.gathers : order_.reduces;
    const auto place = [](const std::vector<BucketId>& in, BucketId bucket) {
      return std::ranges::find(in, bucket) - in.begin();
    };
    const bool apart = std::ranges::none_of(next, [&](BucketId b) { return contains(old, b); });
    std::ptrdiff_t behind = by_time && apart ? std::ssize(list) : 0;
    for (const BucketId bucket : next) {
      if (!contains(old, bucket)) {
        while (behind < std::ssize(list) &&
               !contains(next, list[static_cast<std::size_t>(behind)]) &&
               place(order, list[static_cast<std::size_t>(behind)]) < place(order, bucket)) {
          ++behind;
        }
        list.insert(list.begin() + behind, bucket);
      }
      behind = std::max(behind, place(list, bucket) + 1);
    }
  }

  /// Of the buckets all of whose units were used.
  void record_micro_batch() {
    const auto partly = [&](const std::vector<OpenUse>& uses, Pass pass) {
      return [&, pass](BucketId bucket) {
        const auto units = std::ranges::count_if(
            plan_.unit_buckets, [&](const auto& of_unit) { return contains(of_unit, bucket); });
        return count(uses, bucket, pass) < units;
      };
    };
    std::erase_if(record_.gathers, partly(begun_, Pass::forward));
    std::erase_if(record_.reduces, partly(ended_, Pass::backward));
    merge(step_record_.gathers, record_.gathers, true);
    merge(step_record_.reduces, record_.reduces, false);
    record_ = {};
  }

  void end_micro_batch() {
    gather_all();
    if (reduces_) {
      relieve_zeros();
      reduce_in_order(true);
    }
    record_micro_batch();
    begun_.clear();
    ended_.clear();
    reduced_.clear();
    in_micro_batch_ = false;
  }

  void end_step() {
    if (!reduces_) {  // the last micro-batch
      reduce_in_order(true);
      reduced_.clear();
      reduces_ = true;
    }
    for (const BucketId bucket : reduced_in_step_) {  // ascending
      if (plan_.replica_sum == ReplicaSum::at_step_end) {
        tell(Command::sum_replicas, bucket, no_slot, next_ticket_++);
      }
    }
    reduced_in_step_.clear();
    all_stale();
    merge(step_record_.gathers, order_.gathers, true);
    merge(step_record_.reduces, order_.reduces, false);
    recorded_ = step_record_;
    step_record_ = {};
  }

  const SchedulePlan& plan_;
  AgreedOrder order_;
  AgreedOrder record_;       ///< of this micro-batch
  AgreedOrder step_record_;  ///< of those before it
  AgreedOrder recorded_;     ///< of the last step
  std::vector<bool> stale_;
  std::map<BucketId, SlotId> held_;
  std::set<BucketId> gathered_;  ///< since everything was stale
  std::size_t reached_ = 0;      ///< the place behind all that was asked for since then
  std::map<BucketId, SlotId> filling_;
  std::vector<std::deque<SlotId>> free_gradient_;
  std::set<BucketId> reduced_;  ///< in this micro-batch
  std::set<BucketId> reduced_in_step_;
  std::vector<OpenUse> open_;
  std::vector<OpenUse> begun_;  ///< uses of training that began in this micro-batch
  std::vector<OpenUse> ended_;  ///< … and those that ended
  bool in_micro_batch_ = false;
  bool reduces_ = true;  ///< this micro-batch does, or the last one did
  bool in_eval_ = false;
  Ticket next_ticket_ = 1;
  std::vector<Decision> told_;
};

}  // namespace troupe::testing
