/// A device: memory, streams and four kernels. `HostDevice` is the CPU with CUDA's asynchronous
/// meaning, so that what host tests exercise is what runs on a GPU.
///
/// Thread rules: any thread. Errors: allocation returns a `Failure` (device) with bytes and
/// purpose; a kernel's failure fails its stream.
#pragma once

#include "troupe/comm/stream.hpp"
#include "troupe/core/dtype.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace troupe {

/// What memory is for: allocations are counted apart.
enum class Purpose : std::uint8_t {
  main_weights,
  main_gradients,
  parameter_slots,
  gradient_slots,
  gradient_staging,
  kept_parameters,
  wide_shard,
  optimizer,
  temporary,  ///< exports and initialisation; gone afterwards
};
inline constexpr std::size_t purpose_count = 9;
const char* to_string(Purpose purpose);

class Device;

/// Device memory with one owner, at least 256-byte aligned, zeroed. Moves, does not copy. Given
/// back before its device is destroyed.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, Purpose purpose, void* data, std::int64_t bytes)
      : device_(&device), purpose_(purpose), data_(data), bytes_(bytes) {}
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  void* data() const { return data_; }
  std::byte* bytes_at(std::int64_t offset) const { return static_cast<std::byte*>(data_) + offset; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  Purpose purpose_ = Purpose::temporary;
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// Counted by the device itself; read by tests and reports at any time.
struct DeviceCounters {
  std::array<std::atomic<std::int64_t>, purpose_count> bytes{};  ///< allocated now
  std::array<std::atomic<std::int64_t>, purpose_count> bytes_peak{};
  std::atomic<std::int64_t> allocations{0};  ///< since the device was made
  std::atomic<std::int64_t> frees{0};
  /// Slot bytes that hold unsharded parameters, and gradient slot bytes being filled, in
  /// the scheduler's view.
  std::atomic<std::int64_t> unsharded_bytes{0};
  std::atomic<std::int64_t> unsharded_bytes_peak{0};
  std::atomic<std::int64_t> gradient_bytes{0};
  std::atomic<std::int64_t> gradient_bytes_peak{0};
};

class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  virtual Result<Buffer> allocate(std::int64_t bytes, Purpose purpose) = 0;
  /// A new stream, owned by the device. `name` appears in errors and traces.
  virtual Stream& create_stream(std::string name) = 0;

  // Kernels, asynchronous on `stream` (on `Stream::caller()`: done on return).

  /// to[i] = from[i], rounded to nearest even where `to_dtype` is narrower. (numel) each.
  virtual void cast(Stream& stream,
                    DType from_dtype,
                    const void* from,
                    DType to_dtype,
                    void* to,
                    std::int64_t numel) = 0;
  /// sum[i] += part[i], in fp32, rounded once to `sum_dtype`. (numel) each.
  virtual void accumulate(Stream& stream,
                          DType sum_dtype,
                          void* sum,
                          DType dtype,
                          const void* part,
                          std::int64_t numel) = 0;
  /// data[i] = data[i] / divisor: a true division, not a multiplication by the inverse. In fp32,
  /// rounded once to `dtype`.
  virtual void divide(
      Stream& stream, DType dtype, void* data, std::int64_t numel, float divisor) = 0;
  /// result[0] += Σ data[i]², in fp64 with a fixed order of sums; `*non_finite` is set to true if
  /// an element is infinite or not a number. Results are in host memory.
  virtual void squared_norm(Stream& stream,
                            DType dtype,
                            const void* data,
                            std::int64_t numel,
                            double* result,
                            bool* non_finite) = 0;
  virtual void copy(Stream& stream, void* to, const void* from, std::int64_t bytes) = 0;
  virtual void zero(Stream& stream, void* data, std::int64_t bytes) = 0;

  /// Stops all streams: an operation under way is awaited, the rest is dropped. Idempotent.
  virtual void stop() = 0;

  DeviceCounters& counters() { return counters_; }

 protected:
  friend class Buffer;
  virtual void free(void* data, std::int64_t bytes, Purpose purpose) noexcept = 0;

  DeviceCounters counters_;
};

}  // namespace troupe
