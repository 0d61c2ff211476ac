#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "tests/process/support/house.h"
#include "tests/process/support/journal_jobs.h"
#include "tests/process/support/processes.h"
#include "tests/process/support/theatre.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

TEST_CASE("kill -9 of the controller in any phase: the job ends bit-identical, its client waits") {
  House house;
  auto client = house.client();
  auto job = job_of();
  job.request.height = job.request.width = 512;  // long phases
  const auto undisturbed = run(client, job);
  for (const auto& [phase, step] : std::vector<std::pair<std::string, int>>{
           {"loading", 0}, {"text", 0}, {"denoising", 2}, {"denoising", 8}, {"decoding", 12}}) {
    CAPTURE(phase);
    CAPTURE(step);
    std::uint64_t id = 0;
    nlohmann::json report;
    Clock::time_point before;
    // Again, where the job had ended before the blow.
    for (int attempt = 0; attempt < 5 && (report.empty() || report["recoveries"].empty());
         ++attempt) {
      if (phase == "loading") house.blow();  // nothing is loaded yet
      Watch watch{phase, step};
      auto submission = job;
      submission.detached = step == 2;  // else its client comes back to it
      const auto accepted = client.submit(submission, watch.on_progress());
      if (!accepted) FAIL(accepted.error().what);
      id = accepted.value();
      REQUIRE(watch.reached());
      before = Clock::now();
      house.kill();
      house.start();
      const auto ended = client.wait(id, 600s);
      if (!ended) FAIL(ended.error().what << "; controller: " << house.out() << house.err());
      check_same(ended.value(), undisturbed);
      report = report_of(ended.value());
    }
    CHECK(report["job"] == id);
    REQUIRE(report["recoveries"].size() == 1);
    const auto& recovery = report["recoveries"][0];
    CHECK(recovery["cause"].get<std::string>().find("ended without a word") != std::string::npos);
    // Where it goes on is the disk's affair: it may be behind.
    MESSAGE(phase << " " << step << ": went on at step " << recovery["step"] << ", at its end "
                  << std::chrono::duration<double>(Clock::now() - before).count()
                  << " s after the blow");
  }
}

TEST_CASE(
    "kill -9 of the controller while a result is written: it is there, or the job is done again") {
  House house;
  auto client = house.client();
  auto job = job_of(4);
  job.request.height = job.request.width = 512;  // some time to decode
  const auto undisturbed = run(client, job);
  const std::string log = house.journal() + "/journal.db-wal";
  int done = 0, again = 0;
  for (int round = 0; round < 2; ++round) {
    Watch watch{"decoding", 4};
    const auto id = client.submit(job, watch.on_progress());
    REQUIRE(id);
    REQUIRE(watch.reached());
    std::this_thread::sleep_for(30ms);  // the phase itself is written
    const auto before = std::filesystem::last_write_time(log);
    // The next thing to be written is its end.
    REQUIRE(eventually(kPatience, [&] { return std::filesystem::last_write_time(log) != before; }));
    house.blow();
    const auto ended = client.wait(id.value(), 600s);
    if (!ended) FAIL(ended.error().what);
    check_same(ended.value(), undisturbed);
    CHECK(ended.value().pictures[0].png == undisturbed.pictures[0].png);
    const auto recoveries = report_of(ended.value())["recoveries"].size();
    CHECK(recoveries <= 1);
    ++(recoveries == 0 ? done : again);
    auto other = house.client();
    CHECK(state_of(other, id.value()) == "succeeded");
  }
  MESSAGE("of 2 ends " << done << " were written, " << again << " came about again");
}

