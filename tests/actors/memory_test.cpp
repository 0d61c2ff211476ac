#include "actors/stage/memory.h"

#include <c10/core/Device.h>

#include "tests/support/doctest.h"
#include "tests/support/scratch.h"

using namespace troupe;

namespace {

/// Returns the attributes of an actor on the CPU of a host whose /proc and /sys are there.
std::map<std::string, std::string> told(const troupe::testing::Scratch& host) {
  std::map<std::string, std::string> attributes;
  actors::tell_memory(actors::available_memory_bytes(c10::Device("cpu"), host.path), attributes);
  return attributes;
}

}  // namespace

TEST_CASE("an actor in a full control group says 0 bytes, one that cannot tell says nothing") {
  const troupe::testing::Scratch host;
  CHECK(told(host).empty());
  std::filesystem::create_directories(host.path / "proc/self");
  std::filesystem::create_directories(host.path / "sys/fs/cgroup");
  host.file("proc/meminfo", "MemTotal: 900 kB\nMemAvailable: 500 kB\n");
  CHECK(told(host).at("memory") == "512000");
  host.file("proc/self/mountinfo", "31 22 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  host.file("proc/self/cgroup", "0::/\n");
  host.file("sys/fs/cgroup/memory.max", "4096\n");
  host.file("sys/fs/cgroup/memory.current", "4096\n");
  CHECK(told(host).at("memory") == "0");
}
