// LibTorch's CUDA half is opened before anything asks about CUDA. Libraries of a few lines stand
// for the driver and for that half.
#include <string>

#include "tests/client/run_command.h"
#include "tests/support/doctest.h"

namespace {

troupe::testing::CommandResult with_stand_ins(const std::string& program) {
  return troupe::testing::run_command(TROUPE_BINARY_DIR "/late_device/" + program,
                                      "LD_LIBRARY_PATH=" TROUPE_BINARY_DIR "/late_device");
}

}  // namespace

TEST_CASE("a device that is opened first is there, one that comes after a seed says so") {
  const auto first = with_stand_ins("late_device");
  CHECK(first.out == "opened\n");
  CHECK(first.exit_code == 0);
  const auto late = with_stand_ins("late_device late");
  CHECK(late.exit_code == 1);
  CHECK(late.out.starts_with(
      "[actor] device cuda:0 came too late: LibTorch was asked for CUDA before "));
  CHECK(late.out.find('\n') + 1 == late.out.size());
}

TEST_CASE(
    "a program of GPU tests has opened its device before the first case, which may set a seed") {
  const auto seeds_first = with_stand_ins("late_device_gpu_test late");
  CHECK(seeds_first.out == "opened\n");
  CHECK(seeds_first.exit_code == 0);
}
