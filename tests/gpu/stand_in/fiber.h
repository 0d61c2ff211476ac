#pragma once

#include <csetjmp>
#include <cstddef>

namespace troupe::cuda_stand_in {

/// A stack on which work runs piece by piece, in the thread that resumes it. If work still stands
/// on the stack when the fiber goes, or begins anew, it is forgotten: no destructor there runs.
class Fiber {
 public:
  using Work = void (*)(void* argument);

  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Sets the work that the next resume begins.
  void start(Work work, void* argument);
  /// Runs on until it suspends itself or has ended.
  void resume();
  bool ended() const { return ended_; }

  /// Goes back to the thread that resumed the fiber. Called within a fiber.
  static void suspend();

 private:
  void enter();
  static void begin();
  void leave();

  std::byte* memory_;  // a page that may not be touched, then the stack
  std::byte* stack_;
  Work work_ = nullptr;
  void* argument_ = nullptr;
  bool entered_ = false;
  bool ended_ = true;
  std::jmp_buf own_, resumer_;
  const void* resumer_stack_ = nullptr;  // for the address sanitizer
  std::size_t resumer_stack_size_ = 0;
};

}  // namespace troupe::cuda_stand_in
