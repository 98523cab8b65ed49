/// The safetensors format: named tensors in one file, with all that has to be known about them in
/// front. Pure.
///
///     bytes       what
///     8           n: length of the header, little-endian
///     n           the header, a JSON object, padded with spaces to a multiple of 8:
///                 {"__metadata__": {"key": "text", …},
///                  "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …}
///     the rest    the tensors, little-endian, row-major; offsets count from here. No gaps and no
///                 overlaps: each byte belongs to one tensor.
///
/// Headers come from files that anybody may have written: nothing in them is trusted. Errors:
/// `Failure` (storage) that says what is wrong; which file it is, the caller adds.
/// Source: https://github.com/huggingface/safetensors
#pragma once

#include "troupe/core/error.hpp"
#include "troupe/core/model.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// Those that are written and read here, of the format's many.
enum class TensorType : std::uint8_t { f32, bf16, u8 };

constexpr std::int64_t size_of(TensorType type) {
  return type == TensorType::f32 ? 4 : type == TensorType::bf16 ? 2 : 1;
}

/// To be stored: the tensors' data follow each other in the order of this list.
struct TensorSpec {
  std::string name;
  TensorType type = TensorType::f32;
  Shape shape;

  bool operator==(const TensorSpec&) const = default;
};

using TensorMetadata = std::map<std::string, std::string, std::less<>>;

/// Length and header, up to the first byte of data. Errors: a name used twice, or that is
/// "__metadata__", or no UTF-8.
Result<std::string> safetensors_header(const std::vector<TensorSpec>& tensors,
                                       const TensorMetadata& metadata);

/// As found in a file.
struct StoredTensor {
  TensorType type = TensorType::f32;
  Shape shape;
  std::int64_t numel = 0;
  std::int64_t offset = 0;  ///< in bytes, from the beginning of the file
};

struct StoredTensors {
  TensorMetadata metadata;
  std::map<std::string, StoredTensor, std::less<>> tensors;
};

/// Length of the header in a file of `file_bytes` that begins with `first` (8 bytes or fewer, if
/// there are not so many). Errors: the file is shorter than what it says, or the header longer than
/// 100 MB, the format's limit.
Result<std::int64_t> safetensors_header_bytes(std::string_view first, std::int64_t file_bytes);

/// header      without the length, as long as that says
/// file_bytes  of the whole file
Result<StoredTensors> parse_safetensors_header(std::string_view header, std::int64_t file_bytes);

}  // namespace troupe
