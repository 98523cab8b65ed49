#include "troupe/comm/host_device.hpp"

#include "troupe/comm/host_stream.hpp"
#include "troupe/comm/kernels.hpp"

#include <algorithm>
#include <cstdlib>
#include <unistd.h>
#include <utility>

namespace troupe {

namespace {

constexpr std::size_t alignment = 256;

std::size_t index_of(Purpose purpose) {
  return static_cast<std::size_t>(purpose);
}

/// What the machine has; more cannot be zeroed, and asking for it would end the process, not the
/// call.
std::int64_t memory_bytes() {
  const auto pages = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES));
  const auto page_bytes = static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
  return pages * page_bytes;
}

Failure cannot_allocate(std::int64_t bytes, Purpose purpose, const std::string& why) {
  return {.code = ErrorCode::device,
          .text = "cannot allocate " + std::to_string(bytes) + " bytes of host memory for " +
                  to_string(purpose) + ": " + why};
}

void raise_peak(std::atomic<std::int64_t>& peak, std::int64_t value) {
  std::int64_t seen = peak.load();
  while (seen < value && !peak.compare_exchange_weak(seen, value)) {
  }
}

/// Runs a kernel on the calling thread or on the stream's worker.
template <class Kernel>
void issue(Stream& stream, Kernel kernel) {
  if (stream.is_caller()) {
    kernel();
  } else if (auto* host_stream = dynamic_cast<HostStream*>(&stream)) {
    host_stream->run(std::move(kernel));
  } else {
    throw Error({.code = ErrorCode::misuse,
                 .text = "stream '" + stream.name() + "' is of another device than the host"});
  }
}

}  // namespace

HostDevice::HostDevice(StreamWorkers workers, const Clock& clock)
    : workers_(workers), clock_(clock) {}

HostDevice::~HostDevice() {
  // All are stopped before any is destroyed: one may have an operation that looks at another.
  stop();
}

void HostDevice::stop() {
  for (HostStream* stream : streams()) {
    stream->stop();
  }
}

Result<Buffer> HostDevice::allocate(std::int64_t bytes, Purpose purpose) {
  if (bytes < 0) {
    return cannot_allocate(bytes, purpose, "a size is not negative");
  }
  if (bytes > memory_bytes()) {
    return cannot_allocate(bytes, purpose,
                           "the machine has " + std::to_string(memory_bytes()) + " bytes");
  }
  const std::size_t blocks = (static_cast<std::size_t>(bytes) + alignment - 1) / alignment;
  const std::size_t rounded = std::max<std::size_t>(blocks, 1) * alignment;
  void* data = std::aligned_alloc(alignment, rounded);
  if (data == nullptr) {
    return cannot_allocate(bytes, purpose, "out of memory");
  }
  kernels::zero(data, static_cast<std::int64_t>(rounded));
  auto& now = counters_.bytes[index_of(purpose)];
  raise_peak(counters_.bytes_peak[index_of(purpose)], now.fetch_add(bytes) + bytes);
  counters_.allocations.fetch_add(1);
  return Buffer(*this, purpose, data, bytes);
}

void HostDevice::free(void* data, std::int64_t bytes, Purpose purpose) noexcept {
  counters_.bytes[index_of(purpose)].fetch_sub(bytes);
  counters_.frees.fetch_add(1);
  std::free(data);
}

Stream& HostDevice::create_stream(std::string name) {
  return create_host_stream(std::move(name));
}

HostStream& HostDevice::create_host_stream(std::string name) {
  auto stream = std::make_unique<HostStream>(std::move(name), workers_, clock_);
  const std::lock_guard lock(mutex_);
  return *streams_.emplace_back(std::move(stream));
}

std::vector<HostStream*> HostDevice::streams() {
  const std::lock_guard lock(mutex_);
  std::vector<HostStream*> all;
  all.reserve(streams_.size());
  for (auto& stream : streams_) {
    all.push_back(stream.get());
  }
  return all;
}

void HostDevice::cast(Stream& stream,
                      DType from_dtype,
                      const void* from,
                      DType to_dtype,
                      void* to,
                      std::int64_t numel) {
  issue(stream, [from_dtype, from, to_dtype, to, numel] {
    kernels::cast(from_dtype, from, to_dtype, to, numel);
  });
}

void HostDevice::accumulate(
    Stream& stream, DType sum_dtype, void* sum, DType dtype, const void* part, std::int64_t numel) {
  issue(stream, [sum_dtype, sum, dtype, part, numel] {
    kernels::accumulate(sum_dtype, sum, dtype, part, numel);
  });
}

void HostDevice::divide(
    Stream& stream, DType dtype, void* data, std::int64_t numel, float divisor) {
  issue(stream, [dtype, data, numel, divisor] { kernels::divide(dtype, data, numel, divisor); });
}

void HostDevice::squared_norm(Stream& stream,
                              DType dtype,
                              const void* data,
                              std::int64_t numel,
                              double* result,
                              bool* non_finite) {
  issue(stream, [dtype, data, numel, result, non_finite] {
    kernels::squared_norm(dtype, data, numel, result, non_finite);
  });
}

void HostDevice::copy(Stream& stream, void* to, const void* from, std::int64_t bytes) {
  issue(stream, [to, from, bytes] { kernels::copy(to, from, bytes); });
}

void HostDevice::zero(Stream& stream, void* data, std::int64_t bytes) {
  issue(stream, [data, bytes] { kernels::zero(data, bytes); });
}

}  // namespace troupe
