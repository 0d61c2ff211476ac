#include "troupe/client.h"

#include <atomic>
#include <fstream>

#include "tests/client/fake_controller.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/variable.h"
#include "troupe/inspect.h"

using namespace troupe;
using namespace std::chrono_literals;
using testing::FakeController;

namespace {

Submission simple() {
  Submission submission;
  submission.request.prompts = {"a red circle"};
  submission.request.seed = 7;
  return submission;
}

}  // namespace

TEST_CASE(
    "a job's request arrives as it was given, its progress in order, its pictures and latents "
    "whole") {
  FakeController controller;
  const std::vector<float> values = {1, 2, 3, 4, 5, 6, 7, 8};
  wire::SubmitJob seen;
  controller.on(
      wire::Kind::submit_job, [&](FakeController& c, control::PeerId peer,
                                  const wire::Header& header, std::span<const std::byte> bytes) {
        seen = wire::decode<wire::SubmitJob>(bytes);
        const auto job = c.accept(peer, header);
        // The blob of the first step is far bigger than those after it, and must still be handed on
        // first.
        c.progress(peer, job, 1, {c.hold("preview", std::string(3'000'000, 'p'))});
        c.progress(peer, job, 2, {c.hold("latents", testing::float_bytes(values), {1, 2, 2, 2})});
        c.progress(peer, job, 3);
        c.succeed(peer, job,
                  {c.hold("picture", "first"), c.hold("picture", std::string(2'000'000, 'x')),
                   c.hold("latents", testing::float_bytes(values), {1, 2, 2, 2})});
      });

  auto client = Client::connect(controller.endpoint(), 60s);
  REQUIRE(client.ok());
  Submission submission = simple();
  submission.request.prompts = {"a", "b"};
  submission.request.negative_prompt = "ugly";
  submission.request.guidance_scale = 3.25;
  submission.request.num_pipeline_patch = 4;
  submission.request.method = "pipefusion";
  submission.request.want_latents = true;
  submission.parallelism = {.dp = 1, .cfg = 2, .pp = 3};
  submission.model = "/models/x";
  submission.detached = true;

  std::vector<int> steps;
  std::vector<float> step_latents;
  std::size_t preview_bytes = 0;
  auto job = client.value().submit(submission, [&](const Progress& progress) {
    steps.push_back(progress.step);
    preview_bytes += progress.preview_png.size();
    if (progress.latents) step_latents = progress.latents->data;
  });
  REQUIRE(job.ok());
  auto result = client.value().wait(job.value(), 60s);
  REQUIRE_MESSAGE(result.ok(), result.error().message());

  CHECK(steps == std::vector<int>{1, 2, 3});
  CHECK(preview_bytes == 3'000'000);
  CHECK(step_latents == values);
  REQUIRE(result.value().pictures.size() == 2);
  CHECK(result.value().pictures[0].png == "first");
  CHECK(result.value().pictures[1].png == std::string(2'000'000, 'x'));
  REQUIRE(result.value().latents);
  CHECK(result.value().latents->shape == std::vector<std::int64_t>{1, 2, 2, 2});
  CHECK(result.value().latents->data == values);
  CHECK(result.value().report == R"({"seed": 7})");

  controller.run([] {});  // orders the controller's write of `seen` before the reads below
  CHECK(seen.detached);
  CHECK(seen.job.model == "/models/x");
  CHECK(seen.job.request.prompts == std::vector<std::string>{"a", "b"});
  CHECK(seen.job.request.negative_prompt == "ugly");
  CHECK(seen.job.request.guidance_scale == 3.25);
  CHECK(seen.job.request.num_pipeline_patch == 4);
  CHECK(seen.job.request.method == Method::pipefusion);
  CHECK(seen.job.request.seed == 7);
  CHECK(seen.job.parallelism == wire::Parallelism{1, 2, 3});
}

