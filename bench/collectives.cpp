#include "benchmarks.hpp"
#include "stream_timing.hpp"
#include "troupe/comm/host_device.hpp"
#include "troupe/comm/host_stream.hpp"
#include "troupe/comm/local_communicator.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

namespace troupe::bench {

namespace {

Buffer allocate(HostDevice& device, std::int64_t bytes) {
  return value_or_throw(device.allocate(bytes, Purpose::temporary));
}

struct Shape {
  Collective op = Collective::all_gather;
  DType dtype = DType::f32;
  int ranks = 2;
  std::int64_t part_bytes = 0;  ///< of one rank's shard
};

/// The bytes that the ranks together read and write at least, as the runtime calls the collective:
/// bf16 gathers are in place, so that a rank's own part does not move.
std::int64_t traffic_bytes(const Shape& shape) {
  const std::int64_t ranks = shape.ranks;
  if (shape.op == Collective::reduce_scatter) {
    return ranks * (ranks + 1) * shape.part_bytes;
  }
  const std::int64_t moved = shape.dtype == DType::f32 ? ranks : ranks - 1;
  return ranks * 2 * moved * shape.part_bytes;
}

/// The ranks of one collective, a stream and buffers each.
class Group {
 public:
  explicit Group(const Shape& shape) : shape_(shape), world_(shape.ranks, std::chrono::minutes{1}) {
    std::vector<int> all(static_cast<std::size_t>(shape.ranks));
    std::iota(all.begin(), all.end(), 0);
    for (const int rank : all) {
      shards_.push_back(allocate(device_, shape.part_bytes));
      full_.push_back(allocate(device_, shape.part_bytes * shape.ranks));
      communicators_.push_back(world_.communicator(rank, all, 0));
      streams_.push_back(&device_.create_host_stream("rank." + std::to_string(rank)));
    }
  }

  /// Nanoseconds per collective, `count` of them queued on every rank.
  double collective_ns(int count) {
    const Nanoseconds total = time_on_streams(streams_, [&] {
      for (int i = 0; i < count; ++i) {
        ++ticket_;
        for (std::size_t rank = 0; rank < streams_.size(); ++rank) {
          const auto launched = communicators_[rank]->launch(call_of(rank), *streams_[rank]);
          if (!launched) {
            throw Error(launched.failure());
          }
        }
      }
    });
    return static_cast<double>(total) / count;
  }

 private:
  CollectiveCall call_of(std::size_t rank) {
    std::byte* own = full_[rank].bytes_at(static_cast<std::int64_t>(rank) * shape_.part_bytes);
    CollectiveCall call{
        .op = shape_.op,
        .ticket = ticket_,
        .dtype = shape_.dtype,
        .numel = shape_.part_bytes / static_cast<std::int64_t>(size_of(shape_.dtype))};
    if (shape_.op == Collective::reduce_scatter) {
      call.input = full_[rank].data();
      call.output = own;
    } else {
      call.input = shape_.dtype == DType::f32 ? shards_[rank].data() : own;
      call.output = full_[rank].data();
    }
    return call;
  }

  const Shape shape_;
  LocalWorld world_;
  HostDevice device_;
  std::vector<Buffer> shards_;
  std::vector<Buffer> full_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<HostStream*> streams_;
  Ticket ticket_ = 0;
};

/// Two threads that copy private memory.
class Copiers {
 public:
  /// Together they read and write `traffic` bytes a time.
  explicit Copiers(std::int64_t traffic) : bytes_(static_cast<std::size_t>(traffic / 4)) {
    for (const char* name : {"copy.0", "copy.1"}) {
      from_.push_back(allocate(device_, traffic / 4));
      to_.push_back(allocate(device_, traffic / 4));
      streams_.push_back(&device_.create_host_stream(name));
    }
  }

