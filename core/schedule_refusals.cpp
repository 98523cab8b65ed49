// Why the schedule refuses an event, in words. A refused event changes nothing.
#include "troupe/core/schedule.hpp"
#include "troupe/core/text.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

namespace {

using detail::concat;

Failure misuse(std::string text) {
  return detail::failure(ErrorCode::misuse, std::move(text));
}

/// "`slots` (3)", or a description where no option sets the count.
std::string limit_text(const SchedulePlan::Class& limit, std::string_view noun) {
  return limit.option.empty() ? detail::count_of(limit.count, noun)
                              : concat("`", limit.option, "` = ", limit.count);
}

std::string remedy(const SchedulePlan::Class& limit, std::size_t least) {
  return limit.option.empty() ? concat("; ", least, " would do")
                              : concat("; `", limit.option, "` = ", least, " would do");
}

}  // namespace

std::optional<Failure> Schedule::refuse_begin(UnitId unit, bool backward) {
  if (unit >= plan_.unit_buckets.size()) {
    return misuse(concat("there is no ", unit_text(unit), " to use"));
  }
  if (in_eval_ && backward) {
    return misuse(
        concat("backward of ", unit_text(unit), " inside eval; only forwards are allowed there"));
  }
  if (!in_eval_ && !in_micro_batch_) {
    return misuse(concat(use_text({unit, pass_of(backward)}),
                         " outside a micro-batch and eval; open one with micro_batch() or eval()"));
  }
  for (const BucketId bucket : plan_.unit_buckets[unit]) {
    if (buckets_[bucket].stale) {
      Failure failure = misuse(concat(
          use_text({unit, pass_of(backward)}), ": the parameters of bucket ",
          plan_.bucket_names[bucket],
          " are not initialised, or not updated since the last step; call runtime.update() first"));
      failure.bucket = bucket;
      return failure;
    }
  }
  if (auto refused = plan_.agreed ? refuse_agreed(unit, backward) : refuse_slots(unit, backward)) {
    return refused;
  }
  return backward ? refuse_gradient_slots(unit) : std::nullopt;
}

std::optional<Failure> Schedule::refuse_slots(UnitId unit, bool backward) {
  // A unit fits if, in each class, its buckets and what is pinned besides them do.
  std::optional<std::uint32_t> exceeded;
  for (const BucketId bucket : plan_.unit_buckets[unit]) {
    const std::uint32_t index = plan_.slot_class[bucket];
    wanted_[index] += buckets_[bucket].uses == 0 ? 1U : 0U;
    if (classes_[index].pinned + wanted_[index] > plan_.slot_classes[index].count) {
      exceeded = exceeded.value_or(index);
    }
  }
  const std::uint32_t wanted = exceeded ? wanted_[*exceeded] : 0;
  for (const BucketId bucket : plan_.unit_buckets[unit]) {
    wanted_[plan_.slot_class[bucket]] = 0;
  }
  if (!exceeded) {
    return std::nullopt;
  }
  const SchedulePlan::Class& limit = plan_.slot_classes[*exceeded];
  const std::uint32_t pinned = classes_[*exceeded].pinned;
  return misuse(concat(
      use_text({unit, pass_of(backward)}), " needs ", detail::count_of(wanted, "more slot"),
      ", but of ", limit_text(limit, "slot"),
      pinned == 0 ? " all are free"
                  : concat(", ", pinned, " are pinned by open uses: ", open_uses_of(*exceeded)),
      remedy(limit, pinned + wanted)));
}

std::optional<Failure> Schedule::refuse_gradient_slots(UnitId unit) {
  // Waiting buckets give up their slots (relieve), except those that this backward adds to.
  const auto available = [&](std::uint32_t index) {
    if (waiting_in(index) == 0) {
      return gradient_classes_[index].count();
    }
    const auto kept = std::ranges::count_if(plan_.unit_buckets[unit], [&](BucketId bucket) {
      return buckets_[bucket].waiting && plan_.gradient_class[bucket] == index;
    });
    return gradient_classes_[index].count() + waiting_in(index) - static_cast<std::uint32_t>(kept);
  };
  std::optional<std::uint32_t> exceeded;
  for (const BucketId bucket : plan_.unit_buckets[unit]) {
    const std::uint32_t index = plan_.gradient_class[bucket];
    if (trains(bucket) && buckets_[bucket].gradient_slot == no_slot &&
        ++wanted_[index] > available(index)) {
      exceeded = exceeded.value_or(index);
    }
  }
  const std::uint32_t wanted = exceeded ? wanted_[*exceeded] : 0;
  for (const BucketId bucket : plan_.unit_buckets[unit]) {
    if (trains(bucket)) {
      wanted_[plan_.gradient_class[bucket]] = 0;
    }
  }
  if (!exceeded) {
    return std::nullopt;
  }
  const SchedulePlan::Class& limit = plan_.gradient_classes[*exceeded];
  const std::uint32_t filling = gradient_slots_in_use(*exceeded);
  return misuse(concat(
      use_text({unit, Pass::backward}), " needs ", detail::count_of(wanted, "more gradient slot"),
      ", but of ", limit_text(limit, "gradient slot"),
      filling == 0 ? " all are free"
                   : concat(", ", filling, " are held by: ", holders_of(*exceeded)),
      remedy(limit, filling + wanted)));
}

