#include "troupe/comm/call_check.hpp"
#include "troupe/runtime/processes/failure_report.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace troupe {

namespace {

using Dumps = std::map<int, LaunchDump>;

const LaunchDump::Launch* find_ticket(const LaunchDump& dump, Ticket ticket) {
  const auto found = std::ranges::find(
      dump.launches, ticket, [](const LaunchDump::Launch& launch) { return launch.record.ticket; });
  return found == dump.launches.end() ? nullptr : &*found;
}

Ticket last_ticket(const LaunchDump& dump) {
  return dump.launches.empty() ? 0 : dump.launches.back().record.ticket;
}

struct Range {
  Ticket first = 1;
  Ticket last = 0;
};

/// From the first ticket that all tell of, to the last that any has launched.
Range tickets(const Dumps& dumps) {
  Range range;
  for (const auto& [rank, dump] : dumps) {
    if (!dump.launches.empty()) {
      range.first = std::max(range.first, dump.launches.front().record.ticket);
    }
    range.last = std::max(range.last, last_ticket(dump));
  }
  return range;
}

/// What the ranks have launched under one ticket: ranks by launch, those of the lowest rank first;
/// and who has launched nothing.
struct Ticketed {
  std::vector<std::pair<const LaunchRecord*, std::vector<int>>> launches;
  std::vector<int> missing;
  std::vector<int> not_ended;
};

Ticketed look_at(const Dumps& dumps, Ticket ticket) {
  Ticketed seen;
  for (const auto& [rank, dump] : dumps) {
    const LaunchDump::Launch* launch = find_ticket(dump, ticket);
    if (launch == nullptr) {
      seen.missing.push_back(rank);
      continue;
    }
    const auto same = std::ranges::find_if(
        seen.launches, [&](const auto& each) { return *each.first == launch->record; });
    if (same == seen.launches.end()) {
      seen.launches.push_back({&launch->record, {rank}});
    } else {
      same->second.push_back(rank);
    }
    if (launch->state != "done") {
      seen.not_ended.push_back(rank);
    }
  }
  return seen;
}

std::string parted(const Ticketed& seen) {
  std::string text =
      "the ranks part at ticket " + std::to_string(seen.launches.front().first->ticket) + ": ";
  for (const auto& [record, ranks] : seen.launches) {
    text += (ranks == seen.launches.front().second ? "" : "; ") + describe_ranks(ranks) +
            " launched " + to_string(*record);
  }
  return text + (seen.missing.empty() ? "" : "; " + describe_ranks(seen.missing) + " nothing");
}

std::string missed(const Dumps& dumps, const Ticketed& seen) {
  std::string text =
      to_string(*seen.launches.front().first) + " is missing on " + describe_ranks(seen.missing);
  for (const int rank : seen.missing) {
    const LaunchDump& dump = dumps.at(rank);
    text += "; rank " + std::to_string(rank) + " launched " +
            (dump.launches.empty() ? "nothing"
                                   : "last " + to_string(dump.launches.back().record) + " (" +
                                         dump.launches.back().state + ")");
  }
  return text;
}

/// Where ranks that have told nothing may be what the others wait for, one that lacks a launch is
/// not at fault: it waits in the one before.
std::string waited(Ticket ticket, const Ticketed& seen) {
  const auto& [record, ranks] = seen.launches.front();
  return "all have launched the same up to ticket " + std::to_string(ticket - 1) + ", and " +
         describe_ranks(ranks) + " also " + to_string(*record);
}

std::string where(const Dumps& dumps, bool all_told) {
  const Range range = tickets(dumps);
  std::string first_not_ended;
  for (Ticket ticket = range.first; ticket <= range.last; ++ticket) {
    const Ticketed seen = look_at(dumps, ticket);
    if (seen.launches.size() > 1) {
      return parted(seen);
    }
    if (!seen.missing.empty()) {
      return all_told ? missed(dumps, seen) : waited(ticket, seen) + first_not_ended;
    }
    if (!seen.not_ended.empty() && first_not_ended.empty()) {
      first_not_ended = "; the first that has not ended is " +
                        to_string(*seen.launches.front().first) + ", on " +
                        describe_ranks(seen.not_ended);
    }
  }
  return "all have launched the same up to ticket " + std::to_string(range.last) + first_not_ended;
}

}  // namespace

std::string summarize(const Dumps& dumps, int world_size) {
  std::vector<int> heard;
  std::vector<int> unheard;
  for (int rank = 0; rank < world_size; ++rank) {
    (dumps.contains(rank) ? heard : unheard).push_back(rank);
  }
  if (heard.empty()) {
    return "no rank has told what it launched";
  }
  const std::string gone =
      unheard.empty() ? "" : "nothing was heard of " + describe_ranks(unheard) + "; ";
  return gone + "of " + describe_ranks(heard) + ", " + where(dumps, unheard.empty());
}

}  // namespace troupe
