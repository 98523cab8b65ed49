#include "troupe/comm/process/world_event.hpp"

#include "troupe/comm/process/position.hpp"
#include "troupe/comm/process/wire.hpp"

#include <utility>

namespace troupe {

namespace {

/// Of all that ranks say to each other through the store.
enum class Version : std::uint8_t { none, first };

constexpr std::size_t groups_max = 4096;

ErrorCode last_code() {
  int code = 0;
  while (std::string_view(to_string(static_cast<ErrorCode>(code + 1))) != "?") {
    ++code;
  }
  return static_cast<ErrorCode>(code);
}

template <class Wire>
void carry(Wire& wire, Failure& failure) {
  wire.choice(failure.code, last_code());
  wire.text(failure.text);
  wire.number(failure.rank);
  wire.number(failure.ticket);
  wire.number(failure.bucket);
}

template <class Wire>
void carry(Wire& wire, JoinedEvent& event) {
  wire.number(event.rank);
  wire.number(event.world_size);
  wire.text(event.name);
  wire.number(event.process);
}

template <class Wire>
void carry(Wire& wire, FailedEvent& event) {
  wire.number(event.epoch);
  carry(wire, event.failure);
}

template <class Wire>
void carry(Wire& wire, SuspectedEvent& event) {
  wire.number(event.epoch);
  Suspicion& suspicion = event.suspicion;
  wire.choice(suspicion.kind, Suspicion::Kind::dropped);
  wire.number(suspicion.rank);
  carry(wire, suspicion.group);
  wire.number(suspicion.turn);
  carry(wire, suspicion.call);
  wire.number(suspicion.waited_ms);
  wire.text(suspicion.text);
  wire.number(suspicion.peer);
}

template <class Wire>
void carry(Wire& wire, DepartedEvent& event) {
  wire.number(event.rank);
  wire.text(event.text);
  wire.list(event.launched, groups_max, [](Wire& each, LaunchCount& count) {
    carry(each, count.group);
    each.number(count.launched);
  });
}

template <class Wire>
void carry(Wire& wire, DiedEvent& event) {
  wire.number(event.rank);
  wire.text(event.text);
  wire.number(event.process);
}

template <class Wire>
void carry(Wire& wire, ArrivedEvent& event) {
  wire.number(event.rank);
  wire.number(event.meeting);
  wire.text(event.word);
}

template <class Wire>
void carry(Wire& wire, AbsentEvent& event) {
  wire.number(event.rank);
  wire.text(event.text);
}

template <class Wire>
void carry(Wire& wire, ClosedEvent& event) {
  wire.number(event.meeting);
  carry(wire, event.failure);
}

template <class Wire>
void carry(Wire& wire, EndedEvent& event) {
  carry(wire, event.failure);
}

constexpr std::size_t kinds = std::variant_size_v<WorldEvent>;

/// An event of the kind with that number.
template <std::size_t... Kinds>
WorldEvent event_of(std::size_t kind, std::index_sequence<Kinds...> /*all*/) {
  WorldEvent event;
  static_cast<void>(((kind == Kinds ? (event.emplace<Kinds>(), true) : false) || ...));
  return event;
}

}  // namespace

std::string encode(WorldEvent event) {
  WireWriter writer;
  auto version = Version::first;
  writer.choice(version, Version::first);
  auto kind = static_cast<std::uint8_t>(event.index());
  writer.choice(kind, static_cast<std::uint8_t>(kinds - 1));
  std::visit([&](auto& each) { carry(writer, each); }, event);
  return writer.take();
}

std::optional<WorldEvent> decode_event(std::string_view bytes) {
  WireReader reader(bytes);
  auto version = Version::none;
  reader.choice(version, Version::first);
  std::uint8_t kind = 0;
  reader.choice(kind, static_cast<std::uint8_t>(kinds - 1));
  WorldEvent event = event_of(kind, std::make_index_sequence<kinds>());
  std::visit([&](auto& each) { carry(reader, each); }, event);
  if (version != Version::first || !reader.complete()) {
    return std::nullopt;
  }
  return event;
}

}  // namespace troupe