TEST_CASE(
    "initial latents are there for the controller to fetch before it accepts, and gone after a "
    "refusal") {
  FakeController controller;
  std::promise<std::string> fetched;
  controller.on(
      wire::Kind::submit_job, [&](FakeController& c, control::PeerId peer,
                                  const wire::Header& header, std::span<const std::byte> bytes) {
        const auto request = wire::decode<wire::SubmitJob>(bytes).job.request;
        c.blob_server().fetch(
            header.incarnation, request.init_latents_blob, request.init_latents_bytes, 60s,
            [&, peer, header](control::BlobResult blob) {
              fetched.set_value(blob ? *blob.bytes : blob.failure.what);
              c.server().reply(peer, header, wire::Failure{wire::FailureCode::bad_request, "no"});
            });
      });
  auto client = Client::connect(controller.endpoint(), 60s);
  REQUIRE(client.ok());
  Submission submission = simple();
  submission.request.init_latents = Latents{{1, 4, 2, 3}, std::vector<float>(24, 0.5f)};
  const auto job = client.value().submit(submission);
  REQUIRE_FALSE(job.ok());
  CHECK(job.error().code == ErrorCode::bad_request);
  CHECK(fetched.get_future().get() == testing::float_bytes(std::vector<float>(24, 0.5f)));
}

TEST_CASE("a job can be handed in without waiting, and again under the same key") {
  FakeController controller;
  std::vector<std::uint64_t> keys;
  controller.on(
      wire::Kind::submit_job, [&](FakeController& c, control::PeerId peer,
                                  const wire::Header& header, std::span<const std::byte> bytes) {
        keys.push_back(wire::decode<wire::SubmitJob>(bytes).key);
        if (keys.size() == 3) {
          c.server().reply(peer, header, wire::Failure{wire::FailureCode::overloaded, "full"});
        } else {
          c.progress(peer, c.accept(peer, header), 1);
        }
      });
  auto client = Client::connect(controller.endpoint(), 60s);
  REQUIRE(client.ok());
  const auto submit = [&](const Submission& submission) {
    std::promise<Result<std::uint64_t>> promise;
    std::promise<int> step;
    client.value().submit(
        submission, [&](const Progress& progress) { step.set_value(progress.step); },
        [&](const Result<std::uint64_t>& number) { promise.set_value(number); });
    auto number = promise.get_future().get();
    if (number) CHECK(step.get_future().get() == 1);
    return number;
  };
  Submission submission = simple();
  submission.key = 77;
  CHECK(submit(submission).value() == 1);
  CHECK(submit(simple()).value() == 2);
  CHECK(submit(submission).error().code == ErrorCode::overloaded);
  submission.request.init_image = "GIF89a";
  CHECK(submit(submission).error().code == ErrorCode::bad_request);  // before anybody is asked
  controller.run([&] {
    REQUIRE(keys.size() == 3);
    CHECK(keys[0] == 77);
    CHECK(keys[1] != 0);
    CHECK(keys[1] != 77);
  });
  controller.vanish();
  CHECK(submit(simple()).error().code == ErrorCode::lost);
}

TEST_CASE("initial latents whose shape is none are refused before anybody is asked") {
  FakeController controller;
  auto client = Client::connect(controller.endpoint(), 60s);
  REQUIRE(client.ok());
  const auto refusal = [&](std::vector<std::int64_t> shape, std::size_t values) {
    Submission submission = simple();
    submission.request.init_latents = Latents{std::move(shape), std::vector<float>(values)};
    const auto job = client.value().submit(submission);
    REQUIRE_FALSE(job.ok());
    CHECK(job.error().code == ErrorCode::bad_request);
    return job.error().message();
  };
  CHECK(refusal({1, 4, 2}, 8).find("[1, 4, 2]") != std::string::npos);
  CHECK(refusal({1, 4, 2, 2}, 15).find("15 values") != std::string::npos);
  CHECK(refusal({1, 4, -2, -2}, 16).find("[1, 4, -2, -2]") != std::string::npos);
}

TEST_CASE("a failed job gives its cause, a cancelled one says so") {
  FakeController controller;
  controller.on(wire::Kind::submit_job, [](FakeController& c, control::PeerId peer,
                                           const wire::Header& header, std::span<const std::byte>) {
    const auto job = c.accept(peer, header);
    if (job == 1) c.fail(peer, job, {wire::FailureCode::timeout, "actor 2 (pid 9) hung in step 3"});
    if (job == 2)
      c.fail(peer, job, {wire::FailureCode::out_of_memory, "job 2: 3 GB more than there is"});
    if (job == 3) c.fail(peer, job, {wire::FailureCode::cancelled, ""}, JobState::cancelled);
  });
  auto client = Client::connect(controller.endpoint(), 60s);
  REQUIRE(client.ok());
  const auto ending = [&] {
    const auto job = client.value().submit(simple());
    REQUIRE(job.ok());
    const auto result = client.value().wait(job.value(), 60s);
    REQUIRE_FALSE(result.ok());
    return result.error();
  };
  const Error hung = ending();
  CHECK(hung.code == ErrorCode::failed);  // not "timeout", which would say that the job goes on
  CHECK(hung.message() == "job 1: actor 2 (pid 9) hung in step 3");
  const Error memory = ending();
  CHECK(memory.code == ErrorCode::out_of_memory);
  CHECK(memory.message() == "job 2: 3 GB more than there is");
  const Error cancelled = ending();
  CHECK(cancelled.code == ErrorCode::cancelled);
  CHECK(cancelled.message() == "job 3 was cancelled");
}

