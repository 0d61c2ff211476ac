#include "actors/user/doing.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace troupe::runtime {

Doing::Doing(int descriptor) {
  if (descriptor < 0) return;
  fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  void* memory = mmap(nullptr, kDoingBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory != MAP_FAILED) memory_ = static_cast<char*>(memory);
}

Doing::~Doing() {
  if (memory_) munmap(memory_, kDoingBytes);
}

void Doing::begin(const std::string& what) {
  if (!memory_) return;
  const auto length = std::min(what.size(), kDoingBytes - 1);
  std::memcpy(memory_, what.data(), length);
  memory_[length] = '\0';
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void Doing::end() {
  if (memory_) memory_[0] = '\0';
}

}  // namespace troupe::runtime
