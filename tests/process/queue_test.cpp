#include <signal.h>

#include <chrono>
#include <filesystem>
#include <random>

#include "tests/process/support/connect.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

FaultCluster& queue_cluster() {
  static FaultCluster shared([] {
    auto options = actors(4);
    options.max_queued_jobs = 3;
    options.max_jobs_together = 1;  // so that there is a queue
    options.memory_limit = memory_of(whole_demo_job());
    return options;
  }());
  return shared;
}

/// Submits a job and waits until it is being denoised; there it is held until it is cancelled.
std::uint64_t submit_running(FaultCluster& where) {
  where.hold(0, {.step = 2});
  const auto job = where.submit(demo_job());
  where.held(0);
  return job;
}

/// Waits until the actor is not held any more: who holds it next must not take this hold for its
/// own.
bool let_go(FaultCluster& where, std::uint32_t actor) {
  return eventually(kPatience, [&] { return !has(where.status().actors[actor].doing, "held"); });
}

Error end_of(FaultCluster& where, std::uint64_t job) {
  const auto result = where.client().wait(job, kPatience);
  REQUIRE(!result);
  return result.error();
}

}  // namespace

TEST_CASE("cancel: queued at once, running at the next micro-step, then no more") {
  const auto before = queue_cluster().run(demo_job());
  const auto running = submit_running(queue_cluster());
  const auto queued = queue_cluster().submit(demo_job());
  const auto behind = queue_cluster().submit(demo_job());
  CHECK(queue_cluster().job(queued)->state == JobState::queued);

  CHECK(queue_cluster().client().cancel(queued));
  CHECK(end_of(queue_cluster(), queued).code == ErrorCode::cancelled);
  CHECK(queue_cluster().job(queued)->state == JobState::cancelled);
  CHECK(queue_cluster().job(running)->state == JobState::running);

  const auto begin = std::chrono::steady_clock::now();
  CHECK(queue_cluster().client().cancel(running));
  const auto twice = queue_cluster().client().cancel(running);
  const auto error = end_of(queue_cluster(), running);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  MESSAGE("a running job ended " << int(took.count() * 1000) << " ms after its cancel");
  CHECK(took < kPatience);
  CHECK(error.code == ErrorCode::cancelled);
  CHECK(queue_cluster().job(running)->state == JobState::cancelled);
  CHECK((twice || twice.error().code == ErrorCode::bad_request));

  const auto late = queue_cluster().client().cancel(running);
  REQUIRE(!late);
  CHECK(late.error().code == ErrorCode::bad_request);
  CHECK(has(late.error().what, "already been cancelled"));

  const auto result = queue_cluster().client().wait(behind, 600s);
  REQUIRE(result);
  CHECK(result.value().pictures[0].png == before.pictures[0].png);
  const auto after_end = queue_cluster().client().cancel(behind);
  REQUIRE(!after_end);
  CHECK(has(after_end.error().what, "succeeded"));
  CHECK(queue_cluster().restarts() == 0);
}

TEST_CASE("cancel while weights load: at once, however long they would take") {
  queue_cluster().run(whole_demo_job());  // nothing else has room beside it
  REQUIRE(queue_cluster().whole());
  queue_cluster().hold(0, {"loading"});
  const auto job = queue_cluster().submit(demo_job());
  queue_cluster().held(0);
  CHECK(queue_cluster().job(job)->state == JobState::loading);
  queue_cluster().freeze();
  CHECK(queue_cluster().client().cancel(job));
  CHECK(end_of(queue_cluster(), job).code == ErrorCode::cancelled);
  queue_cluster().thaw();
  CHECK(queue_cluster().run(demo_job()).pictures.size() == 1);
  // Had it waited for the actors, they would have been taken for hanging.
  CHECK(queue_cluster().restarts() == 0);
}

TEST_CASE("cancelled at any step, the deployment goes on and its pictures stay the same") {
  const auto before = queue_cluster().run(demo_job());
  std::mt19937 random(3);
  for (int round = 0; round < 8; ++round) {
    const auto actor = static_cast<std::uint32_t>(random() % 4);
    const HoldAt at{"step", static_cast<int>(random() % 12)};
    CAPTURE(actor);
    CAPTURE(at.step);
    queue_cluster().hold(actor, at);
    const auto job = queue_cluster().submit(demo_job(900));
    queue_cluster().held(actor);
    CHECK(queue_cluster().client().cancel(job));
    CHECK(end_of(queue_cluster(), job).code == ErrorCode::cancelled);
    REQUIRE(let_go(queue_cluster(), actor));
  }
  const auto after = queue_cluster().run(demo_job());
  CHECK(after.pictures[0].png == before.pictures[0].png);
  CHECK(after.latents->data == before.latents->data);
  CHECK(queue_cluster().restarts() == 0);
}

