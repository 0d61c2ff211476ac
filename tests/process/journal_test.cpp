#include <signal.h>
#include <sys/mount.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/journal_jobs.h"
#include "tests/process/support/journaled_controller.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

TEST_CASE("kill -9 of the controller in any phase: the job ends bit-identical, its client waits") {
  JournaledController controller;
  auto client = controller.client();
  const auto job = job_of();
  const auto undisturbed = run(client, job);
  const std::vector<std::pair<HoldAt, std::uint32_t>> moments = {
      {{"loading"}, 0}, {{"text"}, 0}, {{"step", 2}, 1}, {{"step", 8}, 0}, {{"decode"}, 1}};
  for (const auto& [at, actor] : moments) {
    CAPTURE(at.phase);
    CAPTURE(at.step);
    if (at.phase == "loading") controller.blow();  // nothing is loaded yet
    auto inspector = controller.inspector();
    hold_actor(inspector, actor, at);
    auto submission = job;
    submission.detached = at.step == 2;  // else its client comes back to it
    const auto accepted = client.submit(submission);
    if (!accepted) FAIL(accepted.error().what);
    const auto id = accepted.value();
    held_actor(client, actor);
    controller.settle(client);  // the journal knows that it has begun
    const auto before = Clock::now();
    controller.kill();
    controller.start();
    const auto ended = client.wait(id, 600s);
    if (!ended)
      FAIL(ended.error().what << "; controller: " << controller.out() << controller.err());
    check_same(ended.value(), undisturbed);
    const auto report = report_of(ended.value());
    CHECK(report["job"] == id);
    REQUIRE(report["recoveries"].size() == 1);
    const auto& recovery = report["recoveries"][0];
    CHECK(recovery["cause"].get<std::string>().find("ended without a word") != std::string::npos);
    // Where it goes on is the disk's affair: it may be behind.
    MESSAGE(at.phase << " " << at.step << ": went on at step " << recovery["step"]
                     << ", at its end "
                     << std::chrono::duration<double>(Clock::now() - before).count()
                     << " s after the blow");
  }
}

TEST_CASE(
    "kill -9 of the controller while a result is written: it is there, or the job is done again") {
  JournaledController controller;
  auto client = controller.client();
  const auto undisturbed = run(client, job_of(4));
  const std::string log = controller.journal() + "/journal.db-wal";
  for (const bool written : {false, true}) {
    CAPTURE(written);
    // The controller has the picture and waits for what this actor has to tell.
    auto inspector = controller.inspector();
    hold_actor(inspector, 0, {"ending"});
    const auto id = client.submit(job_of(4));
    REQUIRE(id);
    held_actor(client, 0);
    if (written) {
      // The next thing to be written is its end. Meanwhile the log may be cut.
      controller.settle(client);
      auto size = std::filesystem::file_size(log);
      release_actor(inspector, 0);
      REQUIRE(eventually(kPatience, [&] {
        const auto before = std::exchange(size, std::filesystem::file_size(log));
        return size > before || state_of(client, id.value()) == JobState::succeeded;
      }));
    }
    controller.blow();
    const auto ended = client.wait(id.value(), 600s);
    if (!ended) FAIL(ended.error().what);
    check_same(ended.value(), undisturbed);
    CHECK(ended.value().pictures[0].png == undisturbed.pictures[0].png);
    const auto recoveries = report_of(ended.value())["recoveries"].size();
    CHECK(recoveries <= 1);
    if (!written) CHECK(recoveries == 1);
    auto other = controller.client();
    CHECK(state_of(other, id.value()) == JobState::succeeded);
  }
}

