/// A function on a stack of its own that is resumed and paused by hand: the trainer of a rank in
/// single-thread worlds. Exceptions in flight belong to the fiber that threw them.
///
/// Thread rules: one thread.
#pragma once

#include <functional>
#include <memory>
#include <ucontext.h>

namespace troupe::test {

class Fiber {
 public:
  /// Nothing runs before the first `resume`. An exception may not leave `body`.
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Runs the body until it pauses or ends. Called from outside of any fiber.
  void resume();
  /// Goes back to whoever resumed the fiber that this is called in.
  static void pause();
  /// The fiber that is running; null outside.
  static Fiber* current();
  bool ended() const { return ended_; }

 private:
  /// What the C++ runtime keeps per thread about exceptions (Itanium C++ ABI, section 2.2.2).
  struct Exceptions {
    void* caught = nullptr;
    unsigned int uncaught = 0;
  };

  static void enter();
  void swap_exceptions();

  std::function<void()> body_;
  std::unique_ptr<char[]> stack_;
  ucontext_t inside_{};
  ucontext_t outside_{};
  Exceptions exceptions_;
  bool ended_ = false;
  // The address sanitizer has to hear of each change of stacks.
  void* fake_stack_inside_ = nullptr;
  void* fake_stack_outside_ = nullptr;
  const void* outside_bottom_ = nullptr;
  std::size_t outside_size_ = 0;
};

}  // namespace troupe::test
