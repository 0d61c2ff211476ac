// Too little of what a process needs: memory, descriptors, room on the disk.
#include <sys/resource.h>

#include <filesystem>

#include "tests/client/run_command.h"
#include "tests/process/support/models.h"
#include "tests/process/support/processes.h"
#include "tests/process/support/theatre.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

const std::string kRun =
    "run --quiet --model " + checkpoint("tiny-pixart") + " --prompt cat --steps 2 ";

std::uint64_t address_space(pid_t pid) {
  std::istringstream pages(read_all("/proc/" + std::to_string(pid) + "/statm"));
  std::uint64_t whole = 0;
  pages >> whole;
  return whole * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

/// Soft limit of another process's address space; `more` bytes than it has, or none.
void limit_address_space(pid_t pid, std::optional<std::uint64_t> more) {
  rlimit limit{};
  REQUIRE(prlimit(pid, RLIMIT_AS, nullptr, &limit) == 0);
  limit.rlim_cur = more ? address_space(pid) + *more : limit.rlim_max;
  REQUIRE(prlimit(pid, RLIMIT_AS, &limit, nullptr) == 0);
}

/// A line of the shell in front of a command: it sees a disk of 4 KiB at `folder`.
std::string with_small_disk(const std::string& folder) {
  return "unshare -m sh -c 'mount -t tmpfs -o size=4k tmpfs " + folder + " && exec \"$@\"' sh";
}

void check_one_line(const CommandResult& result) {
  INFO(result.err);
  CHECK(result.exit_code == 1);
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
}

}  // namespace

TEST_CASE(
    "an actor without memory for a job: that job fails by it, the same process does the next") {
  Theatre theatre(actors(1));
  const auto small = tiny_job();
  const auto before = theatre.run(small);
  const auto pid = theatre.pids().at(0);
  limit_address_space(pid, std::uint64_t{48} << 20);
  auto large = small;
  large.request.height = large.request.width = 1024;
  const auto job = theatre.submit(large);
  const auto result = theatre.client().wait(job, 600s);
  REQUIRE_FALSE(result);
  INFO(result.error().what);
  CHECK(result.error().code == "out_of_memory");
  limit_address_space(pid, std::nullopt);
  CHECK(theatre.run(small).latents->data == before.latents->data);
  CHECK(theatre.pids().at(0) == pid);
}

TEST_CASE("few file descriptors: one line that says so, nothing stays behind") {
  const auto result = troupe::testing::troupe(kRun, "ulimit -n 14;");
  check_one_line(result);
  CHECK(has(result.err, "open files"));
  CHECK(shared_memory().empty());
}

TEST_CASE("a disk that is full when the picture is written") {
  const Scratch scratch;
  const auto disk = scratch / "disk";
  std::filesystem::create_directories(disk);
  if (std::system((with_small_disk(disk) + " true 2> /dev/null").c_str()) != 0) {
    MESSAGE("not tried: file systems cannot be mounted here");
    return;
  }
  const auto picture =
      troupe::testing::troupe(kRun + "--output " + disk + "/cat.png", with_small_disk(disk));
  check_one_line(picture);
  CHECK(has(picture.err, "No space left on device"));
  CHECK(has(picture.err, "cat.png"));
  const auto latents =
      troupe::testing::troupe(kRun + "--height 256 --width 256 --output " + scratch / "cat.png" +
                                  " --save-latents " + disk + "/l.safetensors",
                              with_small_disk(disk));
  check_one_line(latents);
  CHECK(has(latents.err, "l.safetensors"));
  CHECK(std::filesystem::exists(scratch / "cat.png"));
}
