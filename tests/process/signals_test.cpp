#include <signal.h>

#include <filesystem>

#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"

using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

namespace fs = std::filesystem;

constexpr auto kLong = 120s;
const std::string kDemo = TROUPE_SOURCE_DIR "/examples/demo/model";

/// A place of its own for sockets, temporary files and pictures, so that what remains is seen.
struct Place {
  Place() {
    for (const char* name : {"run", "tmp", "work", "log"})
      fs::create_directory(scratch.path / name);
    fs::permissions(scratch.path / "run", fs::perms::owner_all);
  }
  std::vector<std::string> environment() const {
    return {"XDG_RUNTIME_DIR=" + scratch / "run", "TMPDIR=" + scratch / "tmp"};
  }
  std::vector<std::string> left_behind() const {
    std::vector<std::string> found;
    for (const char* name : {"run", "tmp", "work"}) {
      for (const auto& entry : fs::recursive_directory_iterator(scratch.path / name)) {
        if (entry.path() != scratch.path / "run/troupe") found.push_back(entry.path().string());
      }
    }
    for (const auto& name : shared_memory())
      found.push_back("/dev/shm/" + name);
    return found;
  }
  Scratch scratch;
};

std::vector<std::string> run_arguments(const Place& place) {
  return {"run",
          "--model",
          kDemo,
          "--prompt",
          "a red circle",
          "--cfg",
          "2",
          "--pp",
          "2",
          "--patches",
          "4",
          "--steps",
          "900",
          "--n",
          "4",
          "--output",
          place.scratch / "work/out.png"};
}

std::vector<std::string> start_arguments() {
  return {"start", "--actors", "2", "--model", kDemo};
}

/// Has the console of the place's cluster do this.
void console(const Place& place, const std::string& words) {
  Command repl({"repl", "-c", words}, place.scratch / "log", place.environment());
  CHECK(repl.wait(kLong) == 0);
}

std::string last_line(std::string text) {
  while (text.ends_with('\n'))
    text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

/// Time at which the signal is sent.
enum class When { spawned, busy };

void wait_until(const Command& command, When when, const std::string& word) {
  REQUIRE(eventually(kLong, [&] { return !actors_of(command.pid()).empty(); }));
  if (when == When::spawned) return;
  REQUIRE(eventually(
      kLong, [&] { return (command.err() + command.out()).find(word) != std::string::npos; }));
}

void check_nothing_left(const Place& place, const std::vector<pid_t>& actors) {
  CHECK(gone(actors));
  const auto left = place.left_behind();
  INFO(left.size() << " left behind: " << (left.empty() ? "" : left.front()));
  CHECK(left.empty());
}

/// Kills the parent of these actors. They are stopped before: only the kernel can end them then, at
/// once, and not what they would notice after some seconds.
void check_gone_with(Command& parent, const std::vector<pid_t>& actors) {
  for (const auto pid : actors)
    kill(pid, SIGSTOP);
  parent.signal(SIGKILL);
  CHECK(gone(actors));
  CHECK(parent.wait(kLong) == 128 + SIGKILL);
}

}  // namespace

TEST_CASE("Ctrl-C and SIGTERM end `troupe run` whenever they come and leave nothing behind") {
  for (const int number : {SIGINT, SIGTERM}) {
    for (const auto when : {When::spawned, When::busy}) {
      const Place place;
      Command run(run_arguments(place), place.scratch / "log", place.environment());
      wait_until(run, when, "denoising step");
      const auto actors = actors_of(run.pid());
      run.signal(number);
      CHECK(run.wait(kLong) == 128 + number);
      check_nothing_left(place, actors);
      const std::string err = run.err();
      INFO(err);
      CHECK(last_line(err).starts_with("troupe: "));
    }
  }
}

