#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "tests/process/support/house.h"
#include "tests/process/support/processes.h"
#include "tests/process/support/theatre.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;

Submission job_of(int steps = 12, const std::string& method = "exact") {
  auto submission = demo_job(steps);
  submission.request.method = method;
  submission.request.num_pipeline_patch = method == "exact" ? 1 : 4;
  submission.parallelism = {.pp = 2};
  submission.detached = true;
  return submission;
}

JobResult result_of(Client& client, std::uint64_t job) {
  auto result = client.wait(job, 600s);
  if (!result) FAIL(result.error().what);
  return std::move(result.value());
}

JobResult run(Client& client, const Submission& submission) {
  const auto job = client.submit(submission);
  if (!job) FAIL(job.error().what);
  return result_of(client, job.value());
}

nlohmann::json report_of(const JobResult& result) {
  return nlohmann::json::parse(result.report);
}

void check_same(const JobResult& one, const JobResult& other) {
  REQUIRE(one.pictures.size() == other.pictures.size());
  CHECK(one.latents->data == other.latents->data);
}

std::string state_of(Client& client, std::uint64_t job) {
  const auto jobs = client.jobs();
  if (!jobs) FAIL(jobs.error().what);
  for (const auto& row : jobs.value()) {
    if (row.id == job) return row.state;
  }
  return "unknown";
}

}  // namespace

TEST_CASE("kill -9 of the controller in any phase: the job ends bit-identical, its client waits") {
  House house;
  auto client = house.client();
  auto job = job_of();
  job.request.height = job.request.width = 512;  // long phases
  const auto undisturbed = run(client, job);
  for (const auto& [phase, step] : std::vector<std::pair<std::string, int>>{
           {"loading", 0}, {"denoising", 2}, {"denoising", 8}, {"decoding", 12}}) {
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

TEST_CASE("a controller that stood still: a client that waits finds its job again") {
  House house;
  auto client = house.client();
  auto job = job_of(120);
  job.detached = false;
  Watch watch{"denoising", 2};
  std::mutex mutex;
  std::string said;
  const auto id = client.submit(job, [&, on = watch.on_progress()](const Progress& progress) {
    on(progress);
    const std::lock_guard lock(mutex);
    for (const auto& warning : progress.warnings)
      said += warning + "\n";
  });
  if (!id) FAIL(id.error().what);
  REQUIRE(watch.reached());
  house.signal(SIGSTOP);
  std::optional<Result<JobResult>> ended;
  std::thread waiting([&] { ended.emplace(client.wait(id.value(), 600s)); });
  const bool noticed = eventually(kPatience, [&] {
    const std::lock_guard lock(mutex);
    return said.find("no sign of life") != std::string::npos;
  });
  house.signal(SIGCONT);
  waiting.join();
  CHECK(noticed);
  INFO(said);
  if (!*ended) FAIL(ended->error().what);
  CHECK(ended->value().pictures.size() == 1);
  CHECK(said.find(house.endpoint()) == said.rfind(house.endpoint()));
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

TEST_CASE("clients that hand in while controllers come and go get each of their jobs, once") {
  House house;
  std::atomic<bool> over = false;
  std::mutex mutex;
  std::vector<std::uint64_t> ids;
  std::vector<std::thread> hands;
  for (int hand = 0; hand < 2; ++hand) {
    hands.emplace_back([&, hand, client = house.client()]() mutable {
      for (int i = 0; i < 8 && !over; ++i) {
        auto job = tiny_job(2);
        job.detached = true;
        job.request.seed = static_cast<std::uint64_t>(100 * hand + i);
        const auto id = client.submit(job);
        const std::lock_guard lock(mutex);
        CHECK_MESSAGE(id.ok(), (id ? std::string() : id.error().what));
        if (id) ids.push_back(id.value());
        std::this_thread::sleep_for(300ms);
      }
    });
  }
  int blows = 0;
  for (; blows < 4; ++blows) {
    REQUIRE(house.ready());
    std::this_thread::sleep_for(std::chrono::milliseconds(300 + 170 * blows));
    house.blow();
  }
  for (auto& hand : hands)
    hand.join();
  auto client = house.client();
  for (const auto id : ids)
    result_of(client, id);
  CHECK(ids.size() == 16);
  CHECK(std::set(ids.begin(), ids.end()).size() == ids.size());
  CHECK(client.jobs().value().size() == ids.size());
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

TEST_CASE("a cluster that is stopped keeps its jobs; what was cancelled stays so") {
  House house;
  auto client = house.client();
  const auto undisturbed = run(client, job_of());
  const auto id = client.submit(job_of()).value();
  const auto unwanted = client.submit(job_of(400)).value();
  REQUIRE(eventually(2 * kPatience, [&] { return state_of(client, unwanted) == "running"; }));
  REQUIRE(client.cancel(unwanted));
  house.stop();
  house.start();
  auto other = house.client();
  const auto result = result_of(other, id);
  check_same(result, undisturbed);
  for (const auto& recovery : report_of(result)["recoveries"])
    CHECK(recovery["cause"] == "its cluster was stopped");
  REQUIRE(eventually(kPatience, [&] { return state_of(other, unwanted) == "cancelled"; }));
}

TEST_CASE("a journal that cannot be used: one line, exit code 1") {
  House house;
  REQUIRE(house.ready());
  Command second({"start", "--listen", house.endpoint() + "2", "--journal", house.journal()},
                 house.folder());
  CHECK(second.wait(kPatience) == 1);
  const auto err = second.err();
  INFO(err);
  CHECK(err.starts_with("troupe: " + house.journal() + ": is in use by another controller (pid "));
  CHECK(std::count(err.begin(), err.end(), '\n') == 1);
}

TEST_CASE("without a journal a client that waits is told that its controller is lost") {
  Scratch scratch;
  const std::string endpoint = "ipc://" + (scratch / "control.sock");
  Command controller({"start", "--actors", "1", "--listen", endpoint}, scratch.path.string());
  std::optional<Client> client;
  REQUIRE(eventually(2 * kPatience, [&] {
    auto made = Client::connect(endpoint);
    if (made) client.emplace(std::move(made.value()));
    return client.has_value();
  }));
  const auto id = client->submit(tiny_job(900));
  REQUIRE(id);
  controller.signal(SIGKILL);
  const auto result = client->wait(id.value(), 2 * kPatience);
  REQUIRE_FALSE(result);
  CHECK(result.error().code == "lost");
}
