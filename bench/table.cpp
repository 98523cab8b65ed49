#include "table.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <iomanip>
#include <sstream>
#include <string_view>

namespace troupe::bench {

namespace {

std::string rounded(double number, int decimals) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(decimals) << number;
  return text.str();
}

std::string text_of(const Cell& cell, int decimals) {
  if (const auto* text = std::get_if<std::string>(&cell)) {
    return *text;
  }
  if (const auto* number = std::get_if<double>(&cell)) {
    return rounded(*number, decimals);
  }
  const auto& spread = std::get<Spread>(cell);
  return rounded(spread.median, decimals) + " (" + rounded(spread.min, decimals) + ".." +
         rounded(spread.max, decimals) + ")";
}

void write_cell(std::ostream& out, const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell)) {
    write_json_string(out, *text);
  } else if (const auto* number = std::get_if<double>(&cell)) {
    write_json_number(out, *number);
  } else {
    const auto& spread = std::get<Spread>(cell);
    out << "{\"median\": ";
    write_json_number(out, spread.median);
    out << ", \"min\": ";
    write_json_number(out, spread.min);
    out << ", \"max\": ";
    write_json_number(out, spread.max);
    out << "}";
  }
}

}  // namespace

void print(std::ostream& out, const Table& table) {
  std::vector<std::vector<std::string>> lines(1);
  for (const Column& column : table.columns) {
    lines[0].push_back(column.name);
  }
  for (const auto& row : table.rows) {
    auto& line = lines.emplace_back();
    for (std::size_t i = 0; i < row.size(); ++i) {
      line.push_back(text_of(row[i], table.columns[i].decimals));
    }
  }
  std::vector<std::size_t> widths(table.columns.size());
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      widths[i] = std::max(widths[i], line[i].size());
    }
  }
  out << "\n" << table.title << "\n";
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      const std::string gap(widths[i] - line[i].size(), ' ');
      out << "  " << (i == 0 ? line[i] + gap : gap + line[i]);  // names left, numbers right
    }
    out << "\n";
  }
  for (const std::string& note : table.notes) {
    out << "  - " << note << "\n";
  }
}

void write_json(std::ostream& out, const Table& table) {
  out << "{\"name\": ";
  write_json_string(out, table.name);
  out << ", \"title\": ";
  write_json_string(out, table.title);
  out << ",\n   \"rows\": [";
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    out << (row == 0 ? "\n    {" : ",\n    {");
    for (std::size_t i = 0; i < table.columns.size(); ++i) {
      out << (i == 0 ? "" : ", ");
      write_json_string(out, table.columns[i].name);
      out << ": ";
      write_cell(out, table.rows[row][i]);
    }
    out << "}";
  }
  out << "],\n   \"notes\": [";
  for (std::size_t note = 0; note < table.notes.size(); ++note) {
    out << (note == 0 ? "\n    " : ",\n    ");
    write_json_string(out, table.notes[note]);
  }
  out << "]}";
}

void write_json_string(std::ostream& out, const std::string& text) {
  constexpr std::string_view digits = "0123456789abcdef";
  out << '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out << '\\' << c;
    } else if (byte < 0x20U) {
      out << "\\u00" << digits[byte >> 4U] << digits[byte & 0xfU];
    } else {
      out << c;  // UTF-8 passes as it is
    }
  }
  out << '"';
}

void write_json_number(std::ostream& out, double number) {
  if (!std::isfinite(number)) {
    out << "null";
    return;
  }
  std::array<char, 32> text{};  // the longest shortest form of a double has 24 characters
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number);
  out.write(text.data(), end.ptr - text.data());
}

}  // namespace troupe::bench
