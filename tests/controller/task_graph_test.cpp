#include "controller/schedule/task_graph.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include "controller/plan/planner.h"
#include "controller/schedule/dispatcher.h"
#include "tests/controller/planning.h"
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
  request.method = Method::pipefusion;
  request.num_pipeline_patch = patches;
  request.warmup_steps = warmup;
  return plan::make_plan(test::sample_model(), request, parallelism);
}

}  // namespace

TEST_CASE("a job is its text, its micro-steps and its decode, predecessors first") {
  const auto graph = make_task_graph(pipefusion(5, 3, 2, {.cfg = 2, .pp = 2}));
  CHECK(graph.tasks.size() == 1 + 2 * 2 + 3 * 3 * 2 + 1);  // cfg 2: a batch of one, so one part
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

TEST_CASE("what blocks leave for a later stage is received there when its producer goes out") {
  wire::ImageRequest request;
  request.prompts = {"x"};
  request.steps = 2;
  const auto plan =
      plan::make_plan(test::skipping_model(), request, {.cfg = 2, .pp = 4, .stages = {2, 2, 2, 2}});
  // Blocks 0 and 1 leave for 7 and 6, block 2 for 5.
  const auto graph = make_task_graph(plan);
  std::map<int, std::set<std::vector<std::int32_t>>> receivers;
  for (const auto& task : graph.tasks) {
    if (task.kind == TaskKind::micro_step && task.step == 0)
      receivers[task.stage].insert(task.receivers);
  }
  using Ranks = std::set<std::vector<std::int32_t>>;
  CHECK(receivers[0] == Ranks{{1, 5, 3, 7}});
  CHECK(receivers[1] == Ranks{{2, 6}});
  CHECK(receivers[2] == Ranks{{3, 7}});
  schedule::Dispatcher dispatcher(6);
  dispatcher.add_job(1, graph, {10, 11, 12, 13, 14, 15, 16, 17});
  int skipped = 0;
  for (const auto& issue : dispatcher.issue()) {
    const auto& command = issue.command;
    const auto& task = graph.tasks.at(command.task);
    CHECK(command.stage == task.stage);
    skipped += command.receive && command.stage == 0 && (issue.actor == 13 || issue.actor == 17);
  }
  CHECK(skipped >= 2);
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

TEST_CASE("a micro-step goes to all ranks of its stage, and on to those of the next") {
  const auto graph =
      make_task_graph(pipefusion(3, 2, 1, {.cfg = 2, .pp = 2, .ulysses = 2, .ring = 2, .tp = 2}));
  const std::vector<std::int32_t> first{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23};
  std::vector<std::int32_t> second;
  for (const auto rank : first)
    second.push_back(rank + 8);
  for (const auto& task : graph.tasks) {
    if (task.kind != TaskKind::micro_step) continue;
    CHECK(task.ranks == (task.stage == 0 ? first : second));
    if (!task.receivers.empty()) CHECK(task.receivers == (task.stage == 0 ? second : first));
    CHECK(task.receivers.empty() == (task.stage == 1 && task.step == 2));
  }
}

TEST_CASE("distrifusion goes wave by wave") {
  auto request = test::square_request(Method::distrifusion, 5, 1);
  request.steps = 3;
  const auto tasks = [&](wire::Parallelism parallelism) {
    return make_task_graph(plan::make_plan(test::sample_model(), request, parallelism)).tasks;
  };
  CHECK(tasks({.ring = 2}).size() == 1 + 1 + 2 * 3 + 1);
  CHECK(tasks({.ring = 3}).size() == 1 + 1 + 2 * 2 + 1);
  CHECK(tasks({.ring = 8}).size() == 1 + 1 + 2 * 1 + 1);
  CHECK(tasks({.ulysses = 2}).size() == 1 + 1 + 2 * 5 + 1);
  const auto waves = tasks({.ring = 2});
  CHECK(waves[4].patch == 2);
  CHECK(waves[4].ends_step);
  CHECK(waves[5].step == 2);
}

TEST_CASE("what many pictures take long for is cut into parts of about a second at most") {
  wire::ImageRequest request = test::square_request();
  request.steps = 2;
  request.images_per_prompt = 160;
  plan::Machine machine;
  const auto sizes = [&](double flops, const wire::Parallelism& degrees = {}) {
    machine.device.float_flops = flops;
    const auto plan = plan::make_plan(test::sample_model(), request, degrees, machine);
    const auto largest = [](const auto& parts) {
      int most = 0, end = 0;
      for (const auto& part : parts) {
        CHECK(part.begin == end);
        end = part.end;
        most = std::max(most, part.end - part.begin);
      }
      return std::pair(end, most);
    };
    const auto [items, in_part] = largest(plan.batch_parts[0]);
    const auto [pictures, decoded] = largest(plan.decode_parts[0]);
    CHECK(items == (degrees.cfg == 2 ? 160 : 320));
    CHECK(pictures == 160);
    return std::pair(in_part, decoded);
  };
  // Where the machine is not known, or quick, nothing is cut.
  CHECK(sizes(0) == std::pair(320, 160));
  CHECK(sizes(1e18) == std::pair(320, 160));
  // So slow that one item takes more than a second: its branches stay together.
  CHECK(sizes(1e3) == std::pair(2, 1));
  int before = 320;
  for (double flops = 1e13; flops > 1e3; flops /= 3) {
    const auto [items, decoded] = sizes(flops);
    CHECK(items <= before);
    CHECK(items >= 2);
    CHECK(decoded >= 1);
    before = items;
  }
  // A little quicker or slower is the same.
  CHECK(sizes(1.01e10) == sizes(1e10));
  // A stage of some blocks takes more items at once than all of them.
  CHECK(sizes(3e10, {.pp = 4}).first > sizes(3e10).first);

  machine.device.float_flops = 1e3;
  const auto plan = plan::make_plan(test::sample_model(), request, {.pp = 2, .vae = 2}, machine);
  const auto graph = make_task_graph(plan);
  std::vector<const schedule::Task*> decodes;
  for (const auto& task : graph.tasks) {
    if (task.kind != TaskKind::decode) continue;
    CHECK(task.part == static_cast<int>(decodes.size()));
    decodes.push_back(&task);
  }
  REQUIRE(decodes.size() == 160);
  CHECK(graph.tasks.size() == 1 + 2 * 160 * 2 + 160);
  CHECK(decodes[0]->predecessors.size() == 1);
  for (std::size_t part = 1; part < decodes.size(); ++part)
    CHECK(&graph.tasks[decodes[part]->predecessors.at(0)] == decodes[part - 1]);
  CHECK(schedule::describe(*decodes[3]) == "decode part 3");
}

TEST_CASE("a whole picture goes part by part of its batch, and comes back once") {
  wire::ImageRequest request = test::square_request();
  request.steps = 2;
  request.images_per_prompt = 3;
  const auto plan = plan::make_plan(test::sample_model(), request, {.pp = 2});
  REQUIRE(plan.batch_parts ==
          std::vector<std::vector<wire::RowRange>>{{{0, 2}, {2, 4}, {4, 5}, {5, 6}}});
  const auto graph = make_task_graph(plan);
  CHECK(graph.tasks.size() == 1 + 2 * 4 * 2 + 1);
  int back = 0;
  for (const auto& task : graph.tasks) {
    if (task.kind != TaskKind::micro_step) continue;
    CHECK(task.patch == -1);
    const bool last = task.stage == 1 && task.part == 3;
    CHECK(task.ends_step == last);
    if (task.stage == 0) {
      CHECK(task.receivers == std::vector<std::int32_t>{1});
      CHECK(task.consumer_part == task.part);
      CHECK(task.consumer_step == task.step);
    } else {
      CHECK(task.receivers.empty() == !(last && task.step == 0));
      back += !task.receivers.empty();
      if (last) CHECK(task.consumer_part == 0);
    }
    // A part of the next step waits for the last part of this one.
    if (task.stage == 0 && task.step == 1) {
      bool waits = false;
      for (const auto before : task.predecessors)
        waits |= graph.tasks[before].ends_step && graph.tasks[before].step == 0;
      CHECK(waits);
    }
  }
  CHECK(back == 1);
  CHECK(describe(graph.tasks[3]) == "step 0 part 1 stage 0");
}

TEST_CASE("decoders and holders of latents decode together") {
  auto request = test::square_request();
  request.images_per_prompt = 2;
  const auto last = [&](wire::Parallelism parallelism, int dp) {
    const auto tasks =
        make_task_graph(plan::make_plan(test::sample_model(), request, parallelism)).tasks;
    std::vector<schedule::Task> decodes;
    for (const auto& task : tasks) {
      if (task.kind == TaskKind::decode) decodes.push_back(task);
    }
    return decodes.at(dp).ranks;
  };
  using Ranks = std::vector<std::int32_t>;
  CHECK(last({.cfg = 2, .pp = 2, .ring = 2}, 0) == Ranks{2, 3});
  CHECK(last({.pp = 2, .tp = 2, .vae = 2}, 0) == Ranks{2, 3});
  CHECK(last({.cfg = 2, .pp = 2, .ring = 2, .vae = 3}, 0) == Ranks{2, 3, 7});
  CHECK(last({.ulysses = 3, .vae = 2}, 0) == Ranks{0, 1, 2});
  CHECK(last({.dp = 2, .pp = 2}, 1) == Ranks{3});
}

TEST_CASE("a job that begins later has its text, the steps that are left, and its decode") {
  auto plan = pipefusion(6, 3, 1, {.pp = 2});
  plan.request.refill_steps = {4};
  for (int first = 0; first <= 6; ++first) {
    const auto graph = make_task_graph(plan, first);
    CHECK(graph.steps == 6);
    CHECK(graph.tasks.front().kind == TaskKind::encode_text);
    CHECK(graph.tasks.back().kind == TaskKind::decode);
    std::set<int> steps;
    for (std::uint32_t id = 0; id < graph.tasks.size(); ++id) {
      const auto& task = graph.tasks[id];
      if (id > 0) CHECK(!task.predecessors.empty());
      for (const auto before : task.predecessors)
        CHECK(before < id);
      if (task.kind != TaskKind::micro_step) continue;
      steps.insert(task.step);
      CHECK((task.patch == -1) == (task.step == 0 || task.step == 4));
      if (task.step == first && task.stage == 0) CHECK(task.predecessors.front() == 0);
    }
    CHECK(static_cast<int>(steps.size()) == 6 - first);
    if (first < 6) CHECK(*steps.begin() == first);
  }
  CHECK(make_task_graph(plan, 6).tasks.size() == 2);
  CHECK(make_task_graph(plan, 6).tasks.back().predecessors == std::vector<std::uint32_t>{0});
  CHECK_THROWS_AS(make_task_graph(plan, 7), std::invalid_argument);
  CHECK_THROWS_AS(make_task_graph(plan, -1), std::invalid_argument);
}

TEST_CASE("a whole step between steps by patches waits for all of them, and they for it") {
  auto plan = pipefusion(4, 3, 1, {.pp = 2}, 2);
  plan.request.refill_steps = {2};
  const int parts = static_cast<int>(plan.batch_parts[0].size());
  REQUIRE(parts == 4);
  const auto graph = make_task_graph(plan);
  // What comes back to stage 0 for each step, as patches.
  std::map<int, std::multiset<int>> back;
  std::map<std::pair<int, int>, std::uint32_t> last_stage;  // by step and patch, or part
  for (std::uint32_t id = 0; id < graph.tasks.size(); ++id) {
    const auto& task = graph.tasks[id];
    if (task.kind != TaskKind::micro_step) continue;
    if (task.stage == 1) {
      last_stage[{task.step, task.patch < 0 ? task.part : task.patch}] = id;
      if (!task.receivers.empty()) {
        back[task.consumer_step].insert(task.patch);
        CHECK(task.consumer_part == 0);
      }
      continue;
    }
    const auto waits_for = [&](int step, int round) {
      const auto& before = task.predecessors;
      return std::find(before.begin(), before.end(), last_stage.at({step, round})) != before.end();
    };
    if (task.step == 2 && task.part == 0) {
      for (int patch = 0; patch < 3; ++patch)
        CHECK(waits_for(1, patch));
    }
    if (task.step == 1) CHECK(waits_for(0, parts - 1));
    if (task.step == 3) CHECK(waits_for(2, parts - 1));
  }
  CHECK(back[1] == std::multiset<int>{-1});
  CHECK(back[2] == std::multiset<int>{0, 1, 2});
  CHECK(back[3] == std::multiset<int>{-1});
  CHECK(!back.contains(4));
}

TEST_CASE("work follows rows, items and blocks") {
  const auto graph = make_task_graph(pipefusion(3, 4, 1, {.pp = 2}));
  const auto plan = pipefusion(3, 4, 1, {.pp = 2});
  double whole = 0;
  std::map<int, double> by_step;
  for (const auto& task : graph.tasks) {
    CHECK(task.work > 0);
    if (task.kind == TaskKind::micro_step) by_step[task.step] += task.work;
  }
  whole = static_cast<double>(plan.token_rows * plan.token_columns) * 2 * 8;
  for (int step = 0; step < 3; ++step)
    CHECK(by_step[step] == doctest::Approx(whole));
}

TEST_CASE("tasks are described for people") {
  const auto graph = make_task_graph(pipefusion(2, 2, 1, {}));
  CHECK(describe(graph.tasks[0]) == "text");
  CHECK(describe(graph.tasks[1]) == "step 0 stage 0");
  CHECK(describe(graph.tasks[2]) == "step 1 patch 0 stage 0");
}