TEST_CASE("a job that is not known") {
  const auto cancelled = queue_cluster().client().cancel(987654);
  REQUIRE(!cancelled);
  CHECK(cancelled.error().code == ErrorCode::not_found);
  CHECK(has(cancelled.error().what, "987654"));
  const auto waited = queue_cluster().client().wait(987654, kPatience);
  REQUIRE(!waited);
  CHECK(waited.error().code == ErrorCode::not_found);
}

TEST_CASE("a full queue refuses, and takes again when there is room") {
  const auto running = submit_running(queue_cluster());
  std::vector<std::uint64_t> queued;
  for (int i = 0; i < 3; ++i)
    queued.push_back(queue_cluster().submit(tiny_job()));
  const auto refused = queue_cluster().client().submit(tiny_job());
  REQUIRE(!refused);
  CHECK(refused.error().code == ErrorCode::overloaded);
  CHECK(has(refused.error().what, "3 jobs are waiting"));
  CHECK(queue_cluster().status().jobs_queued == 3);
  CHECK(queue_cluster().client().cancel(queued[0]));
  CHECK(end_of(queue_cluster(), queued[0]).code == ErrorCode::cancelled);
  queued[0] = queue_cluster().submit(tiny_job());
  CHECK(queue_cluster().client().cancel(running));
  CHECK(end_of(queue_cluster(), running).code == ErrorCode::cancelled);
  for (const auto job : queued)
    CHECK(queue_cluster().client().wait(job, 600s));
  CHECK(queue_cluster().status().jobs_queued == 0);
}

TEST_CASE("a client that goes takes its jobs along, but not the detached ones") {
  std::uint64_t own = 0;
  std::uint64_t own_queued = 0;
  std::uint64_t detached = 0;
  {
    auto client = queue_cluster().another_client();
    queue_cluster().hold(0, {.step = 2});
    own = client.submit(demo_job()).value();
    auto goes_on = tiny_job();
    goes_on.detached = true;
    detached = client.submit(goes_on).value();
    own_queued = client.submit(tiny_job()).value();
    queue_cluster().held(0);
  }
  for (const auto job : {own, own_queued}) {
    REQUIRE(eventually(kPatience,
                       [&] { return queue_cluster().job(job)->state == JobState::cancelled; }));
    CHECK(has(queue_cluster().job(job)->cause, "client is gone"));
  }
  const auto result = queue_cluster().client().wait(detached, 600s);
  REQUIRE(result);
  CHECK(result.value().pictures.size() == 1);
  CHECK(queue_cluster().restarts() == 0);
}

TEST_CASE("a client that is killed, or stands still for ever, takes its job along") {
  for (const int blow : {SIGKILL, SIGSTOP}) {
    CAPTURE(blow);
    const Scratch scratch;
    const auto picture = scratch / "cat.png";
    queue_cluster().hold(0, {.step = 2});
    Command submit({"submit", "--connect", queue_cluster().cluster().endpoint(), "--model",
                    TROUPE_SOURCE_DIR "/examples/demo/model", "--prompt", "a cat", "--cfg", "2",
                    "--pp", "2", "--steps", "6", "--output", picture},
                   scratch.path.string());
    queue_cluster().held(0);
    std::uint64_t job = 0;
    for (const auto& row : take(queue_cluster().client().jobs(), "jobs"))
      if (row.state == JobState::running) job = row.id;
    REQUIRE(job != 0);
    submit.signal(blow);
    REQUIRE(eventually(kPatience,
                       [&] { return queue_cluster().job(job)->state == JobState::cancelled; }));
    CHECK(has(queue_cluster().job(job)->cause, "client is gone"));
    submit.signal(SIGCONT);  // who comes back is told
    const int code = submit.wait(2 * kPatience);
    CHECK(code == (blow == SIGKILL ? 128 + SIGKILL : 1));
    CHECK_FALSE(std::filesystem::exists(picture));
    REQUIRE(let_go(queue_cluster(), 0));
  }
  CHECK(queue_cluster().run(demo_job()).pictures.size() == 1);
  CHECK(queue_cluster().restarts() == 0);
}

TEST_CASE("jobs side by side on their own actors; the end of one does not touch the other") {
  auto left = demo_job(12), right = demo_job(12);
  left.parallelism = right.parallelism = {.dp = 1, .cfg = 1, .pp = 2};
  REQUIRE(queue_cluster().whole());
  for (std::uint32_t actor = 0; actor < 4; ++actor)
    queue_cluster().hold(actor, {.step = 2});
  const auto first = queue_cluster().submit(left);
  const auto second = queue_cluster().submit(right);
  REQUIRE(eventually(kPatience, [&] {
    return queue_cluster().job(first)->state == JobState::running &&
           queue_cluster().job(second)->state == JobState::running;
  }));
  CHECK(queue_cluster().client().cancel(first));
  CHECK(end_of(queue_cluster(), first).code == ErrorCode::cancelled);
  for (std::uint32_t actor = 0; actor < 4; ++actor)
    queue_cluster().release(actor);
  CHECK(queue_cluster().client().wait(second, 600s));
}
