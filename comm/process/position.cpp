#include "troupe/comm/process/position.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

namespace {

constexpr std::size_t groups_max = 4096;

template <class Wire>
void carry_position(Wire& wire, RankPosition& position) {
  wire.number(position.rank);
  wire.list(position.groups, groups_max, [](Wire& w, GroupPosition& group) {
    carry(w, group.group);
    w.number(group.launched);
    w.list(group.launches, LaunchLog::told_max, [](Wire& each, LoggedLaunch& launch) {
      each.number(launch.turn);
      carry(each, launch.call);
      each.choice(launch.stage, LaunchStage::ended);
    });
  });
}

}  // namespace

std::string encode(RankPosition position) {
  WireWriter writer;
  carry_position(writer, position);
  return writer.take();
}

std::optional<RankPosition> decode_position(std::string_view bytes) {
  WireReader reader(bytes);
  RankPosition position;
  carry_position(reader, position);
  return reader.complete() ? std::optional(std::move(position)) : std::nullopt;
}

const GroupPosition* find_group(const RankPosition& position, const GroupName& group) {
  const auto found = std::ranges::find(position.groups, group, &GroupPosition::group);
  return found == position.groups.end() ? nullptr : &*found;
}

const LoggedLaunch* find_launch(const GroupPosition& position, std::uint64_t turn) {
  const auto found = std::ranges::find(position.launches, turn, &LoggedLaunch::turn);
  return found == position.launches.end() ? nullptr : &*found;
}

}  // namespace troupe
