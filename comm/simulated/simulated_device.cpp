#include "troupe/comm/simulated/simulated_device.hpp"

#include "troupe/comm/kernels.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace troupe {

namespace {

constexpr std::size_t alignment = 256;

std::int64_t bytes_of(DType dtype, std::int64_t numel) {
  return numel * static_cast<std::int64_t>(size_of(dtype));
}

Access reads(const void* data, std::int64_t bytes) {
  return {data, bytes, false};
}
Access writes(const void* data, std::int64_t bytes) {
  return {data, bytes, true};
}

}  // namespace

SimulatedDevice::SimulatedDevice(SimulatedSurroundings surroundings)
    : surroundings_(std::move(surroundings)) {}

SimulatedDevice::~SimulatedDevice() {
  stop();  // all before any is destroyed: one may wait for another
}

Result<Buffer> SimulatedDevice::allocate(std::int64_t bytes, Purpose purpose) {
  const std::size_t blocks = (static_cast<std::size_t>(bytes) + alignment - 1) / alignment;
  const std::size_t rounded = std::max<std::size_t>(blocks, 1) * alignment;
  void* data = std::aligned_alloc(alignment, rounded);
  if (data == nullptr) {
    return Failure{.code = ErrorCode::device,
                   .text = "cannot allocate " + std::to_string(bytes) +
                           " bytes of simulated memory for " + to_string(purpose)};
  }
  kernels::zero(data, static_cast<std::int64_t>(rounded));
  const auto index = static_cast<std::size_t>(purpose);
  const std::int64_t now = counters_.bytes[index].fetch_add(bytes) + bytes;
  counters_.bytes_peak[index].store(std::max(counters_.bytes_peak[index].load(), now));
  const auto number = static_cast<std::uint64_t>(counters_.allocations.fetch_add(1));
  live_.emplace(static_cast<const std::byte*>(data),
                std::pair{number, std::max<std::int64_t>(bytes, 1)});
  return Buffer(*this, purpose, data, bytes);
}

void SimulatedDevice::free(void* data, std::int64_t bytes, Purpose purpose) noexcept {
  surroundings_.accesses->touch({"free of memory", 0, surroundings_.rank}, {writes(data, bytes)});
  counters_.bytes[static_cast<std::size_t>(purpose)].fetch_sub(bytes);
  counters_.frees.fetch_add(1);
  live_.erase(static_cast<const std::byte*>(data));
  std::free(data);
}

std::int64_t SimulatedDevice::bytes_allocated() const {
  std::int64_t sum = 0;
  for (const auto& bytes : counters_.bytes) {
    sum += bytes.load();
  }
  return sum;
}

std::optional<std::pair<std::uint64_t, std::int64_t>> SimulatedDevice::place_of(
    const void* data) const {
  const auto* const address = static_cast<const std::byte*>(data);
  auto found = live_.upper_bound(address);
  if (found == live_.begin()) {
    return std::nullopt;
  }
  --found;
  const std::int64_t offset = address - found->first;
  if (offset >= found->second.second) {
    return std::nullopt;
  }
  return std::pair{found->second.first, offset};
}

Stream& SimulatedDevice::create_stream(std::string name) {
  return create_simulated_stream(std::move(name));
}

SimulatedStream& SimulatedDevice::create_simulated_stream(std::string name) {
  return *streams_.emplace_back(std::make_unique<SimulatedStream>(std::move(name), surroundings_));
}

void SimulatedDevice::stop() {
  for (const auto& stream : streams_) {
    stream->stop();
  }
}

void SimulatedDevice::issue(Stream& stream,
                            const char* what,
                            std::vector<Access> accesses,
                            std::function<void()> kernel) {
  ++kernels_;
  if (stream.is_caller()) {
    surroundings_.accesses->touch({what, kernels_, surroundings_.rank}, accesses);
    kernel();
    return;
  }
  auto* own = dynamic_cast<SimulatedStream*>(&stream);
  if (own == nullptr) {
    throw Error({.code = ErrorCode::misuse,
                 .text = "stream '" + stream.name() + "' is of another device than the simulated"});
  }
  std::int64_t bytes = 0;
  for (const Access& access : accesses) {
    bytes += access.bytes;
  }
  const Duration duration =
      surroundings_.kernel_time ? surroundings_.kernel_time(bytes) : Duration::zero();
  own->run(what, kernels_, duration, std::move(accesses), std::move(kernel));
}

void SimulatedDevice::cast(Stream& stream,
                           DType from_dtype,
                           const void* from,
                           DType to_dtype,
                           void* to,
                           std::int64_t numel) {
  issue(stream, "cast",
        {reads(from, bytes_of(from_dtype, numel)), writes(to, bytes_of(to_dtype, numel))},
        [=] { kernels::cast(from_dtype, from, to_dtype, to, numel); });
}

void SimulatedDevice::accumulate(
    Stream& stream, DType sum_dtype, void* sum, DType dtype, const void* part, std::int64_t numel) {
  issue(stream, "accumulate",
        {reads(part, bytes_of(dtype, numel)), writes(sum, bytes_of(sum_dtype, numel))},
        [=] { kernels::accumulate(sum_dtype, sum, dtype, part, numel); });
}

void SimulatedDevice::divide(
    Stream& stream, DType dtype, void* data, std::int64_t numel, float divisor) {
  issue(stream, "divide", {writes(data, bytes_of(dtype, numel))},
        [=] { kernels::divide(dtype, data, numel, divisor); });
}

void SimulatedDevice::squared_norm(Stream& stream,
                                   DType dtype,
                                   const void* data,
                                   std::int64_t numel,
                                   double* result,
                                   bool* non_finite) {
  issue(stream, "squared_norm", {reads(data, bytes_of(dtype, numel))},
        [=] { kernels::squared_norm(dtype, data, numel, result, non_finite); });
}

void SimulatedDevice::copy(Stream& stream, void* to, const void* from, std::int64_t bytes) {
  issue(stream, "copy", {reads(from, bytes), writes(to, bytes)},
        [=] { kernels::copy(to, from, bytes); });
}

void SimulatedDevice::zero(Stream& stream, void* data, std::int64_t bytes) {
  issue(stream, "zero", {writes(data, bytes)}, [=] { kernels::zero(data, bytes); });
}

}  // namespace troupe