  /// Nanoseconds per copy, `count` of them queued on both threads.
  /// in_step  no thread begins a copy before both have done the one before
  double copy_ns(int count, bool in_step) {
    const Nanoseconds total = time_on_streams(streams_, [&] {
      for (int i = 0; i < count; ++i) {
        if (in_step) {
          const Event done[] = {streams_[0]->record(), streams_[1]->record()};
          streams_[0]->wait(done[1]);
          streams_[1]->wait(done[0]);
        }
        std::size_t thread = 0;
        for (HostStream* stream : streams_) {
          stream->run([to = to_[thread].data(), from = from_[thread].data(), bytes = bytes_] {
            std::memcpy(to, from, bytes);
          });
          ++thread;
        }
      }
    });
    return static_cast<double>(total) / count;
  }

 private:
  const std::size_t bytes_;
  HostDevice device_;
  std::vector<Buffer> from_;
  std::vector<Buffer> to_;
  std::vector<HostStream*> streams_;
};

std::vector<Cell> measure(const Shape& shape, const Effort& effort) {
  constexpr std::int64_t bytes_per_repetition = 64 << 20;
  const int count = effort.quick ? 2
                                 : static_cast<int>(std::clamp<std::int64_t>(
                                       bytes_per_repetition / traffic_bytes(shape), 2, 300));
  Group group(shape);
  Copiers copiers(traffic_bytes(shape));
  std::vector<double> collective_us;
  std::vector<double> collective_gbs;
  std::vector<double> copy_gbs;
  std::vector<double> ratios;
  std::vector<double> ratios_in_step;
  const auto traffic = static_cast<double>(traffic_bytes(shape));
  for (int repetition = -1; repetition < effort.repetitions; ++repetition) {
    const double copy = copiers.copy_ns(count, false);
    const double copy_in_step = copiers.copy_ns(count, true);
    const double collective = group.collective_ns(count);
    if (repetition >= 0) {  // the first one touches memory
      collective_us.push_back(collective * 1e-3);
      collective_gbs.push_back(traffic / collective);
      copy_gbs.push_back(traffic / copy);
      ratios.push_back(copy / collective);
      ratios_in_step.push_back(copy_in_step / collective);
    }
  }
  return {spread_of(collective_us), spread_of(collective_gbs), spread_of(copy_gbs),
          spread_of(ratios),        spread_of(ratios_in_step), ">= 0.8"};
}

}  // namespace

Table collectives(const Effort& effort) {
  Table table{
      .name = "collectives",
      .title = "In-process collectives against memcpy by two threads (median of " +
               std::to_string(effort.repetitions) + " runs, spread)",
      .columns = {{"collective"},
                  {"dtype"},
                  {"ranks", 0},
                  {"part_kib", 0},
                  {"time_us", 1},
                  {"gb_per_s", 1},
                  {"memcpy_gb_per_s", 1},
                  {"ratio"},
                  {"ratio_in_step"},
                  {"goal"}},
      .rows = {},
      .notes = {
          "Bytes that count: those that all ranks together have to read and to write; an "
          "all-gather over W ranks of n bytes each 2 n W^2 (bf16, in place: 2 n W (W-1)), a "
          "reduce-scatter n W (W+1); memcpy: as many, half by each thread.",
          "Many are queued on every rank's stream; a rank's stream sleeps while it waits for "
          "the others.",
          "ratio_in_step: against two threads that also wait for each other after each copy, as "
          "ranks have to; ratio: against threads that never wait."}};
  const std::vector<std::int64_t> parts =
      effort.quick ? std::vector<std::int64_t>{16 << 10}
                   : std::vector<std::int64_t>{16 << 10, 1 << 20, 16 << 20};
  for (const Collective op : {Collective::all_gather, Collective::reduce_scatter}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const int ranks : {2, 4}) {
        for (const std::int64_t part : parts) {
          std::vector<Cell> row{op == Collective::all_gather ? "all_gather" : "reduce_scatter",
                                to_string(dtype), static_cast<double>(ranks),
                                static_cast<double>(part >> 10)};
          const std::vector<Cell> numbers =
              measure({.op = op, .dtype = dtype, .ranks = ranks, .part_bytes = part}, effort);
          row.insert(row.end(), numbers.begin(), numbers.end());
          table.rows.push_back(std::move(row));
        }
      }
    }
  }
  return table;
}

}  // namespace troupe::bench
