/// A table of results: printed for people, written as JSON for programs.
#pragma once

#include "samples.hpp"

#include <ostream>
#include <string>
#include <variant>
#include <vector>

namespace troupe::bench {

/// Text, a number, or a number with its spread over repetitions (JSON: median, min, max).
using Cell = std::variant<std::string, double, Spread>;

struct Column {
  std::string name;  ///< with its unit: "p50_us"
  int decimals = 2;  ///< of numbers, for people
};

struct Table {
  std::string name;   ///< for programs: "layer_events"
  std::string title;  ///< for people
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;  ///< as many cells each as there are columns
  std::vector<std::string> notes;       ///< what the numbers mean, a line each
};

void print(std::ostream& out, const Table& table);
/// As a JSON object. A number that is not finite is written as null: JSON has no other word for it.
void write_json(std::ostream& out, const Table& table);

void write_json_string(std::ostream& out, const std::string& text);
void write_json_number(std::ostream& out, double number);

}  // namespace troupe::bench
