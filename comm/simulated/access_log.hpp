/// Who is using which bytes at the moment, in a simulated world. Two uses of the same bytes at the
/// same time, one of which writes, are a fault of whoever ordered them: reported, with both names.
///
/// A use lasts from when the user may touch the bytes until it no longer does: a collective from
/// the moment its stream comes to it until its end on that rank. So a missing wait is found in any
/// schedule in which the two come close, whatever the bytes are.
///
/// Thread rules: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

struct Access {
  const void* data = nullptr;
  std::int64_t bytes = 0;
  bool writes = false;
};

/// For messages: "gather of ticket 7 on rank 1".
struct AccessUser {
  const char* what = "";
  std::uint64_t number = 0;
  int rank = 0;
};

class AccessLog {
 public:
  using Id = std::uint64_t;

  /// `report` receives the text of a conflict.
  explicit AccessLog(std::function<void(const std::string&)> report) : report_(std::move(report)) {}

  Id begin(const AccessUser& user, std::vector<Access> accesses);
  void end(Id id);
  /// A use that is over at once.
  void touch(const AccessUser& user, const std::vector<Access>& accesses) const;
  /// Told of every access that begins or ends; for explorers, see timeline.hpp.
  using Observer = std::function<void(int rank, const Access& access)>;
  void observe(Observer observer) { observer_ = std::move(observer); }
  /// The payload of a use moves just now.
  void moves(Id id) const;
  /// Uses under way.
  std::size_t size() const { return active_.size(); }

 private:
  struct Active {
    Id id;
    AccessUser user;
    std::vector<Access> accesses;
  };

  void tell(int rank, const std::vector<Access>& accesses) const;

  std::function<void(const std::string&)> report_;
  Observer observer_;
  std::vector<Active> active_;
  Id last_ = 0;
};

std::string to_string(const AccessUser& user);

}  // namespace troupe
