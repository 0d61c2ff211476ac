// Too little of what a process needs: memory, descriptors, room on the disk.
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>

#include "tests/client/run_command.h"
#include "tests/process/support/connect.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/models.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/flood.h"
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

/// Returns the command for a disk that is full from the beginning.
std::string with_full_disk(const std::string& folder) {
  return "unshare -m sh -c 'mount -t tmpfs -o size=4k tmpfs " + folder +
         " && head -c 4096 /dev/zero > " + folder + "/full && exec \"$@\"' sh";
}

bool disks_possible(const std::string& folder) {
  if (std::system((with_small_disk(folder) + " true 2> /dev/null").c_str()) == 0) return true;
  MESSAGE("not tried: file systems cannot be mounted here");
  return false;
}

/// Leaves another process no descriptor that it does not have, or gives it all that it may have.
void limit_descriptors(pid_t pid, bool limited) {
  rlimit limit{};
  REQUIRE(prlimit(pid, RLIMIT_NOFILE, nullptr, &limit) == 0);
  limit.rlim_cur = limit.rlim_max;
  if (limited) {
    const std::string folder = "/proc/" + std::to_string(pid) + "/fd/";
    for (limit.rlim_cur = 0; std::filesystem::exists(
             std::filesystem::symlink_status(folder + std::to_string(limit.rlim_cur)));)
      ++limit.rlim_cur;
  }
  REQUIRE(prlimit(pid, RLIMIT_NOFILE, &limit, nullptr) == 0);
}

void check_one_line(const CommandResult& result) {
  INFO(result.err);
  CHECK(result.exit_code == 1);
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
}

}  // namespace

TEST_CASE(
    "an actor without memory for a job: that job fails by it, the same process does the others") {
  FaultCluster cluster(actors(1));
  const auto small = tiny_job();
  const auto before = cluster.run(small);
  const auto long_before = cluster.run(tiny_job(40));
  const auto pid = cluster.pids().at(0);
  limit_address_space(pid, std::uint64_t{48} << 20);
  auto large = small;
  large.request.height = large.request.width = 1024;
  cluster.hold(0, {.step = 2});
  const auto beside = cluster.submit(tiny_job(40));
  cluster.held(0);
  const auto job = cluster.submit(large);
  REQUIRE(eventually(kPatience, [&] { return cluster.job(job)->state == JobState::running; }));
  cluster.release(0);
  const auto result = cluster.client().wait(job, 600s);
  REQUIRE_FALSE(result);
  INFO(result.error().what);
  CHECK(result.error().code == ErrorCode::out_of_memory);
  // With the size that was asked for.
  const std::string tried = "tried to allocate ";
  REQUIRE(has(result.error().what, tried));
  const auto size = result.error().what.substr(result.error().what.find(tried) + tried.size());
  CHECK(std::stod(size) > 1 << 20);
  CHECK(has(size, " bytes"));
  CHECK(has(size, "(ulimit -v allows "));
  const auto other = cluster.client().wait(beside, 600s);
  REQUIRE(other);
  CHECK(other.value().latents->data == long_before.latents->data);
  limit_address_space(pid, std::nullopt);
  CHECK(cluster.run(small).latents->data == before.latents->data);
  CHECK(cluster.pids().at(0) == pid);
}

TEST_CASE("a file that may not be as long is a failed write, and said") {
  // Of a block of 512 bytes; before, the signal ended the command without a word.
  const auto result = troupe::testing::troupe("--help", "ulimit -f 1;");
  check_one_line(result);
  CHECK(has(result.err, "standard output cannot be written"));
}

TEST_CASE("few file descriptors: one line that says so, nothing stays behind") {
  const auto result = troupe::testing::troupe(kRun, "ulimit -n 14;");
  check_one_line(result);
  CHECK(has(result.err, "open files"));
  CHECK(left_in_memory() == "");
}

