/// How far a rank is: what it tells the others about its collectives when something goes wrong. A
/// value that is sent.
#pragma once

#include "troupe/comm/process/launch_log.hpp"
#include "troupe/comm/process/wire.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct RankPosition {
  int rank = 0;
  std::vector<GroupPosition> groups;

  bool operator==(const RankPosition&) const = default;
};

std::string encode(RankPosition position);
/// Nothing if it is damaged.
std::optional<RankPosition> decode_position(std::string_view bytes);

/// The group of that name, null if the rank has launched nothing there.
const GroupPosition* find_group(const RankPosition& position, const GroupName& group);
/// The launch of that turn, null if it is not told.
const LoggedLaunch* find_launch(const GroupPosition& position, std::uint64_t turn);

/// Ranks of a world, and so of a group, at most.
inline constexpr std::size_t ranks_max = 65536;

template <class Wire>
void carry(Wire& wire, GroupName& name) {
  wire.list(name.ranks, ranks_max, [](Wire& each, int& rank) { each.number(rank); });
  wire.number(name.channel);
}

template <class Wire>
void carry(Wire& wire, LoggedCall& call) {
  wire.choice(call.op, Collective::barrier);
  wire.number(call.ticket);
  wire.number(call.runtime);
  wire.number(call.bucket);
  wire.text(call.label, 1024);  // a position has many
  wire.choice(call.dtype, DType::bf16);
  wire.number(call.numel);
  wire.number(call.root);
}

}  // namespace troupe
