// A program of its own: it replaces the global allocation functions to count calls.
#include "gpt_fixture.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> allocation_count{0};

void* counted(void* memory) {
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

void* operator new(size_t bytes) {
  return counted(std::malloc(bytes));
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  const auto multiple = static_cast<size_t>(alignment);
  return counted(std::aligned_alloc(multiple, (bytes + multiple - 1) / multiple * multiple));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace gpt::test {

TEST_CASE("a step allocates nothing") {
  const Config config{.layers = 2, .width = 16, .heads = 2, .sequence = 6, .batch = 2};
  Network network(config);
  const Tensors weights(config);
  const Tensors gradients(config);
  fill_lively(config, weights);
  const Batch batch = random_batch(config, 1);
  std::vector<std::vector<const float*>> pointers;
  std::vector<std::vector<GradientOut>> outs;
  for (size_t unit = 0; unit < weights.unit_count(); ++unit) {
    pointers.push_back(weights.pointers(unit));
    outs.push_back(gradients.outs(unit, unit % 2 == 0));
  }

  const int64_t before = allocation_count;
  CHECK(before > 0);
  network.set_batch(batch.tokens, batch.targets);
  for (size_t unit = 0; unit < pointers.size(); ++unit) {
    network.forward(unit, pointers[unit]);
  }
  const float loss = network.loss();
  for (size_t unit = pointers.size(); unit-- > 0;) {
    network.backward(unit, pointers[unit], outs[unit]);
  }
  const int64_t after = allocation_count;
  CHECK(after == before);
  CHECK(loss > 0);
}

}  // namespace gpt::test
