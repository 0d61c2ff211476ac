// The console as a person uses it: in a terminal, and command by command on a real cluster.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/process/support/connect.h"
#include "tests/process/support/terminal.h"
#include "tests/process/support/watched_stage.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

const std::vector<std::string> kExamples{TROUPE_BINARY_DIR "/lib/libtroupe_example_actors.so"};

CommandResult example(const std::string& words) {
  const Scratch scratch;
  const std::string line = TROUPE_BINARY_DIR "/bin/troupe_example_" + words + " > " +
                           scratch / "out" + " 2> " + scratch / "err";
  const int status = std::system(line.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_all(scratch / "out"),
          read_all(scratch / "err")};
}

CommandResult verb(WatchedStage& stage, const std::string& words) {
  return troupe::testing::troupe(words + " --connect " + stage.endpoint());
}

}  // namespace

TEST_CASE("the examples of users' actors, and the console's commands for them") {
  WatchedStage stage(1, "", kExamples);
  const auto counted = example("counter " + stage.endpoint());
  INFO(counted.err);
  CHECK(counted.exit_code == 0);
  CHECK(counted.out == "1\n2\n3\n");
  // 512 × 512 ones, doubled by each of three members: 2097152.
  const auto ring = example("ring " + stage.endpoint() + " 3");
  INFO(ring.err);
  CHECK(ring.exit_code == 0);
  CHECK(ring.out == "sum 2.09715e+06\n");

  const auto seen = stage.repl("classes; user-actors; call visits add 39; call visits value");
  INFO(seen.err);
  CHECK(seen.exit_code == 0);
  for (const char* word : {"Counter", "RingMember", "sum_of_other", "int64", "visits", "running"})
    CHECK(has(seen.out, word));
  CHECK(seen.out.ends_with("42\n42\n"));
  const auto wrong = stage.repl("call visits nonsense; call nobody value");
  CHECK(wrong.exit_code == 1);
  CHECK(std::count(wrong.err.begin(), wrong.err.end(), '\n') == 2);

  // And somebody at a terminal: Tab, the lines of before, Ctrl-C, Ctrl-D.
  const Scratch home;
  const std::vector<std::string> environment{"TERM=xterm", "XDG_STATE_HOME=" + home.path.string()};
  constexpr const char* kPrompt = "troupe> ";
  {
    Terminal terminal({"repl", stage.endpoint()}, environment);
    REQUIRE(terminal.shows(kPrompt));
    terminal.type("user-a\t\n");
    CHECK(terminal.shows("LAST CAUSE"));
    REQUIRE(terminal.shows(kPrompt));
    // Two methods begin with nothing; those of RingMember are not among them.
    terminal.type("call vis\t\t");
    CHECK(terminal.shows("add"));
    CHECK(terminal.shows("value"));
    CHECK_FALSE(has(terminal.screen(), "sum_of_other"));
    terminal.type("v\t\n");
    CHECK(terminal.shows("\n42\n"));
    REQUIRE(terminal.shows(kPrompt));
    // The line before, changed.
    terminal.type("\x1b[A" + std::string(5, '\x7f') + "add 8\n");
    CHECK(terminal.shows("\n50\n"));
    REQUIRE(terminal.shows(kPrompt));
    terminal.type("nonsense\x03");
    CHECK(terminal.shows("^C"));
    REQUIRE(terminal.shows(kPrompt));
    terminal.type("nonsense\n");
    CHECK(terminal.shows(" unknown command nonsense"));
    REQUIRE(terminal.shows(kPrompt));
    terminal.type("\x04");
    CHECK(terminal.wait() == 0);
    INFO(terminal.screen());
    CHECK(has(read_all(home.path / "troupe/repl_history"), "call\\040visits\\040"));
  }
  // The lines of another day: two up from "nonsense" is the addition.
  Terminal terminal({"repl", stage.endpoint()}, environment);
  REQUIRE(terminal.shows(kPrompt));
  terminal.type("\x1b[A\x1b[A\n");
  CHECK(terminal.shows("\n58\n"));
  terminal.type("quit\n");
  CHECK(terminal.wait() == 0);
  INFO(terminal.screen());
}

