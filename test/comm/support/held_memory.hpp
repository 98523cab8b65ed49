/// Memory that holds up whoever reads its last page, until it is let go: a slow reader at a place
/// of the test's choice.
#pragma once

#include <atomic>
#include <cstddef>

namespace troupe::test {

class HeldMemory {
 public:
  /// At least one page is readable before the held one. One object at a time.
  explicit HeldMemory(std::size_t bytes);
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;
  ~HeldMemory();

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  /// Whether a reader is held up.
  bool entered() const { return entered_.load(); }
  /// The page becomes readable; zero unless written before.
  void let_go();

 private:
  friend struct FaultHandler;

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t page_ = 0;
  std::atomic<bool> entered_{false};
  std::atomic<bool> free_{false};
};

}  // namespace troupe::test
