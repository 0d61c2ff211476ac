#include <map>

#include "client/cli/slurm.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

using namespace troupe::cli;
using troupe::testing::has;
using troupe::testing::message_of;

namespace {

using Words = std::vector<std::string>;

std::optional<SlurmTask> task_in(std::map<std::string, std::string> environment) {
  return slurm_task([&](const std::string& name) { return environment[name]; });
}

/// Variables as Slurm 22.05 sets them for task 2 of `srun -n 4 --relative=1` on nodes 2 and 3 of
/// three.
std::map<std::string, std::string> environment() {
  return {{"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", "2"},
          {"SLURM_LOCALID", "0"},
          {"SLURMD_NODENAME", "node3"},
          {"SLURM_JOB_NODELIST", "node[1-3]"},
          {"SLURM_STEP_NODELIST", "node[2-3]"},
          {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}};
}

Words names(const std::vector<SlurmTask::Place>& places) {
  Words all;
  for (const auto& place : places)
    all.push_back(place.name);
  return all;
}

}  // namespace

TEST_CASE("Slurm's lists of hosts") {
  CHECK(slurm_hosts("node") == Words{"node"});
  CHECK(slurm_hosts("node[1-3,7]") == Words{"node1", "node2", "node3", "node7"});
  CHECK(slurm_hosts("b[08-10],a") == Words{"b08", "b09", "b10", "a"});
  CHECK(slurm_hosts("r[0-1]n[1-2]-ib") == Words{"r0n1-ib", "r0n2-ib", "r1n1-ib", "r1n2-ib"});
  CHECK(slurm_hosts("n[1-65536]").size() == 65'536);
  for (const char* wrong : {"", "a,", ",a", "a[1-2", "a]1[", "a[[1]]", "a[]", "a[x]", "a[3-1]",
                            "a[1-2-3]", "a[1,]", "a[-1]"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(slurm_hosts(wrong), std::runtime_error);
  }
  for (const char* many : {"a[1-65537]", "a[0-4294967295]", "a[1-300]b[1-300]", "a[1-65536],b"})
    CHECK(has(message_of([&] { slurm_hosts(many); }), "more than 65536 hosts"));
}

TEST_CASE("a task of srun knows its name, the controller's node and the ranks before it") {
  const auto task = task_in(environment());
  REQUIRE(task);
  CHECK(task->self.node == "node3");
  CHECK(task->self.name == "node3");
  CHECK(task->first == "node1");
  CHECK(names(task->before) == Words{"node2", "node2-1"});
  auto second = environment();
  second["SLURM_LOCALID"] = "1";
  second["SLURM_PROCID"] = "3";
  CHECK(task_in(second)->self.name == "node3-1");
  CHECK(names(task_in(second)->before) == Words{"node2", "node2-1", "node3"});
}

TEST_CASE("what Slurm does not say is not guessed, what makes no sense is refused by its name") {
  CHECK_FALSE(task_in({}));
  auto without = environment();
  without.erase("SLURM_STEP_ID");  // within a job script, outside of srun
  CHECK_FALSE(task_in(without));
  auto cyclic = environment();  // --distribution=cyclic: rank 2 is the second task of node2
  cyclic["SLURMD_NODENAME"] = "node2";
  cyclic["SLURM_LOCALID"] = "1";
  CHECK(task_in(cyclic)->self.name == "node2-1");
  CHECK(task_in(cyclic)->before.empty());
  auto bare = environment();
  for (const char* name : {"SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST", "SLURM_PROCID"})
    bare.erase(name);
  CHECK(task_in(bare)->self.name == "node3");
  CHECK(task_in(bare)->first.empty());
  CHECK(task_in(bare)->before.empty());
  auto wrong = environment();
  wrong["SLURM_LOCALID"] = "one";
  CHECK(has(message_of([&] { task_in(wrong); }), "SLURM_LOCALID"));
  wrong = environment();
  wrong["SLURM_STEP_TASKS_PER_NODE"] = "2(x99999)";
  CHECK(has(message_of([&] { task_in(wrong); }), "SLURM_STEP_TASKS_PER_NODE"));
}
