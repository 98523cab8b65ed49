#include "troupe/runtime/chrome_trace.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

namespace {

constexpr int rows_per_rank_max = 1000;  // of thread ids, which are best unique in a file

/// Length of the UTF-8 sequence that `text` begins with; 0 if it begins with none.
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const std::size_t length = lead < 0x80                    ? 1
                             : lead >= 0xc2 && lead <= 0xdf ? 2
                             : (lead & 0xf0U) == 0xe0       ? 3
                             : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                            : 0;
  if (length == 0 || length > text.size()) {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) {
      return 0;
    }
  }
  const bool overlong = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xf0 && byte(1) < 0x90);
  const bool no_character = (lead == 0xed && byte(1) > 0x9f) || (lead == 0xf4 && byte(1) > 0x8f);
  return overlong || no_character ? 0 : length;
}

std::string quoted(std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string json = "\"";
  while (!text.empty()) {
    const std::size_t length = sequence_length(text);
    const char c = text.front();
    if (length == 0) {
      json += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      json += {'\\', c};
    } else if (length == 1 && static_cast<unsigned char>(c) < 0x20) {
      json += "\\u00";
      json += {digits[static_cast<unsigned char>(c) >> 4U], digits[c & 0xf]};
    } else {
      json += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return json + '"';
}

/// Nanoseconds as µs, exactly.
std::string microseconds(std::chrono::nanoseconds time) {
  const auto count = time.count();
  std::string fraction = std::to_string(count % 1000);
  fraction.insert(0, 3 - fraction.size(), '0');
  return std::to_string(count / 1000) + "." + fraction;
}

/// Counters that are drawn together.
struct Track {
  const char* name;
  TraceCounter first;
  std::vector<const char*> series;
};

const std::array<Track, 3>& tracks() {
  static const std::array<Track, 3> all{{
      {"buckets",
       TraceCounter::sharded,
       {to_string(BucketState::sharded), to_string(BucketState::gathering),
        to_string(BucketState::in_use), to_string(BucketState::ready),
        to_string(BucketState::failed)}},
      {"unsharded bytes", TraceCounter::unsharded_bytes, {"bytes"}},
      {"gradient bytes", TraceCounter::gradient_bytes, {"bytes"}},
  }};
  return all;
}

class Writer {
 public:
  Writer(std::ostream& out, TraceTime start) : out_(out), start_(start) {}

  void metadata(const char* name, int pid, int tid, const std::string& argument) {
    begin("M", quoted(name), pid);
    out_ << ",\"tid\":" << tid << ",\"args\":{" << argument << "}}";
  }

  void span(const TraceSpan& span, int pid, int tid) {
    std::string name(span.what);
    if (!span.label.empty()) {
      name += (name.empty() ? "" : " ") + std::string(span.label);
    }
    begin("X", quoted(name), pid);
    out_ << ",\"tid\":" << tid << ",\"ts\":" << microseconds(span.begin - start_)
         << ",\"dur\":" << microseconds(span.end - span.begin) << ",\"args\":{";
    const char* comma = "";
    const auto argument = [&](const char* key, auto value) {
      out_ << comma << '"' << key << "\":" << value;
      comma = ",";
    };
    if (span.ticket != 0) {
      argument("ticket", span.ticket);
    }
    if (span.bucket != no_bucket) {
      argument("bucket", span.bucket);
    }
    if (span.failed) {
      argument("failed", "true");
    }
    out_ << "}}";
  }

  /// A viewer takes a series that an event leaves out for zero, so each event has all. What changes
  /// at the same time is one event.
  void counts(const Track& track, const std::vector<TraceCount>& counts, int pid) {
    const auto first = static_cast<std::size_t>(track.first);
    std::vector<std::int64_t> values(track.series.size());
    std::optional<TraceTime> at;
    const auto write = [&] {
      if (!at) {
        return;
      }
      begin("C", quoted(track.name), pid);
      out_ << ",\"ts\":" << microseconds(*at - start_) << ",\"args\":{";
      for (std::size_t i = 0; i < values.size(); ++i) {
        out_ << (i > 0 ? "," : "") << '"' << track.series[i] << "\":" << values[i];
      }
      out_ << "}}";
    };
    for (const TraceCount& count : counts) {
      const std::size_t series = static_cast<std::size_t>(count.counter) - first;
      if (series >= values.size()) {
        continue;  // of another track; what is before `first` has wrapped around
      }
      if (at != count.time) {
        write();
      }
      at = count.time;
      values[series] = count.value;
    }
    write();
  }

 private:
  void begin(const char* phase, const std::string& name, int pid) {
    out_ << (first_ ? "\n" : ",\n") << R"({"ph":")" << phase << R"(","name":)" << name
         << ",\"pid\":" << pid;
    first_ = false;
  }

  std::ostream& out_;
  TraceTime start_;
  bool first_ = true;
};

struct RankRecords {
  std::vector<TraceSpan> spans;
  std::vector<TraceCount> counts;
  std::vector<std::string> rows;
  std::uint64_t dropped = 0;
};

/// Compute first, then collectives, then waits: the order in which they are shown.
std::vector<TraceRow> order_of_rows(const RankRecords& records) {
  std::vector<TraceRow> order;
  for (TraceRow row = RankTrace::waits_row + 1; row < records.rows.size(); ++row) {
    order.push_back(row);
  }
  order.insert(order.end(), {RankTrace::gather_row, RankTrace::reduce_row, RankTrace::waits_row});
  std::erase_if(order, [&](TraceRow row) {
    return std::ranges::find(records.spans, row, &TraceSpan::row) == records.spans.end();
  });
  return order;
}

void write_rank(Writer& writer, int rank, const RankRecords& records) {
  const int pid = rank + 1;
  std::string name = "rank " + std::to_string(rank);
  if (records.dropped > 0) {
    name += " (the last " + std::to_string(records.dropped) + " records were dropped)";
  }
  const std::vector<TraceRow> order = order_of_rows(records);
  const int first_tid = pid * rows_per_rank_max;
  writer.metadata("process_name", pid, first_tid, "\"name\":" + quoted(name));
  writer.metadata("process_sort_index", pid, first_tid, "\"sort_index\":" + std::to_string(rank));
  std::vector<int> tid_of(records.rows.size(), first_tid);
  int position = 0;
  for (const TraceRow row : order) {
    tid_of[row] = first_tid + position;
    writer.metadata("thread_name", pid, tid_of[row], "\"name\":" + quoted(records.rows[row]));
    writer.metadata("thread_sort_index", pid, tid_of[row],
                    "\"sort_index\":" + std::to_string(position++));
  }
  for (const TraceSpan& span : records.spans) {
    writer.span(span, pid, tid_of[span.row]);
  }
  for (const Track& track : tracks()) {
    writer.counts(track, records.counts, pid);
  }
}

}  // namespace

void write_chrome_trace(std::ostream& out, const Trace& trace) {
  std::vector<RankRecords> ranks;
  std::optional<TraceTime> start;
  const auto look_at = [&](TraceTime time) { start = start ? std::min(*start, time) : time; };
  std::uint64_t records = 0;
  std::uint64_t dropped = 0;
  for (int rank = 0; rank < trace.rank_count(); ++rank) {
    const RankTrace& own = trace[rank];
    const RankRecords& added =
        ranks.emplace_back(RankRecords{own.spans(), own.counts(), own.rows(), own.dropped()});
    for (const TraceSpan& span : added.spans) {
      look_at(span.begin);
    }
    for (const TraceCount& count : added.counts) {
      look_at(count.time);
    }
    records += added.spans.size() + added.counts.size();
    dropped += added.dropped;
  }
  out << R"({"displayTimeUnit":"ns","traceEvents":[)";
  Writer writer(out, start.value_or(TraceTime{}));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    write_rank(writer, static_cast<int>(rank), ranks[rank]);
  }
  out << "\n],\"otherData\":{\"records\":" << records << ",\"records_dropped\":" << dropped
      << "}}\n";
}

}  // namespace troupe
