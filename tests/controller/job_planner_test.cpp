#include "controller/service/job_planner.h"

#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/controller/service_fixture.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

// Jobs are planned beside the loop, once, and by what the cluster is when they are taken in.

using namespace troupe;
using troupe::test::Gate;
using troupe::test::ServiceFixture;

namespace {

/// A service room whose planner waits at a gate.
struct PlannerFixture : ServiceFixture {
  Gate planning;
  std::atomic<int> begun = 0;
  std::vector<std::string> said;

  PlannerFixture() {
    gate.open();
    plan_job = [this, loop = std::this_thread::get_id()](const service::PlanInput& input) {
      CHECK(std::this_thread::get_id() != loop);
      ++begun;
      planning.wait();
      return service::plan_job(input);
    };
  }
  ~PlannerFixture() { planning.open(); }

  void submit_on(const wire::Parallelism& degrees) {
    wire::JobSpec job;
    job.parallelism = degrees;
    submit_job(std::move(job));
  }
  void submit_job(wire::JobSpec job) {
    wire::SubmitJob submission;
    submission.job = std::move(job);
    submission.job.model = "a";
    submission.job.request.prompts = {"x"};
    client->request(submission, std::chrono::seconds(60), [this](const control::Reply& reply) {
      said.push_back(reply ? std::to_string(reply.as<wire::JobAccepted>().job)
                           : reply.failure().what);
    });
  }
  bool answers() {
    bool answered = false;
    client->request(wire::ListJobs{}, std::chrono::seconds(60),
                    [&](const auto& reply) { answered = reply.ok(); });
    return until([&] { return answered; });
  }
};

}  // namespace

TEST_CASE("while a job is planned the loop answers others, and the next ones wait their turn") {
  PlannerFixture fixture;
  fixture.submit_on({.automatic = true});
  fixture.submit_on({});
  REQUIRE(fixture.until([&] { return fixture.begun == 1; }));
  CHECK(fixture.answers());
  CHECK(fixture.said.empty());
  CHECK(fixture.begun == 1);
  fixture.planning.open();
  REQUIRE(fixture.until([&] { return fixture.said.size() == 2; }));
  CHECK(fixture.said == std::vector<std::string>{"1", "2"});
  CHECK(fixture.begun == 2);
  CHECK_FALSE(fixture.table.find(1)->spec.parallelism.automatic);
}

TEST_CASE("actors that leave while a job is planned have it planned again") {
  PlannerFixture fixture;
  fixture.members.spawned(fixture.members.add("here", "cpu").id, 78, 1);
  fixture.submit_on({.tp = 2});
  REQUIRE(fixture.until([&] { return fixture.begun == 1; }));
  fixture.members.drain(1);
  fixture.planning.open();
  REQUIRE(fixture.until([&] { return fixture.said.size() == 1; }));
  CHECK(fixture.said[0].find("= 2 actors are needed") != std::string::npos);
  CHECK(fixture.begun == 2);
}

TEST_CASE("a plan that still holds is taken although the cluster has changed") {
  PlannerFixture fixture;
  fixture.submit_on({});
  REQUIRE(fixture.until([&] { return fixture.begun == 1; }));
  fixture.members.spawned(fixture.members.add("here", "cpu").id, 78, 1);
  fixture.planning.open();
  REQUIRE(fixture.until([&] { return fixture.said.size() == 1; }));
  CHECK(fixture.said == std::vector<std::string>{"1"});
  CHECK(fixture.begun == 1);
}

TEST_CASE("a shortage of memory that is over when the plan is there refuses no job") {
  PlannerFixture fixture;
  fixture.plan_job = [](const service::PlanInput& input) {
    auto planned = service::plan_job(input);
    planned.shortage.emplace();
    return planned;
  };
  fixture.submit_on({});
  REQUIRE(fixture.until([&] { return fixture.said.size() == 1; }));
  CHECK(fixture.said == std::vector<std::string>{"1"});
}

TEST_CASE("a job whose cluster changes with every plan is refused in the end") {
  std::array<Gate, 4> gates;
  PlannerFixture fixture;
  fixture.plan_job = [&](const service::PlanInput& input) {
    gates.at(static_cast<std::size_t>(fixture.begun++)).wait();
    return service::plan_job(input);
  };
  fixture.submit_on({.tp = 2});
  for (int plan = 0; plan < 3; ++plan) {
    REQUIRE(fixture.until([&] { return fixture.begun == plan + 1; }));
    fixture.members.limit_memory(0, 1'000'000'000'000u + static_cast<unsigned>(plan));
    gates.at(static_cast<std::size_t>(plan)).open();
  }
  REQUIRE(fixture.until([&] { return fixture.said.size() == 1; }));
  CHECK(fixture.said[0] ==
        "the cluster's actors changed each of the 3 times that the job was planned: try again "
        "later");
  CHECK(fixture.begun == 3);
}

TEST_CASE("a job with a picture is planned once, unless the picture is of another size") {
  for (const bool announced : {true, false}) {
    CAPTURE(announced);
    PlannerFixture fixture;
    fixture.planning.open();
    control::BlobStore own;
    control::BlobConnection channel(fixture.io, fixture.blob_options(), own);
    channel.start({}, [](const auto& failure) { FAIL(failure.what); });
    const auto bytes = testing::read_all(TROUPE_SOURCE_DIR "/tests/fixtures/pictures/exif6.jpg");
    wire::JobSpec job;
    job.request.init_image_blob = own.add(bytes);
    job.request.init_image_bytes = bytes.size();
    job.request.init_image_height = announced ? 7 : 6;
    job.request.init_image_width = 5;
    fixture.submit_job(job);
    REQUIRE(fixture.until([&] { return fixture.said.size() == 1; }));
    CHECK(fixture.said == std::vector<std::string>{"1"});
    CHECK(fixture.begun == (announced ? 1 : 2));
    const auto& request = fixture.table.find(1)->plan.request;
    CHECK(request.init_image_height == 7);
    CHECK(fixture.blobs.bytes(request.init_image_blob));
  }
}

TEST_CASE("jobs that wait for their plan are refused when the controller stops") {
  PlannerFixture fixture;
  fixture.submit_on({});
  REQUIRE(fixture.until([&] { return fixture.begun == 1; }));
  fixture.submit_on({});
  fixture.submit_on({});
  CHECK(fixture.answers());
  fixture.clients.close("the cluster is stopping");
  fixture.planning.open();
  REQUIRE(fixture.until([&] { return fixture.said.size() == 3; }));
  CHECK(fixture.said == std::vector<std::string>(3, "the cluster is stopping"));
  CHECK(fixture.begun == 1);
  CHECK(fixture.table.all().empty());
}