TEST_CASE("wait keeps to its deadline, and the job can be waited for again") {
  FakeController controller;
  control::PeerId owner = 0;
  controller.on(wire::Kind::submit_job,
                [&](FakeController& c, control::PeerId peer, const wire::Header& header,
                    std::span<const std::byte>) {
                  owner = peer;
                  c.accept(peer, header);
                });
  auto client = Client::connect(controller.endpoint(), 60s);
  REQUIRE(client.ok());
  const auto job = client.value().submit(simple());
  REQUIRE(job.ok());
  const auto begin = std::chrono::steady_clock::now();
  const auto early = client.value().wait(job.value(), 100ms);
  CHECK(std::chrono::steady_clock::now() - begin < 30s);
  REQUIRE_FALSE(early.ok());
  CHECK(early.error().code == ErrorCode::timeout);
  CHECK(early.error().message() == "job 1 has not ended within 0.1 s; it goes on");
  controller.run([&] { controller.succeed(owner, 1, {controller.hold("picture", "png")}); });
  const auto result = client.value().wait(job.value(), 60s);
  REQUIRE(result.ok());
  CHECK(result.value().pictures.at(0).png == "png");
}

TEST_CASE("another client's job can be followed by its number; an unknown one is not found") {
  FakeController controller;
  controller.on(
      wire::Kind::wait_job, [](FakeController& c, control::PeerId peer, const wire::Header& header,
                               std::span<const std::byte> bytes) {
        const auto job = wire::decode<wire::WaitJob>(bytes).job;
        if (job != 5) {
          c.server().reply(
              peer, header,
              wire::Failure{wire::FailureCode::not_found, "no job " + std::to_string(job)});
          return;
        }
        // The end may come before the answer.
        c.progress(peer, 5, 2);
        c.succeed(peer, 5, {c.hold("picture", "five")});
        c.server().reply(peer, header, wire::Done{});
      });
  auto client = Client::connect(controller.endpoint(), 60s);
  REQUIRE(client.ok());
  std::atomic<int> step = 0;
  const auto result =
      client.value().wait(5, 60s, [&](const Progress& progress) { step = progress.step; });
  REQUIRE(result.ok());
  CHECK(result.value().pictures.at(0).png == "five");
  CHECK(step == 2);
  const auto unknown = client.value().wait(6, 60s);
  REQUIRE_FALSE(unknown.ok());
  CHECK(unknown.error().code == ErrorCode::not_found);
  CHECK(unknown.error().message() == "no job 6");
  CHECK(client.value().wait(5, 60s).ok());  // asked for once more, it is sent once more
}

