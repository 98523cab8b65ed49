/// The file that a benchmark of a link writes its results to.
#pragma once

#include "machine.hpp"
#include "table.hpp"

#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace troupe::bench {

class LinkReport {
 public:
  /// Opens the file, before minutes are spent; an empty path: there is none. Throws
  /// `std::runtime_error`, as `write` does.
  explicit LinkReport(std::string path) : path_(std::move(path)) {
    if (!path_.empty()) {
      file_.open(path_);
      check();
    }
  }

  void write(const Machine& machine, double link_mbit, const Table& table) {
    if (path_.empty()) {
      return;
    }
    file_ << "{\"machine\": ";
    write_json(file_, machine);
    file_ << ",\n \"link_mbit\": ";
    write_json_number(file_, link_mbit);
    file_ << ",\n \"table\": ";
    write_json(file_, table);
    file_ << "}\n";
    file_.close();
    check();
  }

 private:
  void check() const {
    if (!file_) {
      throw std::runtime_error("cannot write " + path_);
    }
  }

  std::string path_;
  std::ofstream file_;
};

}  // namespace troupe::bench
