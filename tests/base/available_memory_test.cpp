#include "base/available_memory.h"

#include <optional>
#include <string>

#include "tests/support/doctest.h"
#include "tests/support/scratch.h"

using namespace troupe;
namespace fs = std::filesystem;

namespace {

/// A host with that much to give: "" = its kernel does not say.
struct Host {
  testing::Scratch root;

  explicit Host(const std::string& available) {
    fs::create_directories(root.path / "proc/self");
    root.file("proc/meminfo", "MemTotal:        900 kB\nMemFree:          10 kB\n" + available +
                                  "HugePages_Total:   0\nHugepagesize:   2048 kB\n");
  }
  /// Puts all processes of the host into one control group with that limit.
  void limit(const std::string& bytes) const {
    root.file("proc/self/mountinfo",
              "31 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n");
    root.file("proc/self/cgroup", "0::/\n");
    fs::create_directories(root.path / "sys/fs/cgroup");
    root.file("sys/fs/cgroup/memory.max", bytes + "\n");
    root.file("sys/fs/cgroup/memory.current", "1024\n");
  }
  std::optional<std::uint64_t> available() const { return available_memory(root.path); }
};

}  // namespace

TEST_CASE("what the kernel expects to be able to give, within the control group's limit") {
  const Host host("MemAvailable:    500 kB\nBuffers:          7 kB\n");
  CHECK(host.available() == 500 * 1024);
  host.limit("max");
  CHECK(host.available() == 500 * 1024);
  host.limit("103424");
  CHECK(host.available() == 100 * 1024);
  host.limit("900000000");
  CHECK(host.available() == 500 * 1024);
}

TEST_CASE("nothing left is a number: of a full control group, and of a host that has nothing") {
  const Host host("MemAvailable:    500 kB\n");
  host.limit("1024");
  CHECK(host.available() == 0);
  host.limit("512");
  CHECK(host.available() == 0);
  CHECK(Host("MemAvailable:      0 kB\n").available() == 0);
}

TEST_CASE("where the kernel does not say, nothing is guessed, but a control group's limit stays") {
  const Host silent("");
  CHECK(silent.available() == std::nullopt);
  silent.limit("max");
  CHECK(silent.available() == std::nullopt);
  silent.limit("103424");
  CHECK(silent.available() == 100 * 1024);
  silent.limit("1024");
  CHECK(silent.available() == 0);
  const testing::Scratch empty;
  CHECK(available_memory(empty.path) == std::nullopt);
}