TEST_CASE("long lists are asked for page by page") {
  FakeController controller;
  static constexpr std::uint32_t kAll = 1000;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> asked;
  controller.on(wire::Kind::list_jobs, [&](FakeController& c, control::PeerId peer,
                                           const wire::Header& header,
                                           std::span<const std::byte> payload) {
    const auto page = wire::decode<wire::ListJobs>(payload);
    asked.emplace_back(page.skip, page.most);
    wire::JobList list;
    list.all = kAll;
    const auto most = page.most == 0 ? wire::kJobsOfPage : std::min(page.most, wire::kJobsOfPage);
    for (auto id = page.skip; id < std::min(kAll, page.skip + most); ++id)
      list.jobs.emplace_back().id = id + 1;
    c.server().reply(peer, header, list);
  });
  controller.on(wire::Kind::get_status,
                [](FakeController& c, control::PeerId peer, const wire::Header& header,
                   std::span<const std::byte> payload) {
                  const auto skip = wire::decode<wire::GetStatus>(payload).skip_actors;
                  wire::ClusterStatus status;
                  status.actors_all = kAll;
                  for (auto id = skip; id < std::min(kAll, skip + wire::kActorsOfPage); ++id)
                    status.actors.emplace_back().id = id;
                  c.server().reply(peer, header, status);
                });
  auto client = Client::connect(controller.endpoint(), 60s);
  REQUIRE(client.ok());
  const auto jobs = client.value().jobs();
  REQUIRE(jobs.ok());
  REQUIRE(jobs.value().size() == kAll);
  CHECK(jobs.value().back().id == kAll);
  CHECK(asked.size() == 3);
  asked.clear();
  const auto page = client.value().jobs({.skip = 100, .most = 500});
  REQUIRE(page.ok());
  CHECK(page.value().all == kAll);
  REQUIRE(page.value().jobs.size() == 500);
  CHECK(page.value().jobs.front().id == 101);
  CHECK(page.value().jobs.back().id == 600);
  CHECK(asked == std::vector<std::pair<std::uint32_t, std::uint32_t>>{{100, 500}, {500, 100}});
  const auto status = client.value().status();
  REQUIRE(status.ok());
  REQUIRE(status.value().actors.size() == kAll);
  CHECK(status.value().actors.back().id == kAll - 1);
}

TEST_CASE("cancel, jobs, status and stop answer with what the controller says") {
  FakeController controller;
  controller.on(wire::Kind::list_jobs, [](FakeController& c, control::PeerId peer,
                                          const wire::Header& header, std::span<const std::byte>) {
    wire::JobList list;
    list.jobs.push_back({.id = 3,
                         .state = JobState::running,
                         .prompt = "a cat",
                         .pictures = 2,
                         .step = 5,
                         .steps = 20,
                         .seconds = 1.5,
                         .cause = ""});
    c.server().reply(peer, header, list);
  });
  controller.on(wire::Kind::get_status, [](FakeController& c, control::PeerId peer,
                                           const wire::Header& header, std::span<const std::byte>) {
    wire::ClusterStatus status;
    status.version = "9.9";
    wire::ActorRow actor;
    actor.id = 4;
    actor.groups.push_back({"pp", {0, 4}, 1});
    status.actors.push_back(actor);
    c.server().reply(peer, header, status);
  });
  auto client = Client::connect(controller.endpoint(), 60s);
  REQUIRE(client.ok());
  CHECK(client.value().cancel(1).value() == "as you wish");
  const auto jobs = client.value().jobs();
  REQUIRE(jobs.ok());
  CHECK(jobs.value().at(0).state == JobState::running);
  CHECK(jobs.value().at(0).prompt == "a cat");
  const auto status = client.value().status();
  REQUIRE(status.ok());
  CHECK(status.value().version == "9.9");
  CHECK(status.value().actors.at(0).groups.at(0).ranks == std::vector<int>{0, 4});
  CHECK(status.value().actors.at(0).groups.at(0).rank_in_group == 1);
  CHECK(client.value().stop_cluster().ok());
}

TEST_CASE(
    "a job can be cancelled from its own progress callback; waiting there is refused, not "
    "deadlocked") {
  FakeController controller;
  control::PeerId owner = 0;
  controller.on(wire::Kind::submit_job,
                [&](FakeController& c, control::PeerId peer, const wire::Header& header,
                    std::span<const std::byte>) {
                  owner = peer;
                  c.progress(peer, c.accept(peer, header), 1);
                });
  controller.on(wire::Kind::cancel_job,
                [&](FakeController& c, control::PeerId peer, const wire::Header& header,
                    std::span<const std::byte>) {
                  c.server().reply(peer, header, wire::Done{});
                  c.fail(owner, 1, {}, JobState::cancelled);
                });
  auto connected = Client::connect(controller.endpoint(), 60s);
  REQUIRE(connected.ok());
  Client& client = connected.value();
  std::optional<ErrorCode> refused;
  const auto job = client.submit(simple(), [&](const Progress& progress) {
    refused = client.wait(progress.job, 1s).error().code;
    client.cancel(progress.job).ok();
  });
  REQUIRE(job.ok());
  const auto result = client.wait(job.value(), 60s);
  REQUIRE_FALSE(result.ok());
  CHECK(result.error().code == ErrorCode::cancelled);
  CHECK(refused == ErrorCode::bad_request);
}

