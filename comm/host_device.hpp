/// The CPU as a device. A stream is a FIFO of operations run by a worker thread of its own, or, in
/// single-thread tests, step by step by whoever calls `HostStream::step()`.
#pragma once

#include "troupe/comm/device.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace troupe {

enum class Progress : std::uint8_t { done, blocked };

/// An operation of a host stream: called until it returns `done` or a failure. `blocked`: call
/// again after the stream was notified (the operation has arranged for that), or a little later in
/// any case (so that deadlines are met). It does not block for long; an exception fails the stream.
using HostOperation = std::function<Result<Progress>()>;

/// How the streams of a `HostDevice` are run.
enum class StreamWorkers : std::uint8_t {
  threads,  ///< one worker thread per stream
  manual,   ///< no threads: `HostStream::step()` runs the head operation
};

class HostStream;  // see host_stream.hpp

class HostDevice final : public Device {
 public:
  explicit HostDevice(StreamWorkers workers = StreamWorkers::threads,
                      const Clock& clock = Clock::steady());
  /// Stops the workers: what is still queued is dropped, an operation under way is awaited.
  ~HostDevice() override;
  HostDevice(const HostDevice&) = delete;
  HostDevice& operator=(const HostDevice&) = delete;

  Result<Buffer> allocate(std::int64_t bytes, Purpose purpose) override;
  Stream& create_stream(std::string name) override;
  /// The same, as the host's own type: for trainers that compute on worker streams.
  HostStream& create_host_stream(std::string name);
  /// All streams made so far, in order of creation (for drivers of manual streams).
  std::vector<HostStream*> streams();

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

  StreamWorkers workers_;
  const Clock& clock_;
  std::mutex mutex_;  // guards streams_
  std::vector<std::unique_ptr<HostStream>> streams_;
};

}  // namespace troupe