TEST_CASE("a job under the console's hands: tensors, slice, dump, preview, step, resume, faults") {
  WatchedStage stage(2);
  const Scratch scratch;
  auto submission = demo_job(40);
  submission.parallelism = {.dp = 1, .cfg = 1, .pp = 2};
  const auto job = std::to_string(stage.paused_job(submission));
  const std::string dump = scratch / "now.safetensors", picture = scratch / "now.png";
  const auto seen = stage.repl("tensors 0 " + job + "; slice 0 " + job +
                               " latents [0,0,:2,:2]; dump " + job + " " + dump + "; preview " +
                               job + " " + picture + "; step " + job + "; graph " + job);
  INFO(seen.out << seen.err);
  CHECK(seen.exit_code == 0);
  for (const char* word : {"NOT FINITE", "latents", "float32 [2, 2]\n[[", "paused",
                           "now.safetensors: latents of job", "now.png: job"})
    CHECK(has(seen.out, word));
  for (const char* word : {"\"latents\"", "\"F32\"", "[1,4,"})
    CHECK(has(read_all(dump), word));
  CHECK(read_all(picture).starts_with("\x89PNG"));
  CHECK(has(stage.repl("pause " + job).err, "is paused already"));

  // On to the end of a step: all rows are of it, whatever came after which.
  const auto on = stage.repl("until " + job + " 34; dump " + job + " " + dump);
  INFO(on.out << on.err);
  CHECK(on.exit_code == 0);
  CHECK(has(on.out, "job " + job + " is paused at the end of step 34\n"));
  CHECK(has(on.out, "latents of job " + job + " after step 34\n"));
  CHECK(has(stage.repl("until " + job + " 33").err, "has begun with step 34 already"));
  CHECK(has(stage.repl("until " + job + " 40").err, "has steps 0 to 39"));
  CHECK(has(stage.repl("until " + job + " x").err, "the number of a step"));
  const auto held = stage.repl("inject hold 0 600 step 35; until " + job + " 35 0.1");
  CHECK(has(held.out, "actor 0 is held when it comes to step 35, for 600 s at most\n"));
  CHECK(has(held.err, "has not come to the end of step 35 yet; it goes on to there"));
  CHECK(has(stage.cluster.held(0).doing, "step 35 "));
  CHECK(has(stage.repl("actors").out, "(held)"));
  CHECK(stage.repl("inject release 0").out == "actor 0 goes on\n");

  const auto resumed = stage.repl("inject delay 0 0.1; inject stop 1 0.2; resume " + job +
                                  "; follow " + job + "; inject kill 1");
  INFO(resumed.out << resumed.err);
  CHECK(resumed.exit_code == 0);
  CHECK(has(resumed.out, "job " + job + " succeeded"));
  CHECK(has(stage.repl("until " + job + " 39").err, "has already succeeded"));
  CHECK(eventually(kPatience, [&] { return stage.cluster.restarts() == 1; }));
  CHECK(stage.cluster.whole());

  // The verbs, on the same cluster.
  const auto lines = verb(stage, "logs 1");
  CHECK(lines.exit_code == 0);
  CHECK(has(lines.out, "-- the process ended: "));
  CHECK(has(lines.out, "signal 9"));
  CHECK(verb(stage, "logs").exit_code == 0);
  CHECK(verb(stage, "logs 7").exit_code == 1);
  const std::string trace = scratch / "trace.json";
  const auto drawn = verb(stage, "timeline " + job + " -o " + trace);
  CHECK(drawn.exit_code == 0);
  CHECK(drawn.out == trace + "\n");
  CHECK(nlohmann::json::parse(read_all(trace))["traceEvents"].size() > 40);
  CHECK(nlohmann::json::parse(verb(stage, "timeline all -o -").out).contains("traceEvents"));
  CHECK(verb(stage, "timeline 77").exit_code == 1);

  // What comes later is followed, until Ctrl-C.
  Command follower({"logs", "0", "-f", "--connect", stage.endpoint()}, scratch.path.string());
  CHECK(eventually(kPatience, [&] { return has(follower.out(), " began"); }));
  CHECK_FALSE(has(follower.out(), "-- the process ended: "));
  CHECK(stage.repl("inject kill 0").exit_code == 0);
  CHECK(eventually(kPatience, [&] { return has(follower.out(), "-- the process ended: "); }));
  follower.signal(SIGINT);
  CHECK(follower.wait(kPatience) == 0);
}
