/// A device in virtual time: real memory and real values, so that results can be compared bit for
/// bit, and streams whose operations take as long as they are said to.
///
/// Kernels on `Stream::caller()` take no time. Every kernel says what it reads and writes, and
/// memory that is freed while somebody uses it is reported (see access_log.hpp).
/// Thread rules: one thread.
#pragma once

#include "troupe/comm/device.hpp"
#include "troupe/comm/simulated/simulated_stream.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

class SimulatedDevice final : public Device {
 public:
  explicit SimulatedDevice(SimulatedSurroundings surroundings);
  ~SimulatedDevice() override;
  SimulatedDevice(const SimulatedDevice&) = delete;
  SimulatedDevice& operator=(const SimulatedDevice&) = delete;

  Result<Buffer> allocate(std::int64_t bytes, Purpose purpose) override;
  Stream& create_stream(std::string name) override;
  /// The same, as the simulation's own type: for trainers that compute on it.
  SimulatedStream& create_simulated_stream(std::string name);
  const std::vector<std::unique_ptr<SimulatedStream>>& streams() const { return streams_; }
  /// Bytes allocated now, for all purposes.
  std::int64_t bytes_allocated() const;
  /// Where `data` lies: (number of the allocation, offset in bytes). The same in equal runs,
  /// unlike addresses. Nothing if it is not of this device.
  std::optional<std::pair<std::uint64_t, std::int64_t>> place_of(const void* data) const;

  void cast(Stream& stream,
            DType from_dtype,
            const void* from,
            DType to_dtype,
            void* to,
            std::int64_t numel) override;
  void accumulate(Stream& stream,
                  DType sum_dtype,
                  void* sum,
                  DType dtype,
                  const void* part,
                  std::int64_t numel) override;
  void divide(Stream& stream, DType dtype, void* data, std::int64_t numel, float divisor) override;
  void squared_norm(Stream& stream,
                    DType dtype,
                    const void* data,
                    std::int64_t numel,
                    double* result,
                    bool* non_finite) override;
  void copy(Stream& stream, void* to, const void* from, std::int64_t bytes) override;
  void zero(Stream& stream, void* data, std::int64_t bytes) override;
  void stop() override;

 private:
  void free(void* data, std::int64_t bytes, Purpose purpose) noexcept override;
  void issue(Stream& stream,
             const char* what,
             std::vector<Access> accesses,
             std::function<void()> kernel);

  const SimulatedSurroundings surroundings_;
  std::uint64_t kernels_ = 0;                                                ///< issued, for names
  std::map<const std::byte*, std::pair<std::uint64_t, std::int64_t>> live_;  ///< number, bytes
  std::vector<std::unique_ptr<SimulatedStream>> streams_;
};

}  // namespace troupe
