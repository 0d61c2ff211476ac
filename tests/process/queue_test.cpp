#include <signal.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/process/support/connect.h"
#include "tests/process/support/processes.h"
#include "tests/process/support/theatre.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

Theatre& queue_theatre() {
  static Theatre shared([] {
    auto options = actors(4);
    options.max_queued_jobs = 3;
    options.max_jobs_together = 1;  // so that there is a queue
    options.memory_limit = memory_of(whole_demo_job());
    return options;
  }());
  return shared;
}

/// Submits a long job and waits until it is being denoised.
std::uint64_t submit_running(Theatre& where) {
  auto there = std::make_shared<std::atomic<bool>>(false);
  const auto job = where.submit(demo_job(900), [there](const Progress& progress) {
    if (progress.phase == "denoising") *there = true;
  });
  REQUIRE(eventually(kPatience, [&] { return there->load(); }));
  return job;
}

Error end_of(Theatre& where, std::uint64_t job) {
  const auto result = where.client().wait(job, kPatience);
  REQUIRE(!result);
  return result.error();
}

}  // namespace

TEST_CASE("cancel: queued at once, running at the next micro-step, then no more") {
  const auto before = queue_theatre().run(demo_job());
  const auto running = submit_running(queue_theatre());
  const auto queued = queue_theatre().submit(demo_job());
  const auto behind = queue_theatre().submit(demo_job());
  CHECK(queue_theatre().job(queued)->state == "queued");

  CHECK(queue_theatre().client().cancel(queued));
  CHECK(end_of(queue_theatre(), queued).code == "cancelled");
  CHECK(queue_theatre().job(queued)->state == "cancelled");
  CHECK(queue_theatre().job(running)->state == "running");

  const auto begin = std::chrono::steady_clock::now();
  CHECK(queue_theatre().client().cancel(running));
  const auto twice = queue_theatre().client().cancel(running);
  const auto error = end_of(queue_theatre(), running);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  MESSAGE("a running job ended " << int(took.count() * 1000) << " ms after its cancel");
  CHECK(took < kPatience);
  CHECK(error.code == "cancelled");
  CHECK(queue_theatre().job(running)->state == "cancelled");
  CHECK((twice || twice.error().code == "bad_request"));

  const auto late = queue_theatre().client().cancel(running);
  REQUIRE(!late);
  CHECK(late.error().code == "bad_request");
  CHECK(has(late.error().what, "already been cancelled"));

  const auto result = queue_theatre().client().wait(behind, 600s);
  REQUIRE(result);
  CHECK(result.value().pictures[0].png == before.pictures[0].png);
  const auto after_end = queue_theatre().client().cancel(behind);
  REQUIRE(!after_end);
  CHECK(has(after_end.error().what, "succeeded"));
  CHECK(queue_theatre().restarts() == 0);
}

TEST_CASE("cancel while weights load: at once, however long they would take") {
  queue_theatre().run(whole_demo_job());  // nothing else has room beside it
  REQUIRE(queue_theatre().whole());
  queue_theatre().freeze();
  const auto job = queue_theatre().submit(demo_job());
  CHECK(eventually(kPatience, [&] { return queue_theatre().job(job)->state == "loading"; }));
  CHECK(queue_theatre().client().cancel(job));
  CHECK(end_of(queue_theatre(), job).code == "cancelled");
  queue_theatre().thaw();
  CHECK(queue_theatre().run(demo_job()).pictures.size() == 1);
  // Had it waited for the actors, they would have been taken for hanging.
  CHECK(queue_theatre().restarts() == 0);
}

TEST_CASE("cancelled many times at random, the deployment goes on and its pictures stay the same") {
  const auto before = queue_theatre().run(demo_job());
  for (int round = 0; round < 8; ++round) {
    const auto job = queue_theatre().submit(demo_job(900));
    std::this_thread::sleep_for(std::chrono::milliseconds(37 * round));
    CHECK(queue_theatre().client().cancel(job));
    CHECK(end_of(queue_theatre(), job).code == "cancelled");
  }
  const auto after = queue_theatre().run(demo_job());
  CHECK(after.pictures[0].png == before.pictures[0].png);
  CHECK(after.latents->data == before.latents->data);
  CHECK(queue_theatre().restarts() == 0);
}

