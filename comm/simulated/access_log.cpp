#include "troupe/comm/simulated/access_log.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace troupe {

namespace {

bool conflict(const Access& a, const Access& b) {
  const auto* const a_first = static_cast<const std::byte*>(a.data);
  const auto* const b_first = static_cast<const std::byte*>(b.data);
  return (a.writes || b.writes) && a_first < b_first + b.bytes && b_first < a_first + a.bytes;
}

}  // namespace

std::string to_string(const AccessUser& user) {
  return std::string(user.what) + " " + std::to_string(user.number) + " on rank " +
         std::to_string(user.rank);
}

AccessLog::Id AccessLog::begin(const AccessUser& user, std::vector<Access> accesses) {
  touch(user, accesses);
  active_.push_back({++last_, user, std::move(accesses)});
  return last_;
}

void AccessLog::end(Id id) {
  const auto found = std::ranges::find(active_, id, &Active::id);
  if (found != active_.end()) {
    tell(found->user.rank, found->accesses);
    *found = std::move(active_.back());
    active_.pop_back();
  }
}

void AccessLog::moves(Id id) const {
  const auto found = std::ranges::find(active_, id, &Active::id);
  if (found != active_.end()) {
    tell(found->user.rank, found->accesses);
  }
}

void AccessLog::tell(int rank, const std::vector<Access>& accesses) const {
  if (observer_) {
    for (const Access& access : accesses) {
      observer_(rank, access);
    }
  }
}

void AccessLog::touch(const AccessUser& user, const std::vector<Access>& accesses) const {
  tell(user.rank, accesses);
  for (const Active& other : active_) {
    for (const Access& theirs : other.accesses) {
      for (const Access& own : accesses) {
        if (conflict(own, theirs)) {
          report_(to_string(user) + (own.writes ? " writes" : " reads") + " what " +
                  to_string(other.user) + (theirs.writes ? " writes" : " reads"));
          return;
        }
      }
    }
  }
}

}  // namespace troupe
