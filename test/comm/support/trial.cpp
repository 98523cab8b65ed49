#include "trial.hpp"

#include "draw.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace troupe::test {

namespace {

constexpr std::int64_t margin = 3;
constexpr float untouched = -77.0F;

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

std::uint32_t bits_of(DType dtype, float value) {
  return dtype == DType::f32 ? std::bit_cast<std::uint32_t>(value) : to_bfloat16(value).bits;
}

float value_of(DType dtype, std::uint32_t bits) {
  return dtype == DType::f32 ? std::bit_cast<float>(bits)
                             : to_float(BFloat16{static_cast<std::uint16_t>(bits)});
}

void put(std::vector<std::byte>& image, DType dtype, std::int64_t index, std::uint32_t bits) {
  const std::size_t size = size_of(dtype);
  if (dtype == DType::f32) {
    std::memcpy(&image[at(index) * size], &bits, size);
  } else {
    const auto half = static_cast<std::uint16_t>(bits);
    std::memcpy(&image[at(index) * size], &half, size);
  }
}

std::uint32_t get(const std::vector<std::byte>& image, DType dtype, std::int64_t index) {
  const std::size_t size = size_of(dtype);
  if (dtype == DType::f32) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &image[at(index) * size], size);
    return bits;
  }
  std::uint16_t half = 0;
  std::memcpy(&half, &image[at(index) * size], size);
  return half;
}

std::vector<std::byte> image_of(DType dtype, std::int64_t numel) {
  std::vector<std::byte> image(at(numel + 2 * margin) * size_of(dtype));
  for (std::int64_t i = 0; i < numel + 2 * margin; ++i) {
    put(image, dtype, i, bits_of(dtype, untouched));
  }
  return image;
}

std::uint32_t draw(const Spec& spec, std::int64_t index, Random& random) {
  if (spec.values == Values::reals) {
    return bits_of(spec.dtype, real(random));
  }
  const bool last_of_part = spec.numel > 0 && index % spec.numel == spec.numel - 1;
  if (spec.values == Values::nan_padded && last_of_part) {
    // A quiet NaN whose lower bits tell whether it was copied or made anew.
    return spec.dtype == DType::f32 ? 0x7fc00123U : 0x7fc5U;
  }
  return bits_of(spec.dtype, static_cast<float>(random.below(8)));
}

}  // namespace

std::string to_string(const Spec& spec) {
  static constexpr const char* value_names[] = {"small integers", "reals", "NaN-padded"};
  return std::string(troupe::to_string(spec.op)) + " of " + std::to_string(spec.numel) + " " +
         troupe::to_string(spec.dtype) + ", root " + std::to_string(spec.root) +
         (spec.in_place ? ", in place, " : ", out of place, ") +
         value_names[static_cast<std::size_t>(spec.values)];
}

Trial::Trial(WorldFixture& world, const Spec& spec, Ticket ticket, std::uint64_t seed)
    : world_(world), spec_(spec), ticket_(ticket), label_(to_string(spec)) {
  Random random(seed);
  for (int rank = 0; rank < world.size(); ++rank) {
    Rank one;
    if (spec.in_place) {
      one.input = image_of(spec.dtype, std::max(input_numel(), output_numel()));
    } else {
      one.input = image_of(spec.dtype, input_numel());
      one.output = image_of(spec.dtype, output_numel());
    }
    const std::int64_t begin = margin + in_place_offset(rank, true);
    for (std::int64_t i = 0; i < input_numel(); ++i) {
      put(one.input, spec.dtype, begin + i, draw(spec, i, random));
    }
    const auto allocate = [&](const std::vector<std::byte>& image) {
      return std::move(world.device(rank).allocate(static_cast<std::int64_t>(image.size()),
                                                   Purpose::temporary))
          .value();
    };
    one.input_buffer = allocate(one.input);
    one.output_buffer = allocate(one.output);
    one.input_after.resize(one.input.size());
    one.output_after.resize(one.output.size());
    ranks_.push_back(std::move(one));
  }
}

std::int64_t Trial::input_numel() const {
  return spec_.op == Collective::reduce_scatter ? spec_.numel * world_.size() : spec_.numel;
}

std::int64_t Trial::output_numel() const {
  return spec_.op == Collective::all_gather ? spec_.numel * world_.size() : spec_.numel;
}

bool Trial::has_output(int rank) const {
  return spec_.op != Collective::barrier && (spec_.op != Collective::reduce || rank == spec_.root);
}

/// Where input or output lies in the one buffer of a rank, in elements.
std::int64_t Trial::in_place_offset(int rank, bool of_input) const {
  const Collective smaller_part = of_input ? Collective::all_gather : Collective::reduce_scatter;
  return spec_.in_place && spec_.op == smaller_part ? rank * spec_.numel : 0;
}

