#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/process/support/watched_stage.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

namespace troupe::testing {

using nlohmann::json;
using namespace std::chrono_literals;

TEST_CASE("a paused job is looked into, stepped and let go, and its picture stays the same") {
  WatchedStage stage(4);
  const auto undisturbed = stage.cluster.run(demo_job(12));
  const auto job = stage.paused_job(demo_job(12));
  const auto before = json::parse(stage.inspector().graph(job).value());
  CHECK(before["paused"] == true);
  const auto count_done = [&] {
    int done = 0;
    const auto graph = json::parse(stage.inspector().graph(job).value());
    for (const auto& task : graph["tasks"])
      done += task["state"] == "done" ? 1 : 0;
    return done;
  };
  const int done = count_done();
  CHECK(done < static_cast<int>(before["tasks"].size()));
  REQUIRE(stage.inspector().control(job, JobAction::step));
  CHECK(stage.still(job));
  CHECK(count_done() == done + 1);

  auto& inspector = stage.inspector();
  const auto mailbox = inspector.mailbox(0);
  REQUIRE(mailbox);
  CHECK(mailbox.value().handled > 0);
  bool found_keys = false;
  bool found_latents = false;
  for (std::uint32_t actor = 0; actor < 4; ++actor) {
    const auto tensors = inspector.tensors(actor, job);
    REQUIRE(tensors);
    for (const auto& tensor : tensors.value().tensors) {
      CAPTURE(tensor.name);
      CHECK(tensor.not_finite == 0);
      CHECK(tensor.min <= tensor.max);
      found_keys = found_keys || tensor.name.starts_with("keys ");
      found_latents = found_latents || tensor.name == "latents";
    }
  }
  CHECK(found_keys);
  CHECK(found_latents);
  const auto slice = inspector.slice(0, job, "latents",
                                     {{.begin = 0, .end = 0, .whole = false, .single = true},
                                      {},
                                      {.begin = 0, .end = 2, .whole = false}});
  REQUIRE(slice);
  CHECK(slice.value().shape.size() == 3);
  CHECK(slice.value().shape[1] == 2);
  CHECK(inspector.slice(0, job, "nonsense", {}).error().code == ErrorCode::not_found);
  CHECK(
      inspector.slice(0, job, "latents", {{.begin = 99, .end = 0, .whole = false, .single = true}})
          .error()
          .code == ErrorCode::bad_request);
  const auto latents = inspector.latents(job);
  REQUIRE(latents);
  CHECK(latents.value().first_step >= 0);
  CHECK(latents.value().last_step - latents.value().first_step <= 1);
  CHECK(latents.value().latents.shape.size() == 4);
  const auto picture = inspector.picture(job);
  REQUIRE(picture);
  CHECK(picture.value().png.starts_with("\x89PNG"));

  REQUIRE(inspector.control(job, JobAction::resume));
  CHECK(inspector.control(job, JobAction::resume).error().code == ErrorCode::bad_request);
  const auto result = stage.cluster.client().wait(job, 600s);
  REQUIRE(result);
  CHECK(result.value().latents->data == undisturbed.latents->data);
  CHECK(inspector.latents(job).error().code == ErrorCode::bad_request);
  CHECK(inspector.control(99, JobAction::pause).error().code == ErrorCode::not_found);
  CHECK(inspector.tensors(9, job).error().code == ErrorCode::not_found);
}

TEST_CASE("the console does as it is told, and its errors are one line each") {
  WatchedStage stage(2);
  const Scratch scratch;
  const auto good = stage.repl(
      "nodes; actors; groups; jobs; queue; failures; help; help inject; logs; mailbox 0;"
      "submit --prompt \"a red circle\" --steps 3 --pp 2 --model " TROUPE_SOURCE_DIR
      "/examples/demo/model --follow; graph 1; jobs; timeline 1 -o " +
      scratch / "t.json");
  CHECK(good.exit_code == 0);
  CHECK(has(good.out, "job 1 succeeded"));
  CHECK(has(good.out, "no job has failed"));
  CHECK(has(good.out, "step 0 stage 0"));
  CHECK(std::filesystem::exists(scratch / "t.json"));
  for (const char* wrong : {"nonsense",
                            "graph",
                            "graph x",
                            "graph 77",
                            "tensors 0 77",
                            "mailbox 9",
                            "inject frobnicate 0",
                            "inject kill",
                            "inject stop 0",
                            "inject delay 0 x",
                            "inject hold 0 5",
                            "inject hold 0 5 nowhere",
                            "inject hold 0 5 step x",
                            "inject hold 0 5 step 1 patch",
                            "inject hold 0 5 text 3",
                            "inject hold 0 0 text",
                            "inject release 0 5",
                            "slice 0 1 latents [a]",
                            "pause 1",
                            "resume 1",
                            "step 1",
                            "until 1 0",
                            "until 1",
                            "dump 1 x.png",
                            "preview 1 x.safetensors",
                            "submit",
                            "submit --nonsense",
                            "submit --prompt x --steps y",
                            "follow",
                            "follow 77",
                            "cancel 1",
                            "timeline 77",
                            "timeline 1 2",
                            "logs 9",
                            "\"open",
                            "help nonsense"}) {
    CAPTURE(wrong);
    const auto result = stage.repl(std::string(wrong) + "; actors");
    CHECK(result.exit_code == 1);
    CHECK(has(result.err, "troupe: "));
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    // It goes on with the next command, unless the whole line makes no sense.
    CHECK((has(result.out, "DEVICE") || std::string(wrong) == "\"open"));
  }
  const auto piped = [&](const std::string& text) {
    const std::string line = "printf '" + text + "' | " TROUPE_BINARY_DIR "/bin/troupe repl " +
                             stage.endpoint() + " > " + scratch / "o" + " 2> " + scratch / "e";
    const int status = std::system(line.c_str());
    return WEXITSTATUS(status);
  };
  CHECK(piped("jobs # all of them\\nquit\\nnonsense\\n") == 0);
  CHECK(piped("nonsense\\njobs\\n") == 1);
  CHECK(has(read_all(scratch / "o"), "PROMPT"));
  CHECK(piped("") == 0);
  CHECK(troupe("repl ipc:///nowhere/x.sock -c jobs").exit_code == 1);
}

TEST_CASE("a time line of a real job: slices nest, arrows have both ends, all tasks are there") {
  WatchedStage stage(4);
  const auto result = stage.cluster.run(demo_job(4));
  const auto trace = json::parse(stage.inspector().timeline(result.job).value());
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> rows;
  std::map<int, int> ends;
  int micro_steps = 0;
  for (const auto& event : trace["traceEvents"]) {
    const std::string phase = event["ph"];
    if (phase == "X") {
      rows[{event["pid"], event["tid"]}].emplace_back(
          event["ts"], event["ts"].get<double>() + event["dur"].get<double>());
      micro_steps += event["cat"] == "micro_step" ? 1 : 0;
    }
    if (phase == "s" || phase == "f") ends[event["id"]] += phase == "s" ? 1 : 100;
  }
  CHECK(micro_steps == 4 * (1 + 3 * 4));  // cfg 2 × pp 2, a whole step and three of four patches
  CHECK(rows.size() == 5);                // the controller and four actors
  CHECK(ends.size() > 20);
  for (const auto& [id, count] : ends)
    CHECK(count == 101);
  for (auto& [row, slices] : rows) {
    std::sort(slices.begin(), slices.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    });
    std::vector<double> open;
    for (const auto& [begin, end] : slices) {
      while (!open.empty() && open.back() <= begin + 0.01)
        open.pop_back();
      if (!open.empty()) CHECK(end <= open.back() + 0.01);
      open.push_back(end);
    }
  }
}