TEST_CASE("a disk that is full when the picture is written") {
  const Scratch scratch;
  const auto disk = scratch / "disk";
  std::filesystem::create_directories(disk);
  if (!disks_possible(disk)) return;
  const auto picture =
      troupe::testing::troupe(kRun + "--output " + disk + "/cat.png", with_small_disk(disk));
  check_one_line(picture);
  CHECK(has(picture.err, "No space left on device"));
  CHECK(has(picture.err, "cat.png"));
  const auto latents =
      troupe::testing::troupe(kRun + "--height 240 --width 240 --output " + scratch / "cat.png" +
                                  " --save-latents " + disk + "/l.safetensors",
                              with_small_disk(disk));
  check_one_line(latents);
  CHECK(has(latents.err, "l.safetensors"));
  CHECK(std::filesystem::exists(scratch / "cat.png"));
}

TEST_CASE("a disk that is full costs logs, flight records and time lines, and no more") {
  const Scratch scratch;
  const auto disk = scratch / "disk";
  std::filesystem::create_directories(disk);
  if (!disks_possible(disk)) return;
  const std::string home = "XDG_RUNTIME_DIR=" + scratch.path.string() + " ";
  const auto started = troupe::testing::troupe(
      "start --detach --actors 1 --keep-logs " + disk + " --model " + checkpoint("tiny-pixart"),
      home + with_full_disk(disk));
  INFO(started.err);
  REQUIRE(started.exit_code == 0);
  const auto does = [&](const std::string& words, const std::string& with = "") {
    return troupe::testing::troupe(words, home + with);
  };
  const std::string job = "submit --quiet --prompt cat --steps 2 --output " + (scratch / "cat.png");
  CHECK(does(job).exit_code == 0);
  // A job that fails has a flight record: in the controller's memory alone, then.
  CHECK(does("repl -c 'inject nan 0'").exit_code == 0);
  const auto failed = does(job);
  check_one_line(failed);
  CHECK(has(failed.err, "not finite"));
  const auto failures = does("repl --json -c 'failures; failures 2'");
  CHECK(failures.exit_code == 0);
  CHECK(has(failures.out, "not finite"));
  CHECK_FALSE(has(failures.out, "flight-job"));
  const auto trace = does("timeline 1 -o " + disk + "/trace.json", with_full_disk(disk));
  check_one_line(trace);
  CHECK(has(trace.err, "trace.json: cannot be written: No space left on device"));
  CHECK(does(job).exit_code == 0);
  CHECK(does("stop").exit_code == 0);
  CHECK(std::filesystem::is_empty(disk));  // nothing of it was written elsewhere
}

TEST_CASE("no threads to be had: one line, and nothing is left") {
  const Scratch scratch;
  // A user who may pass every folder on the way here: a clone may lie in a home of mode 700.
  const std::string nobody =
      "setpriv --reuid 4242 --regid 4242 --clear-groups --inh-caps=+dac_override "
      "--ambient-caps=+dac_override ";
  std::filesystem::permissions(scratch.path, std::filesystem::perms::all);
  const bool possible =
      std::system(
          (nobody + TROUPE_BINARY_DIR "/bin/troupe-actor --help > /dev/null 2>&1").c_str()) == 0;
  if (!possible) {
    MESSAGE("not tried: it takes root, and programs that others may run");
    return;
  }
  // The shell that runs it counts, and limits on processes do not bind root.
  for (const char* most : {"3", "5", "6"}) {
    CAPTURE(most);
    const auto result =
        troupe::testing::troupe(kRun + "--output " + scratch / "cat.png",
                                "TMPDIR=" + scratch.path.string() + " XDG_RUNTIME_DIR= " + nobody +
                                    "prlimit --nproc=" + most);
    check_one_line(result);
    CHECK(has(result.err, "threads can be started"));
  }
  CHECK(std::filesystem::is_empty(scratch.path));
}

