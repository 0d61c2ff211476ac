#include "controller/schedule/task_graph.h"

#include <algorithm>

#include "tests/controller/sample_model.h"
#include "tests/support/doctest.h"

using namespace troupe;
using schedule::make_task_graph;
using wire::TaskKind;

namespace {

plan::Plan pipefusion(int steps, int patches, int warmup, wire::Parallelism parallelism,
                      int pictures = 1) {
  wire::ImageRequest request;
  request.prompts = {"x"};
  request.images_per_prompt = pictures;
  request.steps = steps;
  request.method = "pipefusion";
  request.num_pipeline_patch = patches;
  request.warmup_steps = warmup;
  return plan::make_plan(test::sample_model(), request, parallelism);
}

}  // namespace

TEST_CASE("a job is its text, its micro-steps and its decode, predecessors first") {
  const auto graph = make_task_graph(pipefusion(5, 3, 2, {.cfg = 2, .pp = 2}));
  CHECK(graph.tasks.size() == 1 + 2 * 2 + 3 * 3 * 2 + 1);
  for (std::uint32_t id = 0; id < graph.tasks.size(); ++id) {
    for (const auto before : graph.tasks[id].predecessors)
      CHECK(before < id);
  }
  CHECK(graph.tasks.front().kind == TaskKind::encode_text);
  CHECK(graph.tasks.front().ranks == std::vector<std::int32_t>{0, 1, 2, 3});
  CHECK(graph.tasks.back().kind == TaskKind::decode);
  CHECK(graph.tasks.back().ranks == std::vector<std::int32_t>{1});
}

TEST_CASE("a micro-step goes to both branches of its stage and on to their partners") {
  const auto graph = make_task_graph(pipefusion(3, 2, 1, {.cfg = 2, .pp = 2}));
  const auto& first = graph.tasks[1];
  CHECK(first.patch == -1);
  CHECK(first.ranks == std::vector<std::int32_t>{0, 2});
  CHECK(first.receivers == std::vector<std::int32_t>{1, 3});
  CHECK(first.consumer_step == 0);
  const auto& last_stage = graph.tasks[2];
  CHECK(last_stage.ranks == std::vector<std::int32_t>{1, 3});
  CHECK(last_stage.receivers == std::vector<std::int32_t>{0, 2});
  CHECK(last_stage.consumer_step == 1);
  CHECK(last_stage.ends_step);
}

TEST_CASE("nothing is sent round after the last step, nor anywhere when there is one stage") {
  const auto two = make_task_graph(pipefusion(2, 2, 0, {.pp = 2}));
  for (const auto& task : two.tasks) {
    if (task.kind == TaskKind::micro_step && task.step == 1 && task.stage == 1)
      CHECK(task.receivers.empty());
  }
  for (const auto& task : make_task_graph(pipefusion(2, 2, 0, {})).tasks)
    CHECK(task.receivers.empty());
}

TEST_CASE("every step ends once in every replica") {
  const auto graph = make_task_graph(pipefusion(4, 3, 1, {.dp = 2, .pp = 3}, 2));
  std::vector<int> ends(4, 0);
  for (const auto& task : graph.tasks) {
    if (task.ends_step) ++ends[task.step];
  }
  CHECK(ends == std::vector<int>(4, 2));
}

TEST_CASE("tasks are described for people") {
  const auto graph = make_task_graph(pipefusion(2, 2, 1, {}));
  CHECK(describe(graph.tasks[0]) == "text");
  CHECK(describe(graph.tasks[1]) == "step 0 stage 0");
  CHECK(describe(graph.tasks[2]) == "step 1 patch 0 stage 0");
}