TEST_CASE("how long a job stands still when its controller is killed and started again at once") {
  // TROUPE_RESTARTS=N for more than a glimpse.
  const char* rounds_text = std::getenv("TROUPE_RESTARTS");
  const int rounds = rounds_text ? std::atoi(rounds_text) : 2;
  House house;
  REQUIRE(house.ready());
  const auto id = house.client().submit(job_of(900)).value();
  std::vector<double> answers, runs;
  for (int round = 0; round < rounds; ++round) {
    auto client = house.client();
    const auto step = [&] { return client.jobs().value().at(0).step; };
    const int from = step();
    // The disk may be seconds behind.
    const auto begun = Clock::now();
    REQUIRE(eventually(2 * kPatience, [&] {
      return state_of(client, id) == "running" && step() > from + 60 && seconds_since(begun) > 4;
    }));
    const auto blow = Clock::now();
    const auto since = [&] { return std::chrono::duration<double>(Clock::now() - blow).count(); };
    house.kill();
    house.start();
    auto next = house.client();
    answers.push_back(since());
    REQUIRE(eventually(2 * kPatience, [&] { return state_of(next, id) == "running"; }));
    runs.push_back(since());
    // From its last boundary, not from where it was found a round before.
    CHECK(next.jobs().value().at(0).step > from);
  }
  for (auto* figures : {&answers, &runs}) {
    std::sort(figures->begin(), figures->end());
    MESSAGE(std::string(figures == &runs ? "running again" : "answering again")
            << ": median " << (*figures)[figures->size() / 2] << " s, worst " << figures->back()
            << " s of " << rounds);
  }
  CHECK(house.client().cancel(id));
}

TEST_CASE("kill -9 while jobs wait and after one has ended: nothing is lost, nothing done twice") {
  House house({"--jobs-together", "1"});
  auto client = house.client();
  const auto done = run(client, job_of(4));
  std::vector<std::uint64_t> waiting;
  for (int seed = 0; seed < 3; ++seed) {
    auto job = job_of(waiting.empty() ? 300 : 8);  // the first still runs when all are accepted
    job.request.seed = static_cast<std::uint64_t>(seed);
    waiting.push_back(client.submit(job).value());
  }
  REQUIRE(eventually(2 * kPatience, [&] { return state_of(client, waiting[0]) == "running"; }));
  CHECK(state_of(client, waiting[2]) == "queued");
  house.blow();
  auto other = house.client();
  CHECK(state_of(other, done.job) == "succeeded");
  const auto again = result_of(other, done.job);
  CHECK(again.report == done.report);
  CHECK(again.pictures[0].png == done.pictures[0].png);
  for (const auto id : waiting) {
    const auto result = result_of(other, id);
    CHECK(report_of(result)["recoveries"].size() <= 1);
  }
  CHECK(report_of(result_of(other, waiting[2]))["recoveries"].empty());
  CHECK(run(other, job_of(2)).job == waiting[2] + 1);
  CHECK(other.jobs().value().size() == 5);
}

TEST_CASE("a stale job that outlives its controller says which step it filled anew") {
  House house;
  auto client = house.client();
  const auto job = job_of(80, "pipefusion");
  JobResult result;
  nlohmann::json refills;
  // Again, where the job had ended before the blow or nothing of it had come to the disk.
  for (int attempt = 0; attempt < 5 && refills.empty(); ++attempt) {
    Watch watch{"denoising", 50};
    const auto id = client.submit(job, watch.on_progress());
    REQUIRE(watch.reached());
    house.blow();
    result = result_of(client, id.value());
    refills = report_of(result)["request"]["refill_steps"];
  }
  REQUIRE(refills.size() == 1);
  CHECK(refills[0] >= 1);
  auto again = job;
  again.request.refill_steps = refills.get<std::vector<int>>();
  check_same(run(client, again), result);
}

TEST_CASE("a journal that cannot be used: one line, exit code 1") {
  House house;
  REQUIRE(house.ready());
  Command second({"start", "--listen", house.endpoint() + "2", "--journal", house.journal()},
                 house.folder());
  CHECK(second.wait(kPatience) == 1);
  const auto err = second.err();
  INFO(err);
  CHECK(err.starts_with("troupe: --journal " + house.journal() +
                        ": is in use by another controller (pid "));
  CHECK(std::count(err.begin(), err.end(), '\n') == 1);
}