TEST_CASE("how long a job stands still when its controller is killed and started again at once") {
  // TROUPE_RESTARTS=N for more than a glimpse.
  const char* rounds_text = std::getenv("TROUPE_RESTARTS");
  const int rounds = rounds_text ? std::atoi(rounds_text) : 2;
  JournaledController controller;
  // Many pictures, so that the job does not come to its end between two looks at it.
  auto submission = job_of(900);
  submission.request.images_per_prompt = 4;
  auto first = controller.inspector();
  hold_actor(first, 0, {.step = 20});
  const auto id = controller.client().submit(submission).value();
  std::vector<double> answers, runs;
  int kept = 0;
  for (int round = 0; round < rounds; ++round) {
    auto client = controller.client();
    auto inspector = controller.inspector();
    // So that no newer boundary takes the place of the one that is to be written.
    if (round > 0) hold_actor(inspector, 0, {"step"});
    const auto doing = held_actor(client, 0).doing;
    kept = std::stoi(doing.substr(doing.find("step ") + 5));
    REQUIRE(keeps_steps(inspector, id, kept));
    controller.settle(client);
    const auto blow = Clock::now();
    const auto since = [&] { return std::chrono::duration<double>(Clock::now() - blow).count(); };
    controller.kill();
    controller.start();
    auto next = controller.client();
    answers.push_back(since());
    REQUIRE(eventually(2 * kPatience, [&] { return state_of(next, id) == JobState::running; }));
    runs.push_back(since());
    CHECK(next.jobs().value().at(0).step >= kept);
  }
  for (auto* figures : {&answers, &runs}) {
    std::sort(figures->begin(), figures->end());
    MESSAGE(std::string(figures == &runs ? "running again" : "answering again")
            << ": median " << (*figures)[figures->size() / 2] << " s, worst " << figures->back()
            << " s of " << rounds);
  }
  CHECK(controller.client().cancel(id));
}

TEST_CASE("kill -9 while jobs wait and after one has ended: nothing is lost, nothing done twice") {
  JournaledController controller({"--jobs-together", "1"});
  auto client = controller.client();
  const auto done = run(client, job_of(4));
  std::vector<std::uint64_t> waiting;
  auto inspector = controller.inspector();
  hold_actor(inspector, 0, {.step = 2});  // the first still runs when all are accepted
  for (int seed = 0; seed < 3; ++seed) {
    auto job = job_of(8);
    job.request.seed = static_cast<std::uint64_t>(seed);
    waiting.push_back(client.submit(job).value());
  }
  held_actor(client, 0);
  CHECK(state_of(client, waiting[0]) == JobState::running);
  CHECK(state_of(client, waiting[2]) == JobState::queued);
  controller.blow();
  auto other = controller.client();
  CHECK(state_of(other, done.job) == JobState::succeeded);
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
  JournaledController controller;
  auto client = controller.client();
  const auto job = job_of(12, "pipefusion");
  auto inspector = controller.inspector();
  hold_actor(inspector, 0, {.step = 6});
  const auto id = client.submit(job).value();
  held_actor(client, 0);
  REQUIRE(keeps_steps(inspector, id, 6));
  controller.settle(client);
  controller.blow();
  const auto result = result_of(client, id);
  const auto refills = report_of(result)["request"]["refill_steps"];
  REQUIRE(refills.size() == 1);
  CHECK(refills[0] == 6);
  auto again = job;
  again.request.refill_steps = refills.get<std::vector<int>>();
  check_same(run(client, again), result);
}

