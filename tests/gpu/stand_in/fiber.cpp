// glibc's hardened longjmp refuses to go from one stack to another.
#undef _FORTIFY_SOURCE
#include "tests/gpu/stand_in/fiber.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <new>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace troupe::cuda_stand_in {
namespace {

constexpr std::size_t kStackSize = 64 * 1024;

Fiber* current = nullptr;

// The address sanitizer is told of each change of stacks; `kept` is its own note of the one left.
void leaving(void** kept, const void* stack, std::size_t size) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(kept, stack, size);
#else
  (void)kept, (void)stack, (void)size;
#endif
}

void arrived(void* kept, const void** from, std::size_t* size) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(kept, from, size);
#else
  (void)kept, (void)from, (void)size;
#endif
}

std::size_t page() {
  return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

Fiber::Fiber() {
  void* memory = mmap(nullptr, page() + kStackSize, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<std::byte*>(memory);
  stack_ = memory_ + page();
  mprotect(memory_, page(), PROT_NONE);
}

Fiber::~Fiber() {
  munmap(memory_, page() + kStackSize);
}

void Fiber::start(Work work, void* argument) {
  work_ = work;
  argument_ = argument;
  if (!ended_) entered_ = false;
  ended_ = false;
}

void Fiber::resume() {
  current = this;
  void* kept = nullptr;
  leaving(&kept, stack_, kStackSize);
  if (_setjmp(resumer_) == 0) {
    if (entered_) _longjmp(own_, 1);
    enter();
  }
  arrived(kept, nullptr, nullptr);
  current = nullptr;
}

/// The way into a new stack. It also sets the signal mask, by a system call; jumps do without.
void Fiber::enter() {
  entered_ = true;
  // Not on the stack that it leaves for ever, as the address sanitizer sees it.
  static ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = stack_;
  context.uc_stack.ss_size = kStackSize;
  context.uc_link = nullptr;
  makecontext(&context, begin, 0);
  setcontext(&context);
}

void Fiber::begin() {
  arrived(nullptr, &current->resumer_stack_, &current->resumer_stack_size_);
  for (;;) {
    current->work_(current->argument_);
    current->ended_ = true;
    suspend();
  }
}

void Fiber::leave() {
  void* kept = nullptr;
  leaving(&kept, resumer_stack_, resumer_stack_size_);
  if (_setjmp(own_) == 0) _longjmp(resumer_, 1);
  arrived(kept, &resumer_stack_, &resumer_stack_size_);
}

void Fiber::suspend() {
  current->leave();
}

}  // namespace troupe::cuda_stand_in