TEST_CASE("a job that is not known") {
  const auto cancelled = queue_theatre().client().cancel(987654);
  REQUIRE(!cancelled);
  CHECK(cancelled.error().code == "not_found");
  CHECK(has(cancelled.error().what, "987654"));
  const auto waited = queue_theatre().client().wait(987654, kPatience);
  REQUIRE(!waited);
  CHECK(waited.error().code == "not_found");
}

TEST_CASE("a full queue refuses, and takes again when there is room") {
  const auto running = submit_running(queue_theatre());
  std::vector<std::uint64_t> queued;
  for (int i = 0; i < 3; ++i)
    queued.push_back(queue_theatre().submit(tiny_job()));
  const auto refused = queue_theatre().client().submit(tiny_job());
  REQUIRE(!refused);
  CHECK(refused.error().code == "overloaded");
  CHECK(has(refused.error().what, "3 jobs are waiting"));
  CHECK(queue_theatre().status().jobs_queued == 3);
  CHECK(queue_theatre().client().cancel(queued[0]));
  CHECK(end_of(queue_theatre(), queued[0]).code == "cancelled");
  queued[0] = queue_theatre().submit(tiny_job());
  CHECK(queue_theatre().client().cancel(running));
  CHECK(end_of(queue_theatre(), running).code == "cancelled");
  for (const auto job : queued)
    CHECK(queue_theatre().client().wait(job, 600s));
  CHECK(queue_theatre().status().jobs_queued == 0);
}

TEST_CASE("a client that goes takes its jobs along, but not the detached ones") {
  std::uint64_t own = 0;
  std::uint64_t own_queued = 0;
  std::uint64_t detached = 0;
  {
    auto client = queue_theatre().another_client();
    own = client.submit(demo_job(900)).value();
    auto goes_on = tiny_job();
    goes_on.detached = true;
    detached = client.submit(goes_on).value();
    own_queued = client.submit(tiny_job()).value();
    REQUIRE(eventually(kPatience, [&] { return queue_theatre().job(own)->step > 0; }));
  }
  for (const auto job : {own, own_queued}) {
    REQUIRE(eventually(kPatience, [&] { return queue_theatre().job(job)->state == "cancelled"; }));
    CHECK(has(queue_theatre().job(job)->cause, "client is gone"));
  }
  const auto result = queue_theatre().client().wait(detached, 600s);
  REQUIRE(result);
  CHECK(result.value().pictures.size() == 1);
  CHECK(queue_theatre().restarts() == 0);
}

TEST_CASE("a client that is killed, or stands still for ever, takes its job along") {
  for (const int blow : {SIGKILL, SIGSTOP}) {
    CAPTURE(blow);
    const Scratch scratch;
    const auto picture = scratch / "cat.png";
    Command submit({"submit", "--connect", queue_theatre().cluster().endpoint(), "--model",
                    TROUPE_SOURCE_DIR "/examples/demo/model", "--prompt", "a cat", "--cfg", "2",
                    "--pp", "2", "--steps", "900", "--output", picture},
                   scratch.path.string());
    std::uint64_t job = 0;
    REQUIRE(eventually(2 * kPatience, [&] {
      for (const auto& row : take(queue_theatre().client().jobs(), "jobs"))
        if (row.state == "running" && row.step > 0) job = row.id;
      return job != 0;
    }));
    submit.signal(blow);
    REQUIRE(eventually(kPatience, [&] { return queue_theatre().job(job)->state == "cancelled"; }));
    CHECK(has(queue_theatre().job(job)->cause, "client is gone"));
    submit.signal(SIGCONT);  // who comes back is told
    const int code = submit.wait(2 * kPatience);
    CHECK(code == (blow == SIGKILL ? 128 + SIGKILL : 1));
    CHECK_FALSE(std::filesystem::exists(picture));
  }
  CHECK(queue_theatre().run(demo_job()).pictures.size() == 1);
  CHECK(queue_theatre().restarts() == 0);
}

TEST_CASE("jobs side by side on their own actors; the end of one does not touch the other") {
  auto left = demo_job(900), right = demo_job(100);
  left.parallelism = right.parallelism = {.dp = 1, .cfg = 1, .pp = 2};
  const auto first = queue_theatre().submit(left);
  const auto second = queue_theatre().submit(right);
  REQUIRE(eventually(kPatience, [&] {
    return queue_theatre().job(first)->state == "running" &&
           queue_theatre().job(second)->state == "running";
  }));
  CHECK(queue_theatre().client().cancel(first));
  CHECK(end_of(queue_theatre(), first).code == "cancelled");
  CHECK(queue_theatre().client().wait(second, 600s));
}
