#include "troupe/comm/call_check.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

namespace troupe {

namespace {

bool has_root(const CollectiveCall& call) {
  return call.op == Collective::reduce || call.op == Collective::broadcast;
}

bool same_collective(const CollectiveCall& a, const CollectiveCall& b) {
  return a.op == b.op && a.ticket == b.ticket && a.runtime == b.runtime && a.bucket == b.bucket &&
         a.dtype == b.dtype && a.numel == b.numel && (!has_root(a) || a.root == b.root);
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) {
      text += i + 1 < words.size() ? ", " : " and ";
    }
    text += words[i];
  }
  return text;
}

std::string differences(const CollectiveCall& a, const CollectiveCall& b) {
  std::vector<std::string> names;
  const auto note = [&names](bool differs, const char* name) {
    if (differs) {
      names.emplace_back(name);
    }
  };
  note(a.op != b.op, "operation");
  note(a.ticket != b.ticket, "ticket");
  note(a.runtime != b.runtime, "runtime");
  note(a.bucket != b.bucket, "bucket");
  note(a.numel != b.numel, "size");
  note(a.dtype != b.dtype, "dtype");
  note(has_root(a) && has_root(b) && a.root != b.root, "root");
  return join(names);
}

struct Bytes {
  const std::byte* begin = nullptr;
  std::int64_t count = 0;
};

bool overlap(Bytes a, Bytes b) {
  const std::less<> before;
  return a.count > 0 && b.count > 0 && before(a.begin, b.begin + b.count) &&
         before(b.begin, a.begin + a.count);
}

}  // namespace

std::string describe_exactly(const CollectiveCall& call) {
  std::string text = describe(call);
  if (call.op != Collective::barrier || call.numel != 0) {
    text += ", " + std::to_string(call.numel) + " " + to_string(call.dtype) + " elements";
  }
  if (has_root(call)) {
    text += ", root " + std::to_string(call.root);
  }
  return text;
}

std::string describe_ranks(std::span<const int> ranks) {
  std::vector<std::string> names;
  names.reserve(ranks.size());
  for (const int rank : ranks) {
    names.push_back(std::to_string(rank));
  }
  return (names.size() == 1 ? "rank " : "ranks ") + join(names);
}

std::optional<Failure> check_call(const CollectiveCall& call, int rank, int size) {
  const auto wrong = [&call](const std::string& what) -> std::optional<Failure> {
    return Failure{.code = ErrorCode::misuse,
                   .text = describe_exactly(call) + ": " + what,
                   .ticket = call.ticket,
                   .bucket = call.bucket};
  };
  if (call.numel < 0) {
    return wrong("the size is negative");
  }
  if (has_root(call) && (call.root < 0 || call.root >= size)) {
    return wrong("the group has ranks 0 to " + std::to_string(size - 1));
  }
  if (call.op == Collective::barrier || call.numel == 0) {
    return std::nullopt;
  }
  const bool is_root = call.root == rank;
  const bool reads = call.op != Collective::broadcast || is_root;
  const bool writes = call.op != Collective::reduce || is_root;
  if (reads && call.input == nullptr) {
    return wrong("there is no input");
  }
  if (writes && call.output == nullptr) {
    return wrong("there is no output");
  }
  if (!reads || !writes) {
    return std::nullopt;
  }
  const std::int64_t part_bytes = call.numel * static_cast<std::int64_t>(size_of(call.dtype));
  Bytes input{static_cast<const std::byte*>(call.input), part_bytes};
  Bytes output{static_cast<const std::byte*>(call.output), part_bytes};
  const std::byte* in_place_input = output.begin;
  if (call.op == Collective::all_gather) {
    output.count *= size;
    in_place_input = output.begin + rank * part_bytes;
  } else if (call.op == Collective::reduce_scatter) {
    input.count *= size;
    in_place_input = output.begin - rank * part_bytes;
  }
  if (overlap(input, output) && input.begin != in_place_input) {
    return wrong("input and output overlap other than in place");
  }
  return std::nullopt;
}

std::optional<Failure> compare_calls(std::span<const CollectiveCall> calls,
                                     std::span<const int> ranks) {
  const auto agree_with = [&calls](std::size_t index) {
    return std::count_if(calls.begin(), calls.end(), [&](const CollectiveCall& call) {
      return same_collective(call, calls[index]);
    });
  };
  const auto all = static_cast<std::ptrdiff_t>(calls.size());
  std::ptrdiff_t most = calls.empty() ? 0 : agree_with(0);
  if (most == all) {
    return std::nullopt;
  }
  std::size_t expected = 0;
  for (std::size_t index = 1; index < calls.size(); ++index) {
    if (const auto count = agree_with(index); count > most) {
      most = count;
      expected = index;
    }
  }
  std::vector<int> agreeing;
  std::size_t actual = calls.size();
  for (std::size_t index = 0; index < calls.size(); ++index) {
    if (same_collective(calls[index], calls[expected])) {
      agreeing.push_back(ranks[index]);
    } else {
      actual = std::min(actual, index);
    }
  }
  const CollectiveCall& wanted = calls[expected];
  const CollectiveCall& found = calls[actual];
  return Failure{.code = ErrorCode::mismatch,
                 .text = "rank " + std::to_string(ranks[actual]) +
                         " launched another collective than " + describe_ranks(agreeing) + " (" +
                         differences(wanted, found) + "): expected " + describe_exactly(wanted) +
                         ", actual " + describe_exactly(found),
                 .rank = ranks[actual],
                 .ticket = wanted.ticket,
                 .bucket = wanted.bucket};
}

}  // namespace troupe