TEST_CASE(
    "one flipped bit in the journal's log: each accepted job is known, what is lost is named") {
  JournaledController controller({"--jobs-together", "1"});
  const std::string log = controller.journal() + "/journal.db-wal";
  std::vector<std::uint64_t> ids;
  {
    auto client = controller.client();
    for (int i = 0; i < 22; ++i)
      ids.push_back(client.submit(job_of(ids.empty() ? 900 : 4)).value());
  }
  // The first job writes boundaries all the time; now and then the log goes into the database.
  REQUIRE(eventually(kPatience, [&] {
    controller.signal(SIGSTOP);
    if (std::filesystem::file_size(log) > 200) return true;
    controller.signal(SIGCONT);
    return false;
  }));
  controller.kill();
  std::fstream file(log, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(150);
  const auto byte = static_cast<char>(file.get() ^ 1);
  file.seekp(150).put(byte);
  file.close();
  controller.start();
  auto other = controller.client();
  int lost = 0;
  const auto jobs = other.jobs().value();
  for (const auto id : ids) {
    const auto row = std::ranges::find(jobs, id, &JobInfo::id);
    CAPTURE(id);
    REQUIRE(row != jobs.end());
    if (row->state != JobState::failed) continue;
    ++lost;
    CHECK(row->cause.starts_with("[journal] job " + std::to_string(id) + ": "));
  }
  MESSAGE(lost << " of " << ids.size() << " were lost");
  CHECK((lost > 0) == has(controller.err(), " and are listed as failed: "));
  CHECK(other.submit(job_of(2)).value() == ids.back() + 1);
}

namespace {

/// A small disk over a folder, gone at the end.
class SmallDisk {
 public:
  SmallDisk(std::string folder, const char* options) : folder_(std::move(folder)) {
    there_ = mount("small", folder_.c_str(), "tmpfs", 0, options) == 0;
  }
  ~SmallDisk() {
    filling_ = {};
    if (there_) umount2(folder_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool there() const { return there_; }
  /// Fills the disk and keeps it full: logs that are cut make room again.
  void fill() {
    filling_ = std::jthread([file = folder_ + "/filler"](const std::stop_token& end) {
      for (const std::string page(4096, 'x'); !end.stop_requested();
           std::this_thread::sleep_for(1ms)) {
        std::ofstream out(file, std::ios::binary | std::ios::app);
        while (!end.stop_requested() && out.write(page.data(), 4096).flush())
          ;
      }
    });
  }
  void empty() {
    filling_ = {};
    std::filesystem::remove(folder_ + "/filler");
  }

 private:
  std::string folder_;
  bool there_ = false;
  std::jthread filling_;
};

}  // namespace

TEST_CASE("a full disk: an end is told with its truth and comes about once; a controller starts") {
  JournaledController controller;
  REQUIRE(controller.ready());
  controller.stop();
  SmallDisk disk(controller.journal(), "size=3m,mode=0700");
  if (!disk.there()) {
    MESSAGE("left out: nothing can be mounted here");
    return;
  }
  controller.start();
  std::uint64_t id = 0;
  {
    auto client = controller.client();
    auto inspector = controller.inspector();
    hold_actor(inspector, 0, {.step = 2});
    id = client.submit(job_of(30)).value();
    held_actor(client, 0);
    disk.fill();
    release_actor(inspector, 0);
    const auto result = result_of(client, id);
    CHECK(result.pictures.size() == 1);
    const auto warnings = report_of(result)["warnings"].dump();
    INFO(warnings);
    CHECK(has(warnings, "that it has ended is kept, what it ended with is not"));
  }
  controller.kill();
  controller.start();
  INFO(controller.err());
  REQUIRE(controller.ready());
  auto client = controller.client();
  const auto jobs = client.jobs().value();
  for (const auto& row : jobs) {
    CHECK(row.state == JobState::failed);
    CHECK(row.cause == "[journal] job " + std::to_string(id) +
                           ": it had succeeded, and there was no room to keep what it ended with");
  }
  const auto refused = client.submit(job_of(2));
  REQUIRE_FALSE(refused);
  CHECK(has(refused.error().what, "cannot be written: "));
  CHECK(eventually(
      kPatience, [&] { return has(controller.err(), "until that is mended no job is taken in"); }));
  disk.empty();
  std::optional<std::uint64_t> next;
  REQUIRE(eventually(kPatience, [&] {
    if (const auto taken = client.submit(job_of(2))) next = taken.value();
    return next.has_value();
  }));
  CHECK(*next > id);
  CHECK(result_of(client, *next).pictures.size() == 1);
  controller.kill();
}

TEST_CASE("a journal that cannot be used: one line, exit code 1") {
  JournaledController controller;
  REQUIRE(controller.ready());
  Command second(
      {"start", "--listen", controller.endpoint() + "2", "--journal", controller.journal()},
      controller.folder());
  CHECK(second.wait(kPatience) == 1);
  const auto err = second.err();
  INFO(err);
  CHECK(err.starts_with("troupe: --journal " + controller.journal() +
                        ": is in use by another controller (pid "));
  CHECK(std::count(err.begin(), err.end(), '\n') == 1);
}