TEST_CASE("a controller without descriptors refuses what needs them, and goes on") {
  const Scratch scratch;
  const std::string endpoint = "ipc://" + (scratch / "control.sock");
  Command controller({"start", "--actors", "1", "--listen", endpoint}, scratch.path.string());
  REQUIRE(eventually(2 * kPatience, [&] { return has(controller.out(), "ready"); }));
  auto client = take(Client::connect(endpoint, kPatience), "connect");
  const auto run = [&] {
    const auto job = client.submit(tiny_job(1));
    if (!job) return job.error().what;
    const auto result = client.wait(job.value(), 600s);
    return result ? std::string("well") : result.error().what;
  };
  REQUIRE(run() == "well");
  const auto actor = actors_of(controller.pid());
  limit_descriptors(controller.pid(), true);
  const auto refused = run();
  const bool answers = bool(client.status());
  kill(actor.at(0), SIGKILL);
  CHECK(gone(actor));
  limit_descriptors(controller.pid(), false);
  CHECK(has(refused, "cannot be read"));
  CHECK(answers);
  // It came back, once there were some.
  CHECK(eventually(kPatience, [&] {
    const auto status = client.status();
    return status && status.value().actors.at(0).state == ActorState::ready &&
           status.value().actors.at(0).restarts > 0;
  }));
  CHECK(run() == "well");
  controller.signal(SIGTERM);
  CHECK(controller.wait(kPatience) == 0);
}

TEST_CASE("a controller that may have few descriptors outlives a flood of silent connections") {
  for (const rlim_t most : {256, 1024}) {
    CAPTURE(most);
    const Scratch scratch;
    const std::string endpoint = "ipc://" + (scratch / "control.sock");
    Command controller({"start", "--actors", "1", "--listen", endpoint}, scratch.path.string());
    // Hard and soft: it raises its soft limit to its hard one.
    const rlimit few{most, most};
    REQUIRE(prlimit(controller.pid(), RLIMIT_NOFILE, &few, nullptr) == 0);
    REQUIRE(eventually(2 * kPatience, [&] { return has(controller.out(), "ready"); }));
    auto client = take(Client::connect(endpoint, kPatience), "connect");
    const Flood control(endpoint, 1100);
    const Flood blobs(endpoint + ".blobs", 1100, Says::handshake);
    const auto job = take(client.submit(tiny_job(1)), "submit");
    CHECK(client.wait(job, 600s));
    auto fresh = take(Client::connect(endpoint, kPatience), "connect");
    CHECK(fresh.status());
    controller.signal(SIGTERM);
    CHECK(controller.wait(kPatience) == 0);
  }
}

TEST_CASE("who cannot be told what was started is told how to reach it") {
  const Scratch scratch;
  const auto deaf = [&](const std::string& words) {
    return run_command("sh -c '" TROUPE_BINARY_DIR "/bin/troupe " + words + " > /dev/full'",
                       "XDG_RUNTIME_DIR=" + scratch.path.string());
  };
  const auto started = deaf("start --detach --actors 1 --model " + checkpoint("tiny-pixart"));
  check_one_line(started);
  CHECK(started.exit_code == 1);
  CHECK(has(started.err, "standard output cannot be written, but the cluster at ipc://" +
                             scratch.path.string()));
  CHECK(has(started.err, "has started: `troupe stop` ends it"));
  const auto submitted = deaf("submit --detach --prompt cat --steps 2");
  check_one_line(submitted);
  CHECK(has(submitted.err, "but job 1 was accepted: `troupe wait 1` fetches what it makes"));
  for (const std::string words : {"logs", "logs controller --follow", "repl -c actors"}) {
    CAPTURE(words);
    const auto told = deaf(words);
    check_one_line(told);
    CHECK(has(told.err, "standard output cannot be written"));
  }
  CHECK(troupe::testing::troupe("stop", "XDG_RUNTIME_DIR=" + scratch.path.string()).exit_code == 0);
}

TEST_CASE("a limit of addresses is named where it is the cause") {
  // Too few for the command's threads, and for the libraries of an actor.
  for (const auto& [kilobytes, text] : {std::pair("60000", "61.44 MB"), {"200000", "204.8 MB"}}) {
    const auto result = troupe::testing::troupe(kRun, "ulimit -v " + std::string(kilobytes) + ";");
    check_one_line(result);
    CHECK(has(result.err, "ulimit -v allows " + std::string(text) + " of addresses"));
  }
}