TEST_CASE("watch tells of a job's end once, also of one that had ended before, and of a loss") {
  FakeController controller;
  std::atomic<int> asked = 0;
  controller.on(wire::Kind::submit_job, [](FakeController& c, control::PeerId peer,
                                           const wire::Header& header, std::span<const std::byte>) {
    const auto job = c.accept(peer, header);
    if (job == 1) c.succeed(peer, job, {c.hold("picture", "one")});
  });
  controller.on(wire::Kind::wait_job, [&](FakeController& c, control::PeerId peer,
                                          const wire::Header& header, std::span<const std::byte>) {
    ++asked;
    c.server().reply(peer, header, wire::Done{});
    c.succeed(peer, 1, {c.hold("picture", "again")});
  });
  auto client = Client::connect(controller.endpoint(), 60s);
  REQUIRE(client.ok());
  REQUIRE(client.value().submit(simple()).ok());
  const auto watched = [&](std::uint64_t job) {
    auto told = std::make_shared<std::promise<Result<JobResult>>>();
    client.value().watch(job, nullptr,
                         [told](const Result<JobResult>& end) { told->set_value(end); });
    return told->get_future();
  };
  auto first = watched(1);
  REQUIRE(first.wait_for(60s) == std::future_status::ready);
  CHECK(first.get().value().pictures.at(0).png == "one");
  // It is over and handed on: the controller is asked for it again.
  auto second = watched(1);
  REQUIRE(second.wait_for(60s) == std::future_status::ready);
  CHECK(second.get().value().pictures.at(0).png == "again");
  CHECK(asked == 1);
  REQUIRE(client.value().submit(simple()).ok());
  auto open = watched(2);
  CHECK(open.wait_for(50ms) == std::future_status::timeout);
  controller.vanish();
  REQUIRE(open.wait_for(60s) == std::future_status::ready);
  CHECK(open.get().error().code == ErrorCode::lost);
}

TEST_CASE("without an endpoint a program finds the cluster that the command finds") {
  FakeController controller;
  const testing::Scratch scratch;
  const testing::Variable runtime("XDG_RUNTIME_DIR", scratch.path.string());
  const testing::Variable config("TROUPE_CONFIG", scratch / "config.toml");
  const testing::Variable no_keys("TROUPE_KEYS", "");
  const auto write = [&](const std::string& text) {
    std::ofstream(scratch / "config.toml") << text;
  };
  const auto error = [] {
    const auto client = Client::connect({}, 60s);
    return client ? Error{} : client.error();
  };
  {
    const testing::Variable address("TROUPE_ADDRESS", controller.endpoint());
    CHECK(Client::connect({}, 60s).ok());  // which does not need the file: there is none
    CHECK(Inspector::connect({}, 60s).ok());
  }
  const testing::Variable address("TROUPE_ADDRESS", "");
  CHECK(error().code == ErrorCode::bad_request);
  CHECK(error().what.find("config.toml: No such file") != std::string::npos);
  // Of the user's own, where the file names none, or only one of a command.
  write("steps = 3\n[status]\nconnect = \"" + controller.endpoint() + "\"\n");
  CHECK(error().code == ErrorCode::unreachable);
  CHECK(error().what.find(scratch.path.string() + "/troupe/control.sock") != std::string::npos);
  write("connect = \"" + controller.endpoint() + "\"\n");
  CHECK(Client::connect({}, 60s).ok());
  CHECK(Inspector::connect({}, 60s).ok());
  write("connect = \"127.0.0.1:1\"\nkeys = \"none\"\n");
  CHECK(error().code == ErrorCode::unreachable);
  CHECK(error().what.find("tcp://127.0.0.1:1") != std::string::npos);
  write("connect = \"somewhere\"\n");
  CHECK(error().code == ErrorCode::bad_request);
  CHECK(error().what.find("config.toml:1: \"somewhere\": neither ipc://PATH nor tcp://HOST:PORT") !=
        std::string::npos);
  {
    const testing::Variable wrong("TROUPE_ADDRESS", "nowhere");
    CHECK(error().what.find("TROUPE_ADDRESS: \"nowhere\": neither") != std::string::npos);
  }
  write("connect = [\n");
  CHECK(error().code == ErrorCode::bad_request);
}