std::uint32_t Trial::input_bits(int rank, std::int64_t index) const {
  return get(ranks_[at(rank)].input, spec_.dtype, margin + in_place_offset(rank, true) + index);
}

float Trial::input(int rank, std::int64_t index) const {
  return value_of(spec_.dtype, input_bits(rank, index));
}

std::uint32_t Trial::sum(std::int64_t index) const {
  if (world_.size() == 1) {
    return input_bits(0, index);
  }
  float total = input(0, index);
  for (int rank = 1; rank < world_.size(); ++rank) {
    total = total + input(rank, index);
  }
  return bits_of(spec_.dtype, total);
}

std::uint32_t Trial::expected(int rank, std::int64_t index) const {
  switch (spec_.op) {
    case Collective::all_gather:
      return input_bits(static_cast<int>(index / spec_.numel), index % spec_.numel);
    case Collective::reduce_scatter:
      return sum(rank * spec_.numel + index);
    case Collective::all_reduce:
    case Collective::reduce:
      return sum(index);
    case Collective::broadcast:
      return input_bits(spec_.root, index);
    case Collective::barrier:
      break;
  }
  return 0;
}

Result<void> Trial::launch(int rank) {
  Rank& mine = ranks_[at(rank)];
  Device& device = world_.device(rank);
  Stream& stream = world_.stream(rank);
  const auto element = static_cast<std::int64_t>(size_of(spec_.dtype));
  Buffer& out = spec_.in_place ? mine.input_buffer : mine.output_buffer;
  const bool has_input = spec_.op != Collective::broadcast || rank == spec_.root;

  device.copy(stream, mine.input_buffer.data(), mine.input.data(), mine.input_buffer.bytes());
  device.copy(stream, mine.output_buffer.data(), mine.output.data(), mine.output_buffer.bytes());
  CollectiveCall call{.op = spec_.op,
                      .ticket = ticket_,
                      .bucket = static_cast<BucketId>(ticket_ % 5),
                      .label = label_.c_str(),
                      .dtype = spec_.dtype,
                      .numel = spec_.numel,
                      .root = spec_.root};
  if (has_input) {
    call.input = mine.input_buffer.bytes_at((margin + in_place_offset(rank, true)) * element);
  }
  if (has_output(rank)) {
    call.output = out.bytes_at((margin + in_place_offset(rank, false)) * element);
  }
  Result<void> launched = world_.communicator(rank).launch(call, stream);
  device.copy(stream, mine.input_after.data(), mine.input_buffer.data(), mine.input_buffer.bytes());
  device.copy(stream, mine.output_after.data(), mine.output_buffer.data(),
              mine.output_buffer.bytes());
  return launched;
}

void Trial::launch_all() {
  for (int rank = 0; rank < world_.size(); ++rank) {
    REQUIRE(launch(rank).ok());
  }
}

void Trial::check() const {
  CAPTURE(label_);
  CAPTURE(world_.size());
  const auto same = [this](std::uint32_t actual, std::uint32_t wanted) {
    const bool both_nan =
        std::isnan(value_of(spec_.dtype, actual)) && std::isnan(value_of(spec_.dtype, wanted));
    const bool adds = spec_.op == Collective::reduce_scatter ||
                      spec_.op == Collective::all_reduce || spec_.op == Collective::reduce;
    return actual == wanted || (adds && both_nan);
  };
  for (int rank = 0; rank < world_.size(); ++rank) {
    CAPTURE(rank);
    const Rank& mine = ranks_[at(rank)];
    const auto& before = spec_.in_place ? mine.input : mine.output;
    const auto& after = spec_.in_place ? mine.input_after : mine.output_after;
    const std::int64_t begin = margin + in_place_offset(rank, false);
    const std::int64_t end = begin + output_numel();
    const auto element_count = static_cast<std::int64_t>(after.size() / size_of(spec_.dtype));
    for (std::int64_t i = 0; i < element_count; ++i) {
      const bool is_output = has_output(rank) && i >= begin && i < end;
      const bool is_margin = i < margin || i >= element_count - margin;
      const std::uint32_t actual = get(after, spec_.dtype, i);
      if (is_output) {
        const std::uint32_t wanted = expected(rank, i - begin);
        if (!same(actual, wanted)) {
          FAIL("element " << i - begin << " is " << value_of(spec_.dtype, actual) << " instead of "
                          << value_of(spec_.dtype, wanted));
        }
      } else if ((is_margin || !spec_.in_place) && actual != get(before, spec_.dtype, i)) {
        FAIL("element " << i << " of the buffer was written");
      }
    }
    if (!spec_.in_place) {
      REQUIRE_MESSAGE(mine.input_after == mine.input, "the input was written");
    }
  }
}

}  // namespace troupe::test