TEST_CASE("Ctrl-C and SIGTERM end `troupe start` and leave nothing behind") {
  for (const int number : {SIGINT, SIGTERM}) {
    for (const auto when : {When::spawned, When::busy}) {
      const Place place;
      Command start(start_arguments(), place.scratch / "log", place.environment());
      wait_until(start, when, "ready");
      const auto actors = actors_of(start.pid());
      start.signal(number);
      const int code = start.wait(kLong);
      CHECK((code == 0 || code == 128 + number));
      check_nothing_left(place, actors);
    }
  }
}

TEST_CASE("under nohup a hangup ends nothing") {
  const Place place;
  struct sigaction before {};
  struct sigaction ignored {};
  ignored.sa_handler = SIG_IGN;
  sigaction(SIGHUP, &ignored, &before);
  Command run(run_arguments(place), place.scratch / "log", place.environment());
  sigaction(SIGHUP, &before, nullptr);
  wait_until(run, When::busy, "denoising step");
  run.signal(SIGHUP);
  run.signal(SIGTERM);
  CHECK(run.wait(kLong) == 128 + SIGTERM);
}

TEST_CASE("kill -9 of the controller: its actors are gone, and it can be started again") {
  const Place place;
  {
    Command start(start_arguments(), place.scratch / "log", place.environment());
    wait_until(start, When::busy, "ready");
    console(place, "inject hold 0 3600 step 2");
    Command submit({"submit", "--prompt", "a", "--pp", "2", "--steps", "9", "--n", "4", "--output",
                    place.scratch / "work/out.png"},
                   place.scratch / "log", place.environment());
    REQUIRE(eventually(kLong,
                       [&] { return submit.err().find("denoising step") != std::string::npos; }));
    const auto actors = actors_of(start.pid());
    CHECK(actors.size() == 2);
    check_gone_with(start, actors);
    CHECK(submit.wait(kLong) == 1);
    CHECK(submit.err().find("troupe: ") != std::string::npos);
    CHECK(left_in_memory() == "");
  }
  Command again(start_arguments(), place.scratch / "log", place.environment());
  wait_until(again, When::busy, "ready");
  Command stop({"stop"}, place.scratch / "log", place.environment());
  CHECK(stop.wait(kLong) == 0);
  CHECK(again.wait(kLong) == 0);
  CHECK(place.left_behind().empty());
}

TEST_CASE("kill -9 of `troupe run`: its actors are gone") {
  const Place place;
  Command run(run_arguments(place), place.scratch / "log", place.environment());
  wait_until(run, When::busy, "denoising step");
  const auto actors = actors_of(run.pid());
  CHECK(actors.size() == 4);
  check_gone_with(run, actors);
  CHECK(left_in_memory() == "");
  CHECK(fs::is_empty(place.scratch.path / "work"));
}

TEST_CASE("Ctrl-C of `troupe submit` cancels its job; the cluster goes on") {
  const Place place;
  Command start(start_arguments(), place.scratch / "log", place.environment());
  wait_until(start, When::busy, "ready");
  for (const int number : {SIGINT, SIGTERM}) {
    console(place, "inject hold 0 3600 step 2; inject hold 1 3600 step 2");  // whichever it gets
    Command submit({"submit", "--prompt", "a", "--steps", "9", "--n", "4", "--output",
                    place.scratch / "work/out.png"},
                   place.scratch / "log", place.environment());
    REQUIRE(eventually(kLong,
                       [&] { return submit.err().find("denoising step") != std::string::npos; }));
    submit.signal(number);
    CHECK(submit.wait(kLong) == 128 + number);
  }
  // A command that was interrupted does not wait for the end of its job as long as it may take.
  CHECK(eventually(kLong, [&] {
    Command jobs({"jobs"}, place.scratch / "log", place.environment());
    REQUIRE(jobs.wait(kLong) == 0);
    return jobs.out().find("cancelled") != std::string::npos &&
           jobs.out().find("running") == std::string::npos;
  }));
  console(place, "inject release 0; inject release 1");
  Command small(
      {"submit", "--prompt", "a", "--steps", "2", "--output", place.scratch / "work/out.png"},
      place.scratch / "log", place.environment());
  CHECK(small.wait(kLong) == 0);
  CHECK(fs::exists(place.scratch / "work/out.png"));
}
