/// One collective of all ranks of a world, with its buffers, and what has to come out.
#pragma once

#include "world_fixture.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::test {

enum class Values : std::uint8_t {
  small_integers,  ///< every sum is exact
  reals,           ///< sums depend on the order
  nan_padded,      ///< small integers, and NaN at the end of every part
};

struct Spec {
  Collective op = Collective::barrier;
  DType dtype = DType::f32;
  std::int64_t numel = 0;
  int root = 0;
  bool in_place = false;
  Values values = Values::small_integers;
};
std::string to_string(const Spec& spec);

/// Buffers start three elements behind an aligned address and are surrounded by elements that have
/// to stay as they are.
class Trial {
 public:
  Trial(WorldFixture& world, const Spec& spec, Ticket ticket, std::uint64_t seed);

  /// Issues copy in, collective and copy out on the rank's stream. The trial outlives them.
  Result<void> launch(int rank);
  void launch_all();
  /// After all ranks have settled: compares every element with a plain reference.
  void check() const;

 private:
  struct Rank {
    std::vector<std::byte> input;   ///< host image of the device buffer, margins included
    std::vector<std::byte> output;  ///< empty in place
    std::vector<std::byte> input_after;
    std::vector<std::byte> output_after;
    Buffer input_buffer;
    Buffer output_buffer;
  };

  std::int64_t input_numel() const;
  std::int64_t output_numel() const;
  bool has_output(int rank) const;
  std::int64_t in_place_offset(int rank, bool of_input) const;
  /// Element `index` of the rank's input before the collective.
  float input(int rank, std::int64_t index) const;
  std::uint32_t input_bits(int rank, std::int64_t index) const;
  /// Bits of element `index` of the rank's output.
  std::uint32_t expected(int rank, std::int64_t index) const;
  std::uint32_t sum(std::int64_t index) const;

  WorldFixture& world_;
  const Spec spec_;
  const Ticket ticket_;
  const std::string label_;
  std::vector<Rank> ranks_;
};

}  // namespace troupe::test
