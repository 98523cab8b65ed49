#include "troupe/comm/local_transfer.hpp"

#include "troupe/comm/kernels.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace troupe {

namespace {

/// A slice of a buffer that one rank sums.
struct Slice {
  std::int64_t offset;
  std::int64_t numel;
};

/// Slices begin at multiples of this, so that two ranks seldom write one cache line.
constexpr std::int64_t slice_alignment = 32;

std::int64_t bytes_of(const CollectiveCall& call, std::int64_t numel) {
  return numel * static_cast<std::int64_t>(size_of(call.dtype));
}

const std::byte* input_at(const CollectiveCall& call, std::int64_t offset) {
  return static_cast<const std::byte*>(call.input) + bytes_of(call, offset);
}

std::byte* output_at(const CollectiveCall& call, std::int64_t offset) {
  return static_cast<std::byte*>(call.output) + bytes_of(call, offset);
}

Slice slice_of(std::int64_t numel, std::size_t rank, std::size_t size) {
  const auto count = static_cast<std::int64_t>(size);
  const std::int64_t blocks = (numel + slice_alignment * count - 1) / (slice_alignment * count);
  const std::int64_t begin =
      std::min(numel, static_cast<std::int64_t>(rank) * blocks * slice_alignment);
  return {begin, std::min(numel - begin, blocks * slice_alignment)};
}

/// Sums [offset, offset + numel) of all inputs, in rank order, into `to`.
void sum_inputs(std::span<const CollectiveCall> calls, Slice slice, void* to) {
  std::vector<const void*> sources;
  sources.reserve(calls.size());
  for (const CollectiveCall& call : calls) {
    sources.push_back(input_at(call, slice.offset));
  }
  kernels::sum(sources, calls[0].dtype, to, slice.numel);
}

}  // namespace

std::int64_t bytes_read(const CollectiveCall& call, int size) {
  const std::int64_t bytes = bytes_of(call, call.numel);
  const std::int64_t ranks = size;
  switch (call.op) {
    case Collective::all_gather:
    case Collective::reduce_scatter:
      return ranks * ranks * bytes;
    case Collective::all_reduce:
      return 2 * ranks * bytes;
    case Collective::reduce:
    case Collective::broadcast:
      return ranks * bytes;
    case Collective::barrier:
      break;
  }
  return 0;
}

void transfer(std::span<const CollectiveCall> calls, int rank, TransferRound round) noexcept {
  const auto self = static_cast<std::size_t>(rank);
  const std::size_t size = calls.size();
  const CollectiveCall& mine = calls[self];
  const std::int64_t numel = mine.numel;
  if (mine.op == Collective::barrier || numel == 0) {
    return;
  }
  switch (mine.op) {
    case Collective::all_gather:
      // Each rank begins with its own part, so that not all read the same memory at once.
      for (std::size_t step = 0; step < size; ++step) {
        const std::size_t peer = (self + step) % size;
        kernels::copy(output_at(mine, static_cast<std::int64_t>(peer) * numel), calls[peer].input,
                      bytes_of(mine, numel));
      }
      break;
    case Collective::reduce_scatter:
      sum_inputs(calls, {static_cast<std::int64_t>(self) * numel, numel}, mine.output);
      break;
    case Collective::all_reduce:
      if (round == TransferRound::first) {
        const Slice slice = slice_of(numel, self, size);
        sum_inputs(calls, slice, output_at(mine, slice.offset));
        break;
      }
      for (std::size_t step = 1; step < size; ++step) {
        const std::size_t peer = (self + step) % size;
        const Slice slice = slice_of(numel, peer, size);
        kernels::copy(output_at(mine, slice.offset), output_at(calls[peer], slice.offset),
                      bytes_of(mine, slice.numel));
      }
      break;
    case Collective::reduce: {
      const Slice slice = slice_of(numel, self, size);
      const CollectiveCall& root = calls[static_cast<std::size_t>(mine.root)];
      sum_inputs(calls, slice, output_at(root, slice.offset));
      break;
    }
    case Collective::broadcast:
      kernels::copy(mine.output, calls[static_cast<std::size_t>(mine.root)].input,
                    bytes_of(mine, numel));
      break;
    case Collective::barrier:
      break;
  }
}

}  // namespace troupe
