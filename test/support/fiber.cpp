#include "fiber.hpp"

#include <cstring>
#include <cxxabi.h>
#include <utility>
#include <vector>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace troupe::test {

namespace {

constexpr std::size_t stack_bytes = std::size_t{256} << 10;

Fiber* running = nullptr;

/// Stacks are used again: a world has a few, and there are very many worlds.
std::vector<std::unique_ptr<char[]>>& free_stacks() {
  static std::vector<std::unique_ptr<char[]>> stacks;
  return stacks;
}

std::unique_ptr<char[]> take_stack() {
  if (free_stacks().empty()) {
    return std::unique_ptr<char[]>(new char[stack_bytes]);
  }
  auto stack = std::move(free_stacks().back());
  free_stacks().pop_back();
  return stack;
}

void start_switch([[maybe_unused]] void** fake_stack,
                  [[maybe_unused]] const void* bottom,
                  [[maybe_unused]] std::size_t size) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(fake_stack, bottom, size);
#endif
}

void finish_switch([[maybe_unused]] void* fake_stack,
                   [[maybe_unused]] const void** bottom,
                   [[maybe_unused]] std::size_t* size) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake_stack, bottom, size);
#endif
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(take_stack()) {
  getcontext(&inside_);
  inside_.uc_stack.ss_sp = stack_.get();
  inside_.uc_stack.ss_size = stack_bytes;
  inside_.uc_link = nullptr;  // `enter` never returns
  makecontext(&inside_, &Fiber::enter, 0);
}

Fiber::~Fiber() {
  free_stacks().push_back(std::move(stack_));
}

void Fiber::enter() {
  Fiber& self = *running;
  finish_switch(nullptr, &self.outside_bottom_, &self.outside_size_);
  self.body_();
  self.body_ = nullptr;
  self.ended_ = true;
  self.swap_exceptions();
  start_switch(nullptr, self.outside_bottom_, self.outside_size_);
  setcontext(&self.outside_);
}

void Fiber::resume() {
  running = this;
  swap_exceptions();
  start_switch(&fake_stack_outside_, stack_.get(), stack_bytes);
  swapcontext(&outside_, &inside_);
  finish_switch(fake_stack_outside_, nullptr, nullptr);
  running = nullptr;
}

void Fiber::pause() {
  Fiber& self = *running;
  self.swap_exceptions();
  start_switch(&self.fake_stack_inside_, self.outside_bottom_, self.outside_size_);
  swapcontext(&self.inside_, &self.outside_);
  finish_switch(self.fake_stack_inside_, &self.outside_bottom_, &self.outside_size_);
}

Fiber* Fiber::current() {
  return running;
}

void Fiber::swap_exceptions() {
  Exceptions now;
  void* const globals = abi::__cxa_get_globals();
  std::memcpy(&now, globals, sizeof now);
  std::memcpy(globals, &exceptions_, sizeof exceptions_);
  exceptions_ = now;
}

}  // namespace troupe::test
