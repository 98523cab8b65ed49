#include "troupe/layers/order_file.hpp"

#include "troupe/core/text.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

namespace troupe {

namespace {

using Kind = LayerEvent::Kind;
using detail::concat;

constexpr std::string_view blanks = " \t\r\f\v";

/// One line of an order, word by word. Throws `Error` with what is wrong in the line.
class Line {
 public:
  explicit Line(std::string_view text) : text_(text) {}

  /// The next word, without quotes; nothing at the end of the line or at a comment.
  std::optional<std::string> word() {
    const std::size_t begin = std::min(text_.find_first_not_of(blanks, next_), text_.size());
    next_ = begin;
    if (begin == text_.size() || text_[begin] == '#') {
      return std::nullopt;
    }
    std::optional<std::string> word = text_[begin] == '"' ? quoted() : bare();
    end_ = next_;
    return word;
  }

  /// The words read so far, as they stand.
  std::string_view read() const {
    const std::size_t begin = std::min(text_.find_first_not_of(blanks), end_);
    return text_.substr(begin, end_ - begin);
  }

 private:
  std::string bare() {
    const std::size_t begin = next_;
    next_ = std::min(text_.find_first_of(blanks, begin), text_.size());
    return std::string(text_.substr(begin, next_ - begin));
  }

  std::string quoted() {
    const std::size_t begin = next_;
    std::string word;
    for (++next_; next_ < text_.size() && text_[next_] != '"'; ++next_) {
      const bool escaped = text_[next_] == '\\';
      next_ += escaped ? 1 : 0;
      if (next_ < text_.size()) {
        word += escaped && text_[next_] == 'n' ? '\n' : text_[next_];
      }
    }
    if (next_ >= text_.size()) {
      throw Error({.code = ErrorCode::bad_configuration,
                   .text = concat("found ", text_.substr(begin), "; expected a closing quote")});
    }
    ++next_;
    return word;
  }

  std::string_view text_;
  std::size_t next_ = 0;
  std::size_t end_ = 0;  ///< of the last word
};

[[noreturn]] void refuse(std::string text) {
  throw Error(detail::failure(ErrorCode::bad_configuration, std::move(text)));
}

/// The events of one line: none, one, or a use and its end. Throws `Error` without the line number.
std::vector<LayerEvent> events_of(std::string_view text, const Model& model) {
  Line line(text);
  std::optional<std::string> verb = line.word();
  if (!verb) {
    return {};
  }
  std::vector<LayerEvent> events;
  const bool begin = *verb == "begin";
  if (begin) {
    verb = line.word();
  }
  if (!begin && *verb == "micro_batch") {
    events = {{Kind::micro_batch}};
  } else if (!begin && *verb == "eval") {
    events = {{Kind::eval}};
  } else if (!begin && *verb == "end") {
    events = {{Kind::end}};
  } else if (verb == "forward" || verb == "backward") {
    const std::optional<std::string> name = line.word();
    if (!name) {
      refuse(concat("found '", line.read(), "'; expected the name of a unit behind it"));
    }
    UnitId unit = no_unit;
    try {
      unit = model.unit(*name);
    } catch (const Error& error) {  // names the nearest units
      refuse(concat("found '", line.read(), "'; expected a unit of the model, but there is ",
                    error.what()));
    }
    events = {{Kind::use, unit, verb == "backward"}};
    if (!begin) {
      events.push_back({Kind::end});
    }
  } else {
    refuse(concat("found '", line.read(), "'; expected ",
                  begin ? "'begin forward NAME' or 'begin backward NAME'"
                        : "micro_batch, forward NAME, backward NAME, begin forward NAME, begin "
                          "backward NAME, eval or end"));
  }
  const std::string whole(line.read());
  if (const auto trailing = line.word()) {
    refuse(concat("found '", *trailing, "' behind '", whole, "'; expected nothing more"));
  }
  return events;
}

/// `source`: what the text is, for messages.
Result<LayerOrder> parse(std::string_view text, const Model& model, std::string_view source) {
  LayerOrder order;
  detail::OrderNesting nesting("line");
  std::size_t number = 0;
  try {
    while (!text.empty()) {
      ++number;
      const std::size_t end = std::min(text.find('\n'), text.size());
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      for (const LayerEvent& event : events_of(line, model)) {
        if (auto wrong = nesting.add(event, number)) {
          Line words(line);
          while (words.word()) {
          }
          refuse(concat("found '", words.read(), "'", *wrong));
        }
        order.push_back(event);
      }
    }
    if (auto wrong = nesting.finish()) {
      refuse(concat("found the end of the order", *wrong));
    }
  } catch (const Error& error) {
    return detail::failure(ErrorCode::bad_configuration,
                           concat(source, ", line ", number, ": ", error.what()));
  }
  return order;
}

/// A unit name as one word.
std::string word_of(const std::string& name) {
  if (name.find_first_of(" \t\r\f\v\n\"") == std::string::npos && !name.starts_with('#')) {
    return name;
  }
  std::string word = "\"";
  for (const char c : name) {
    if (c == '\n') {
      word += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') {
      word += '\\';
    }
    word += c;
  }
  return word + '"';
}

}  // namespace

Result<LayerOrder> parse_order(std::string_view text, const Model& model) {
  return parse(text, model, "order of layer events");
}

Result<LayerOrder> read_order_file(const std::string& path, const Model& model) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  std::array<char, 4096> part{};
  while (file.read(part.data(), part.size()) || file.gcount() > 0) {
    text.append(part.data(), static_cast<std::size_t>(file.gcount()));
  }
  if (!file.is_open() || file.bad()) {  // bad: a folder, for instance
    return detail::failure(
        ErrorCode::bad_configuration,
        concat("cannot read '", path, "'; expected a file with an order of layer events"));
  }
  return parse(text, model, concat("'", path, "'"));
}

std::string format_order(const LayerOrder& order, const Model& model) {
  if (auto valid = check_order(order); !valid) {
    throw Error(valid.failure());
  }
  std::string text;
  std::size_t depth = 0;
  const auto write = [&](std::string_view line) {
    text.append(2 * depth, ' ').append(line).append("\n");
  };
  for (std::size_t i = 0; i < order.size(); ++i) {
    const LayerEvent& event = order[i];
    switch (event.kind) {
      case Kind::micro_batch:
        write("micro_batch");
        break;
      case Kind::eval:
        write("eval");
        ++depth;
        break;
      case Kind::use: {
        if (event.unit >= model.units().size()) {
          throw Error(detail::failure(
              ErrorCode::misuse,
              concat("order of layer events: event ", i + 1, " uses unit ", event.unit,
                     ", but the model has ", detail::count_of(model.units().size(), "unit"))));
        }
        const bool whole = order[i + 1].kind == Kind::end;  // every use has an end
        write(concat(whole ? "" : "begin ", event.backward ? "backward " : "forward ",
                     word_of(model.units()[event.unit].name)));
        depth += whole ? 0 : 1;
        i += whole ? 1 : 0;
        break;
      }
      case Kind::end:
        --depth;
        write("end");
        break;
    }
  }
  return text;
}

}  // namespace troupe
