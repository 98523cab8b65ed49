#include "troupe/comm/device.hpp"

#include <utility>

namespace troupe {

const char* to_string(Purpose purpose) {
  switch (purpose) {
    case Purpose::main_weights:
      return "main weights";
    case Purpose::main_gradients:
      return "main gradients";
    case Purpose::parameter_slots:
      return "parameter slots";
    case Purpose::kept_parameters:
      return "kept parameters";
    case Purpose::gradient_slots:
      return "gradient slots";
    case Purpose::gradient_staging:
      return "gradient staging";
    case Purpose::wide_shard:
      return "wide shard";
    case Purpose::optimizer:
      return "optimizer";
    case Purpose::temporary:
      return "temporary";
  }
  return "?";
}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      purpose_(other.purpose_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  Buffer moved(std::move(other));
  std::swap(device_, moved.device_);
  std::swap(purpose_, moved.purpose_);
  std::swap(data_, moved.data_);
  std::swap(bytes_, moved.bytes_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) {
    device_->free(data_, bytes_, purpose_);
  }
}

}  // namespace troupe