TEST_CASE("metrics are served while the cluster works") {
  WatchedStage stage(2);
  stage.cluster.run(tiny_job());
  const Scratch scratch;
  const auto port = stage.cluster.cluster().metrics_port();
  REQUIRE(port != 0);
  const std::string line = "exec 3<>/dev/tcp/127.0.0.1/" + std::to_string(port) +
                           "; printf \"GET /metrics HTTP/1.0\\r\\n\\r\\n\" >&3; cat <&3";
  std::string text;
  // The job's end may be known to its client before all is put away.
  CHECK(eventually(kPatience, [&] {
    REQUIRE(std::system(("bash -c '" + line + "' > " + scratch / "m").c_str()) == 0);
    text = read_all(scratch / "m");
    return has(text, "\ntroupe_jobs_ended_total{state=\"succeeded\"} 1\n") &&
           has(text, "\ntroupe_actors{state=\"ready\"} 2\n");
  }));
  CHECK(has(text, "\ntroupe_request_seconds_count 1\n"));
  CHECK(has(text, "\ntroupe_phase_seconds_count{phase=\"denoising\"} 1\n"));
  CHECK(has(text, "\ntroupe_tasks_total{kind=\"decode\"} 1\n"));
  CHECK_FALSE(has(text, "\ntroupe_task_seconds_total{kind=\"micro_step\"} 0\n"));
}

}  // namespace troupe::testing
