#include "tests/gpu/stand_in/device_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>

namespace troupe::cuda_stand_in {
namespace {

constexpr std::size_t kAlignment = 16;
constexpr std::byte kFill{0xff};

struct Buffer {
  std::byte* mapping;  // page, bytes of the buffer and kFill around them, page
  std::size_t inner;   // without the two pages
  std::size_t size;
};

std::map<std::byte*, Buffer>& buffers() {
  static std::map<std::byte*, Buffer> all;
  return all;
}

std::size_t page() {
  return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

void check_untouched(const std::byte* begin, const std::byte* end, const char* where,
                     std::size_t size) {
  if (std::all_of(begin, end, [](std::byte byte) { return byte == kFill; })) return;
  std::fprintf(stderr, "[cuda stand-in] bytes right %s a buffer of %zu bytes were written\n", where,
               size);
  std::abort();
}

}  // namespace

void* allocate(std::size_t bytes) {
  const std::size_t aligned = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const std::size_t inner = (aligned + page() - 1) / page() * page();
  void* mapped =
      mmap(nullptr, inner + 2 * page(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* mapping = static_cast<std::byte*>(mapped);
  std::byte* first = mapping + page();
  std::memset(first, static_cast<int>(kFill), inner);
  mprotect(mapping, page(), PROT_NONE);
  mprotect(first + inner, page(), PROT_NONE);
  std::byte* data = first + inner - aligned;
  buffers()[data] = {mapping, inner, bytes};
  return data;
}

void release(void* data) {
  const auto found = buffers().find(static_cast<std::byte*>(data));
  const auto [begin, buffer] = *found;
  const std::byte* first = buffer.mapping + page();
  check_untouched(first, begin, "before", buffer.size);
  check_untouched(begin + buffer.size, first + buffer.inner, "behind", buffer.size);
  munmap(buffer.mapping, buffer.inner + 2 * page());
  buffers().erase(found);
}

bool is_device_memory(const void* data) {
  const auto* byte = static_cast<const std::byte*>(data);
  return std::any_of(buffers().begin(), buffers().end(), [&](const auto& entry) {
    return byte >= entry.first && byte <= entry.first + entry.second.size;
  });
}

Snapshot::Snapshot() {
  for (const auto& [data, buffer] : buffers())
    copies_.push_back({data, {data, data + buffer.size}});
}

void Snapshot::restore() const {
  for (const Copy& copy : copies_)
    std::memcpy(copy.data, copy.bytes.data(), copy.bytes.size());
}

}  // namespace troupe::cuda_stand_in
