#include "include_rules.hpp"

#include <algorithm>
#include <array>
#include <set>

namespace troupe::project {
namespace {

// clang-format off
constexpr std::array standard_headers = std::to_array<std::string_view>({
    "algorithm", "any", "array", "atomic", "barrier", "bit", "bitset", "cassert", "cctype", "cerrno", "cfenv",
    "cfloat", "charconv", "chrono", "cinttypes", "climits", "clocale", "cmath", "compare", "complex", "concepts",
    "condition_variable", "coroutine", "csetjmp", "csignal", "cstdarg", "cstddef", "cstdint", "cstdio", "cstdlib",
    "cstring", "ctime", "cuchar", "cwchar", "cwctype", "deque", "exception", "execution", "filesystem", "format",
    "forward_list", "fstream", "functional", "future", "initializer_list", "iomanip", "ios", "iosfwd", "iostream",
    "istream", "iterator", "latch", "limits", "list", "locale", "map", "memory", "memory_resource", "mutex", "new",
    "numbers", "numeric", "optional", "ostream", "queue", "random", "ranges", "ratio", "regex", "scoped_allocator",
    "semaphore", "set", "shared_mutex", "source_location", "span", "sstream", "stack", "stdexcept", "stop_token",
    "streambuf", "string", "string_view", "strstream", "syncstream", "system_error", "thread", "tuple",
    "type_traits", "typeindex", "typeinfo", "unordered_map", "unordered_set", "utility", "valarray", "variant",
    "vector", "version"});

constexpr std::array system_headers = std::to_array<std::string_view>({
    "dirent.h", "dlfcn.h", "fcntl.h", "netdb.h", "poll.h", "pthread.h", "sched.h", "signal.h", "spawn.h",
    "unistd.h"});
constexpr std::array system_folders = std::to_array<std::string_view>({"arpa", "linux", "net", "netinet", "sys"});

// `libraries`: first part of the path of their headers; "system" stands for POSIX and Linux, "any" for all.
struct Room {
  std::string_view name;
  std::vector<std::string_view> rooms_below;
  std::vector<std::string_view> libraries;
  bool quotes_neighbours = false;
  bool public_headers_reach_no_backend = false;
};

const std::vector<Room> rooms{
    {"core",     {},                                                 {}, false, false},
    {"layers",   {"core"},                                           {}, false, true},
    {"comm",     {"core"},                                           {"system", "spdlog", "cuda", "nccl", "gloo", "boost", "openssl"}, false, false},
    {"actors",   {"core", "comm", "layers"},                         {"system", "spdlog", "caf"}, false, false},
    {"runtime",  {"core", "comm", "layers", "actors"},               {"system", "spdlog", "nlohmann", "xxhash"}, false, true},
    {"examples", {"core", "comm", "layers", "actors", "runtime"},    {"any"}, true, false},
    {"bench",    {"core", "comm", "layers", "actors", "runtime", "examples"}, {"any"}, true, false},
    {"test",     {"core", "comm", "layers", "actors", "runtime", "examples", "bench"}, {"any"}, true, false},
};

constexpr std::array backends = std::to_array<std::string_view>({"caf", "cuda", "nccl", "gloo", "boost"});

// Headers of the room's own sources, not for who embeds Troupe; any other header of such a room is public.
constexpr std::array private_headers = std::to_array<std::string_view>({
    "runtime/compute_log.hpp", "runtime/rank_context.hpp", "runtime/rank_statement.hpp", "runtime/runtime_impl.hpp",
    "runtime/secret_file.hpp"});
// clang-format on

constexpr std::string_view root_prefix = "troupe/";

template <class Range>
bool contains(const Range& range, std::string_view value) {
  return std::ranges::find(range, value) != range.end();
}

std::string_view first_part(std::string_view path) {
  return path.substr(0, path.find('/'));
}

// "std", "system", or the library's name: "cuda_runtime.h" and "cuda/atomic" are cuda,
// "spdlog/spdlog.h" is spdlog.
std::string library_of(std::string_view header) {
  if (contains(standard_headers, header)) {
    return "std";
  }
  const auto first = first_part(header);
  if (contains(system_headers, header) || (first != header && contains(system_folders, first))) {
    return "system";
  }
  return std::string(first.substr(0, first.find_first_of("._")));
}

// Path from the root of what a file includes, if that is one of ours; else empty.
std::string own_header(std::string_view from, const Include& include) {
  if (include.target.starts_with(root_prefix)) {
    return include.target.substr(root_prefix.size());
  }
  return include.quoted ? std::string(from.substr(0, from.rfind('/') + 1)) + include.target
                        : std::string();
}

// The way from a header to a backend's header, as "a.hpp > b.hpp > caf/actor.hpp"; empty if there
// is none.
std::string way_to_backend(const Sources& sources,
                           const std::string& path,
                           std::set<std::string>& visited) {
  const auto source = sources.find(path);
  if (source == sources.end() || !visited.insert(path).second) {
    return {};
  }
  for (const auto& include : includes_of(source->second)) {
    const auto own = own_header(path, include);
    if (own.empty()) {
      if (contains(backends, library_of(include.target))) {
        return path + " > " + include.target;
      }
    } else if (const auto rest = way_to_backend(sources, own, visited); !rest.empty()) {
      return path + " > " + rest;
    }
  }
  return {};
}

// Why a file may not have this include line; empty if it may.
std::string refusal(const Sources& sources,
                    const Room& room,
                    const std::string& path,
                    const Include& include) {
  if (include.quoted && !include.target.starts_with(root_prefix) && !room.quotes_neighbours) {
    return "our headers are included as troupe/room/file.hpp";
  }
  const auto own = own_header(path, include);
  if (own.empty()) {
    const auto library = library_of(include.target);
    const bool granted =
        library == "std" || contains(room.libraries, "any") || contains(room.libraries, library);
    return granted ? std::string() : std::string(room.name) + "/ may not use " + library;
  }
  const auto target_room = first_part(own);
  if (target_room != room.name && !contains(room.rooms_below, target_room)) {
    return std::string(room.name) + "/ may not include " + std::string(target_room) + "/";
  }
  return sources.contains(own) ? std::string() : "there is no " + own;
}

}  // namespace

std::vector<Include> includes_of(std::string_view text) {
  std::vector<Include> found;
  int line_number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find('\n', begin), text.size());
    auto line = text.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;

