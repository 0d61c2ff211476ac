// The NCCL backend with several ranks on one GPU. For correctness only: the ranks take turns on
// the GPU and talk through the loopback interface.
#include <memory>

#include "tests/gpu/gpu.h"
#include "tests/gpu/nccl_peers.h"
#include "tests/tensor/conformance.h"

#include "tests/support/doctest.h"

using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

constexpr int kPeers = 3;

/// The processes live on from case to case: each takes seconds to start.
std::unique_ptr<NcclPeers>& shared_peers() {
  static std::unique_ptr<NcclPeers> peers;
  return peers;
}

NcclPeers& peers() {
  if (!shared_peers()) shared_peers() = std::make_unique<NcclPeers>(kPeers);
  return *shared_peers();
}

void expect_all_well_of(const std::string& scenario, int size) {
  CAPTURE(scenario);
  CAPTURE(size);
  bool all = true;
  for (const std::string& line : peers().run(scenario, size)) {
    CHECK_MESSAGE(line.starts_with("ok"), line);
    all = all && line.starts_with("ok");
    if (all) MESSAGE(scenario << ", " << size << " ranks: " << line.substr(3));
  }
  // After a failure nobody knows what state the processes are in.
  if (!all) shared_peers().reset();
}

void expect_all_well(const std::string& scenario) {
  for (int size = 2; size <= kPeers; ++size)
    expect_all_well_of(scenario, size);
}

}  // namespace

TEST_CASE("what the conformance suite says of every backend") {
  TROUPE_NEEDS_GPU();
  for (const auto& of : troupe::tensor::testing::conformance_cases()) {
    if (!of.cpu_alone.empty()) {
      MESSAGE("skipped: " << of.name << ": " << of.cpu_alone);
      continue;
    }
    for (const int size : of.sizes)
      if (size <= kPeers) expect_all_well_of(of.name, size);
  }
}

TEST_CASE("receives posted ahead, nobody waits for a send") {
  TROUPE_NEEDS_GPU();
  expect_all_well("receives ahead");
}

TEST_CASE("transfers keep the order of the stream that issues them") {
  TROUPE_NEEDS_GPU();
  expect_all_well("stream order");
}

TEST_CASE("issuing a message does not wait for the device") {
  TROUPE_NEEDS_GPU();
  expect_all_well("no host wait");
}

TEST_CASE("a ring of stages with a communicator for every edge") {
  TROUPE_NEEDS_GPU();
  expect_all_well("pipeline");
}

TEST_CASE("cyclic shifts on one communicator, waited for later") {
  TROUPE_NEEDS_GPU();
  expect_all_well("shifts");
}

TEST_CASE("an all-reduce moves what the owners of shares send each other") {
  TROUPE_NEEDS_GPU();
  expect_all_well("reduction traffic");
}

TEST_CASE("a deadline passes, the operation goes on") {
  TROUPE_NEEDS_GPU();
  expect_all_well("deadlines");
}

TEST_CASE("an abort ends kernels under way at every rank, and a new group works") {
  TROUPE_NEEDS_GPU();
  expect_all_well("aborted");
}

TEST_CASE("who leaves in good order has sent everything, and is missed afterwards") {
  TROUPE_NEEDS_GPU();
  expect_all_well("leaving");
}

TEST_CASE("kill -9 of a rank ends the others' waits, naming it") {
  TROUPE_NEEDS_GPU();
  for (const std::string& line : peers().run_and_kill_last("endless", 3s))
    CHECK_MESSAGE(line.starts_with("ok"), line);
  shared_peers().reset();
}
