#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
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

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

TEST_CASE("a controller that stood still: a client that waits finds its job again") {
  JournaledController controller;
  auto client = controller.client();
  auto inspector = controller.inspector();
  auto job = job_of(12);
  job.detached = false;
  std::mutex mutex;
  std::string said;
  hold_actor(inspector, 0, {.step = 2});
  const auto id = client.submit(job, [&](const Progress& progress) {
    const std::lock_guard lock(mutex);
    for (const auto& warning : progress.warnings)
      said += warning + "\n";
  });
  if (!id) FAIL(id.error().what);
  held_actor(client, 0);
  controller.signal(SIGSTOP);
  std::optional<Result<JobResult>> ended;
  std::thread waiting([&] { ended.emplace(client.wait(id.value(), 600s)); });
  const bool noticed = eventually(kPatience, [&] {
    const std::lock_guard lock(mutex);
    return said.find("no sign of life") != std::string::npos;
  });
  controller.signal(SIGCONT);
  // An actor that took the silence for an end is gone, and its hold with it.
  auto other = controller.inspector();
  (void)other.inject(0, Fault::release);
  waiting.join();
  CHECK(noticed);
  INFO(said);
  if (!*ended) FAIL(ended->error().what);
  CHECK(ended->value().pictures.size() == 1);
  // It is said once, and names the place once. An actor that took the silence for an end, too, has
  // a line of its own.
  const std::string lost = "the connection is lost: ";
  const auto begin = said.find(lost);
  CHECK(begin == said.rfind(lost));
  const auto line = said.substr(begin, said.find('\n', begin) - begin);
  CHECK(line.find(controller.endpoint()) != std::string::npos);
  CHECK(line.find(controller.endpoint()) == line.rfind(controller.endpoint()));
}

TEST_CASE("clients that hand in while controllers come and go get each of their jobs, once") {
  JournaledController controller;
  std::mutex mutex;
  std::vector<std::uint64_t> ids;
  const auto accepted = [&] {
    const std::lock_guard lock(mutex);
    return ids.size();
  };
  std::atomic<int> blows = 0;
  std::vector<std::thread> hands;
  for (int hand = 0; hand < 2; ++hand) {
    hands.emplace_back([&, hand, client = controller.client()]() mutable {
      for (int i = 0; i < 8; ++i) {
        // Two by each hand before the first blow, and two while each controller goes and comes.
        if (!eventually(2 * kPatience, [&] { return i / 2 <= blows; })) return;
        auto job = tiny_job(2);
        job.detached = true;
        job.request.seed = static_cast<std::uint64_t>(100 * hand + i);
        const auto id = client.submit(job);
        const std::lock_guard lock(mutex);
        CHECK_MESSAGE(id.ok(), (id ? std::string() : id.error().what));
        if (id) ids.push_back(id.value());
      }
    });
  }
  for (int blow = 0; blow < 4; ++blow) {
    const auto begun = static_cast<std::size_t>(4 * blow + 2);
    CHECK(eventually(2 * kPatience, [&] { return accepted() >= begun; }));
    blows = blow + 1;
    controller.blow();
  }
  for (auto& hand : hands)
    hand.join();
  auto client = controller.client();
  for (const auto id : ids)
    result_of(client, id);
  CHECK(ids.size() == 16);
  CHECK(std::set(ids.begin(), ids.end()).size() == ids.size());
  CHECK(client.jobs().value().size() == ids.size());
}

TEST_CASE("a cluster that is stopped keeps its jobs; what was cancelled stays so") {
  JournaledController controller;
  auto client = controller.client();
  const auto undisturbed = run(client, job_of());
  auto inspector = controller.inspector();
  hold_actor(inspector, 0, {.step = 2});  // neither ends before it is looked at
  const auto id = client.submit(job_of()).value();
  const auto unwanted = client.submit(job_of(400)).value();
  held_actor(client, 0);
  REQUIRE(
      eventually(2 * kPatience, [&] { return state_of(client, unwanted) == JobState::running; }));
  REQUIRE(client.cancel(unwanted));
  release_actor(inspector, 0);
  controller.stop();
  controller.start();
  auto other = controller.client();
  const auto result = result_of(other, id);
  check_same(result, undisturbed);
  for (const auto& recovery : report_of(result)["recoveries"])
    CHECK(recovery["cause"] == "its cluster was stopped");
  REQUIRE(eventually(kPatience, [&] { return state_of(other, unwanted) == JobState::cancelled; }));
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
  REQUIRE(eventually(2 * kPatience,
                     [&] { return controller.out().find("ready") != std::string::npos; }));
  auto inspector = take(Inspector::connect(endpoint, kPatience), "inspect");
  hold_actor(inspector, 0, {.step = 2});
  const auto id = client->submit(tiny_job(900));
  REQUIRE(id);
  held_actor(*client, 0);
  controller.signal(SIGKILL);
  const auto result = client->wait(id.value(), 2 * kPatience);
  REQUIRE_FALSE(result);
  CHECK(result.error().code == ErrorCode::lost);
}