    const auto skip_blanks = [&line] {
      line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    };
    const auto skip_word = [&](std::string_view word) {
      skip_blanks();
      const bool there = line.starts_with(word);
      line.remove_prefix(there ? word.size() : 0);
      return there;
    };
    if (!skip_word("#") || !skip_word("include")) {
      continue;
    }
    skip_blanks();
    if (line.empty() || (line.front() != '<' && line.front() != '"')) {
      continue;
    }
    const bool quoted = line.front() == '"';
    const auto close = line.find(quoted ? '"' : '>', 1);
    if (close != std::string_view::npos) {
      found.push_back({std::string(line.substr(1, close - 1)), quoted, line_number});
    }
  }
  return found;
}

std::vector<std::string> breaches_of_include_rules(const Sources& sources) {
  std::vector<std::string> breaches;
  for (const auto& [path, text] : sources) {
    const auto room = std::ranges::find(rooms, first_part(path), &Room::name);
    if (room == rooms.end()) {
      breaches.push_back(path + ": no row for this room");
      continue;
    }
    for (const auto& include : includes_of(text)) {
      if (const auto reason = refusal(sources, *room, path, include); !reason.empty()) {
        breaches.push_back(path + ":" + std::to_string(include.line) + ": " + include.target +
                           ": " + reason);
      }
    }
    if (room->public_headers_reach_no_backend && path.ends_with(".hpp") &&
        !contains(private_headers, path)) {
      std::set<std::string> visited;
      if (const auto way = way_to_backend(sources, path, visited); !way.empty()) {
        breaches.push_back(path + ": a public header reaches a backend: " + way);
      }
    }
  }
  return breaches;
}

}  // namespace troupe::project
