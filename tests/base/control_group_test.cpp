#include "base/available_memory.h"

#include "tests/support/doctest.h"
#include "tests/support/scratch.h"

using namespace troupe;
namespace fs = std::filesystem;

namespace {

/// System that a process sees below /: its groups, where their files are, and what is in those.
struct System {
  testing::Scratch root;

  System(const std::string& mounts, const std::string& groups) {
    write("proc/self/mountinfo", mounts);
    write("proc/self/cgroup", groups);
  }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((root.path / name).parent_path());
    root.file(name, text);
  }
  void second(const std::string& group, const std::string& most, const std::string& used,
              const std::string& files = "0") const {
    const auto folder = "sys/fs/cgroup" + group + "/memory.";
    write(folder + "max", most + "\n");
    write(folder + "current", used + "\n");
    write(folder + "stat",
          "anon 5\nfile 77\nactive_file " + files + "\ninactive_file 10\nslab 9\n");
  }
  void first(const std::string& group, const std::string& most, const std::string& used) const {
    const auto folder = "sys/fs/cgroup/memory" + group + "/memory.";
    write(folder + "limit_in_bytes", most + "\n");
    write(folder + "usage_in_bytes", used + "\n");
    // Its own lines are without what lies below it.
    write(folder + "stat",
          "cache 1\nactive_file 1\ninactive_file 1\ntotal_active_file 200\n"
          "total_inactive_file 100\n");
  }
  std::optional<std::uint64_t> left() const { return left_in_control_groups(root.path); }
};

const std::string kUnified =
    "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
    "31 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
const std::string kHybrid =
    "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

}  // namespace

TEST_CASE("what files keep in memory counts as free") {
  const System system(kUnified, "0::/\n");
  system.second("", "1000", "900", "700");
  CHECK(system.left() == 1000 - (900 - 710));
  system.second("", "1000", "1200");
  CHECK(system.left() == 0);
  system.second("", "max", "900");
  CHECK(system.left() == std::nullopt);
}

TEST_CASE("of nested groups the tightest counts, also one above that has a limit") {
  const System system(kUnified, "0::/system.slice/job_7/step_0\n");
  system.second("/system.slice", "max", "5000");
  system.second("/system.slice/job_7", "1000", "410");
  system.second("/system.slice/job_7/step_0", "900", "110");
  CHECK(system.left() == 600);
  system.second("/system.slice/job_7/step_0", "500", "110");
  CHECK(system.left() == 400);
  system.second("/other", "20", "10");
  CHECK(system.left() == 400);
}

TEST_CASE("groups of version 1, too, beside an empty hierarchy of version 2") {
  const System system(kHybrid, "5:cpu:/a\n4:memory:/slurm/job_7\n0::/\n");
  system.first("", "9223372036854771712", "700");
  CHECK(system.left() == 9223372036854771712ull - 400);
  system.first("/slurm/job_7", "1000", "600");
  CHECK(system.left() == 700);
  system.first("/a", "10", "0");
  CHECK(system.left() == 700);
}

TEST_CASE("where a container sees only its own part, the mount is its group") {
  const auto mounted_at = [](const std::string& from) {
    return "35 31 0:32 " + from + " /sys/fs/cgroup/memory ro master:2 - cgroup cgroup rw,memory\n";
  };
  for (const auto& [from, group] : {std::pair<std::string, std::string>{"/docker/12", "/docker/12"},
                                    {"/docker/12", "/"},
                                    {"/../..", "/"},
                                    {"/", "/../../elsewhere"}}) {
    CAPTURE(from);
    const System system(mounted_at(from), "4:memory:" + group + "\n");
    system.first("", "1000", "800");
    CHECK(system.left() == 500);
  }
}

TEST_CASE("no control groups, or none that counts memory: no limit") {
  CHECK(System("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n", "").left() == std::nullopt);
  CHECK(System(kHybrid, "4:memory:/slurm\n").left() == std::nullopt);
  testing::Scratch empty;
  CHECK(left_in_control_groups(empty.path) == std::nullopt);
}
