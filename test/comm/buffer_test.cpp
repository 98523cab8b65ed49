#include "troupe/comm/host_device.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace troupe {
namespace {

std::int64_t bytes_now(HostDevice& device, Purpose purpose) {
  return device.counters().bytes[static_cast<std::size_t>(purpose)];
}

std::int64_t bytes_peak(HostDevice& device, Purpose purpose) {
  return device.counters().bytes_peak[static_cast<std::size_t>(purpose)];
}

TEST_CASE("a buffer is aligned, zeroed and as large as asked") {
  HostDevice device;
  for (const std::int64_t bytes : {0, 1, 255, 256, 257, 100000}) {
    auto buffer = device.allocate(bytes, Purpose::temporary);
    REQUIRE(buffer.ok());
    CHECK(buffer.value().bytes() == bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.value().data()) % 256 == 0);
    for (std::int64_t i = 0; i < bytes; ++i) {
      REQUIRE(*buffer.value().bytes_at(i) == std::byte{0});
    }
  }
}

TEST_CASE("bytes are counted by purpose, with their peak") {
  HostDevice device;
  {
    auto slots = device.allocate(1000, Purpose::parameter_slots);
    auto more = device.allocate(500, Purpose::parameter_slots);
    auto weights = device.allocate(70, Purpose::main_weights);
    CHECK(bytes_now(device, Purpose::parameter_slots) == 1500);
    CHECK(bytes_now(device, Purpose::main_weights) == 70);
    CHECK(bytes_now(device, Purpose::optimizer) == 0);
  }
  auto again = device.allocate(10, Purpose::parameter_slots);
  CHECK(bytes_now(device, Purpose::parameter_slots) == 10);
  CHECK(bytes_peak(device, Purpose::parameter_slots) == 1500);
  CHECK(device.counters().allocations == 4);
  CHECK(device.counters().frees == 3);
}

TEST_CASE("a buffer moves, and is given back once") {
  HostDevice device;
  {
    Buffer buffer = std::move(device.allocate(100, Purpose::temporary)).value();
    void* data = buffer.data();
    Buffer moved = std::move(buffer);
    CHECK(moved.data() == data);
    Buffer other = std::move(device.allocate(30, Purpose::temporary)).value();
    other = std::move(moved);
    CHECK(other.data() == data);
    CHECK(bytes_now(device, Purpose::temporary) == 100);
    CHECK(device.counters().frees == 1);
    other = Buffer{};
    CHECK(other.data() == nullptr);
    CHECK(device.counters().frees == 2);
  }
  CHECK(device.counters().frees == 2);
}

TEST_CASE("an allocation that cannot be names bytes and purpose, and counts nothing") {
  HostDevice device;
  for (const std::int64_t bytes :
       {std::int64_t{-8}, std::int64_t{1} << 50, std::numeric_limits<std::int64_t>::max(),
        std::numeric_limits<std::int64_t>::min()}) {
    const auto buffer = device.allocate(bytes, Purpose::gradient_slots);
    REQUIRE_FALSE(buffer.ok());
    CHECK(buffer.failure().code == ErrorCode::device);
    CHECK(buffer.failure().text.find(std::to_string(bytes)) != std::string::npos);
    CHECK(buffer.failure().text.find("gradient slots") != std::string::npos);
  }
  CHECK(bytes_peak(device, Purpose::gradient_slots) == 0);
  CHECK(device.counters().allocations == 0);
}

TEST_CASE("counters hold when threads allocate at once") {
  HostDevice device;
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&device] {
      for (int round = 0; round < 500; ++round) {
        const auto buffer = device.allocate(64, Purpose::temporary);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(bytes_now(device, Purpose::temporary) == 0);
  CHECK(bytes_peak(device, Purpose::temporary) >= 64);
  CHECK(bytes_peak(device, Purpose::temporary) <= 4 * 64);
  CHECK(device.counters().allocations == 2000);
  CHECK(device.counters().frees == 2000);
}

}  // namespace
}  // namespace troupe
