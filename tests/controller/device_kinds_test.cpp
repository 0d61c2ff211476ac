// Clusters of actors on the CPU and on GPUs: a job has all its ranks on one kind.
#include "controller/deployments/device_kinds.h"

#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::cluster;

namespace {

Members members_of(int cpus, int gpus) {
  Members members("secret");
  for (int i = 0; i < cpus; ++i)
    members.add("here", "cpu");
  for (int i = 0; i < gpus; ++i)
    members.add("there", "cuda:" + std::to_string(i), /*remote=*/true);
  return members;
}

}  // namespace

TEST_CASE("actors are counted by kind, and by what a kind computes with") {
  auto members = members_of(3, 2);
  CHECK(living_by_kind(members, WeightChoice::as_computed) ==
        std::map<DeviceKind, int>{{DeviceKind::cpu, 3}, {DeviceKind::cuda, 2}});
  CHECK(most_alike(members, WeightChoice::as_computed) == 3);
  CHECK(most_alike(members, WeightChoice::int8) == 3);
  CHECK(most_alike(members, WeightChoice::fp8) == 2);
  members.drain(0);
  members.start_failed(1);
  CHECK(most_alike(members, WeightChoice::as_computed) == 2);
  CHECK(most_alike(members, WeightChoice::int8) == 1);
  CHECK(most_alike_with_drained(members, WeightChoice::as_computed) == 2);
  CHECK(most_alike_with_drained(members, WeightChoice::int8) == 2);
  CHECK(most_alike(members_of(0, 2), WeightChoice::int8) == 0);
}

TEST_CASE("who asks for too many is told what there is of each kind, and what would do") {
  auto members = members_of(3, 2);
  CHECK(too_few_text(members, WeightChoice::as_computed, 4) ==
        "dp × cfg × pp × ulysses × ring × tp = 4 actors of one kind are needed, but the cluster "
        "has 3 on cpu and 2 on cuda: ask for at most 3, or let `troupe join` bring more of a kind");
  CHECK(too_few_text(members, WeightChoice::fp8, 3) ==
        "dp × cfg × pp × ulysses × ring × tp = 3 actors of one kind are needed, but the cluster "
        "has 3 on cpu and 2 on cuda, and cuda alone computes with fp8 weights: ask for at most 2, "
        "or let `troupe join` bring more of a kind");
  members.close(0);
  CHECK(too_few_text(members, WeightChoice::as_computed, 3) ==
        "dp × cfg × pp × ulysses × ring × tp = 3 actors of one kind are needed, but the cluster "
        "has 2 on cpu and 2 on cuda (1 is drained or cannot start): ask for at most 2, or let "
        "`troupe join` bring more of a kind");
  CHECK(too_few_text(members_of(2, 0), WeightChoice::as_computed, 4) ==
        "dp × cfg × pp × ulysses × ring × tp = 4 actors are needed, but the cluster has 2");
}