/// [Note: the agreed order] Gathers go in order, all of them before the first reduce; and a
/// micro-batch reduces a bucket once.
std::optional<Failure> Schedule::refuse_agreed(UnitId unit, bool backward) const {
  std::size_t needed = backward ? agreed_.gathers.size() : 0;  // places
  for (const BucketId bucket : plan_.unit_buckets[unit]) {
    needed = held(bucket) ? needed : std::max(needed, buckets_[bucket].gather_place);
  }
  for (std::size_t place = next_gather_; place < needed; ++place) {
    if (const BucketId before = agreed_.gathers[place]; buckets_[before].stale) {
      Failure failure = misuse(
          concat(use_text({unit, pass_of(backward)}), ": bucket ", plan_.bucket_names[before],
                 " is gathered before ", backward ? "the first reduce" : "its parameters",
                 ", and is not updated since the last step; finish the update first"));
      failure.bucket = before;
      return failure;
    }
  }
  for (const BucketId bucket : plan_.unit_buckets[unit]) {
    if (backward && buckets_[bucket].reduced) {
      Failure failure = misuse(concat(use_text({unit, Pass::backward}), ": the gradient of bucket ",
                                      plan_.bucket_names[bucket],
                                      " was reduced already in this micro-batch, complete or as "
                                      "zeros of a unit not used; under "
                                      "this strategy that happens once in each"));
      failure.bucket = bucket;
      return failure;
    }
  }
  return std::nullopt;
}

std::optional<Failure> Schedule::refuse_update() const {
  if (auto refused = refuse_if_open("an update cannot begin", 0)) {
    return refused;
  }
  // With an agreed order ranks may have filled different buckets: all are refused, or none.
  if (left_ && (plan_.agreed || filling_count_ > 0)) {
    return misuse(
        "an update cannot begin while gradients are being accumulated: the last micro-batch did "
        "not reduce them; let one reduce, or finish the gradients first");
  }
  for (std::uint32_t index = 0; filling_count_ > 0 && index < gradient_classes_.size(); ++index) {
    if (gradient_slots_in_use(index) > 0) {
      return misuse(concat("an update cannot begin while gradients are being accumulated: ",
                           holders_of(index), "; end the micro-batch first"));
    }
  }
  if (plan_.agreed && in_backward_) {
    return misuse(
        "an update cannot begin inside a micro-batch that has begun its backwards: where ranks use "
        "different units, some have reduced and others have not; end the micro-batch first");
  }
  return std::nullopt;
}

std::optional<Failure> Schedule::refuse_if_open(std::string_view event, std::size_t first) const {
  if (open_.size() <= first) {
    return std::nullopt;
  }
  std::vector<std::string> names;
  for (std::size_t i = first; i < open_.size(); ++i) {
    names.push_back(use_text(open_[i]));
  }
  return misuse(concat(event, " while a use is open: ", detail::listed(names, 8)));
}

/// The open uses that pin slots of one class.
std::string Schedule::open_uses_of(std::uint32_t slot_class) const {
  std::vector<std::string> names;
  for (const PredictedUse& use : open_) {
    const auto in_class = [&](BucketId bucket) { return plan_.slot_class[bucket] == slot_class; };
    if (std::ranges::any_of(plan_.unit_buckets[use.unit], in_class)) {
      names.push_back(use_text(use));
    }
  }
  return detail::listed(names, 8);
}

/// The buckets that hold gradient slots of one class, and what each is waiting for.
std::string Schedule::holders_of(std::uint32_t gradient_class) const {
  std::vector<std::string> names;
  for (BucketId bucket = 0; bucket < buckets_.size(); ++bucket) {
    const BucketView& view = buckets_[bucket];
    if (view.gradient_slot == no_slot || plan_.gradient_class[bucket] != gradient_class) {
      continue;
    }
    std::string name = concat("bucket ", plan_.bucket_names[bucket]);
    if (view.backwards_open == 0) {
      name += concat(", after ", view.backwards_ended, " of ", view.forwards_begun, " backwards");
    }
    for (const PredictedUse& use : open_) {
      if (use.pass == Pass::backward &&
          std::ranges::count(plan_.unit_buckets[use.unit], bucket) > 0) {
        name += concat(", open ", use_text(use));
      }
    }
    names.push_back(std::move(name));
  }
  return detail::listed(names, 8);
}

std::string Schedule::use_text(PredictedUse use) const {
  return concat(to_string(use.pass), " of ", unit_text(use.unit));
}

std::string Schedule::unit_text(UnitId unit) const {
  return unit < plan_.unit_names.size() ? concat("unit '", plan_.unit_names[unit], "'")
                                        : concat("unit ", unit);
}

}  // namespace troupe
