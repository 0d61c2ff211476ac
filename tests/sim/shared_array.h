#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>

/// Values, all zero at first, that processes forked afterwards share.
template <class T>
class SharedArray {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  explicit SharedArray(std::size_t count) : bytes_(count * sizeof(T)) {
    void* room = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) throw std::bad_alloc();
    values_ = static_cast<T*>(room);
    std::uninitialized_value_construct_n(values_, count);
  }
  ~SharedArray() { munmap(values_, bytes_); }
  SharedArray(const SharedArray&) = delete;
  SharedArray& operator=(const SharedArray&) = delete;

  T& operator[](std::size_t index) { return values_[index]; }
  const T& operator[](std::size_t index) const { return values_[index]; }

 private:
  std::size_t bytes_;
  T* values_;
};
