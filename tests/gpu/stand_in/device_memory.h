#pragma once

#include <cstddef>
#include <vector>

/// Memory that stands for a GPU's: each buffer ends before a page that may not be touched, so that
/// an access behind it ends the process with SIGSEGV, and holds 0xff at first, a NaN in every type.
namespace troupe::cuda_stand_in {

/// Allocates a buffer aligned to 16 bytes, as packed loads want it.
void* allocate(std::size_t bytes);
/// Ends the process, saying so, if bytes before the buffer or behind it were written.
void release(void* data);
/// Returns whether `data` points into a buffer that lives, or right behind it.
bool is_device_memory(const void* data);

/// The bytes of all buffers that live.
class Snapshot {
 public:
  Snapshot();
  /// Puts the bytes back.
  void restore() const;
  bool operator==(const Snapshot&) const = default;

 private:
  struct Copy {
    std::byte* data;
    std::vector<std::byte> bytes;
    bool operator==(const Copy&) const = default;
  };
  std::vector<Copy> copies_;
};

}  // namespace troupe::cuda_stand_in
