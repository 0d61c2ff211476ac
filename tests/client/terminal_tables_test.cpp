#include <algorithm>
#include <sstream>
#include <string>

#include "tests/client/fake_controller.h"
#include "tests/client/run_command.h"
#include "tests/support/doctest.h"

using namespace troupe;
using testing::FakeController;

TEST_CASE("of long lists a part is shown, with how much more there is") {
  FakeController controller;
  controller.on(wire::Kind::list_jobs,
                [&](FakeController& c, control::PeerId peer, const wire::Header& header,
                    std::span<const std::byte> payload) {
                  const auto page = wire::decode<wire::ListJobs>(payload);
                  wire::JobList list;
                  list.all = 250;
                  const auto most = page.most == 0 ? wire::kJobsOfPage : page.most;
                  for (auto id = page.skip; id < std::min(list.all, page.skip + most); ++id) {
                    list.jobs.emplace_back().id = id + 1;
                    list.jobs.back().prompt = "a cat";
                  }
                  c.server().reply(peer, header, list);
                });
  controller.on(wire::Kind::get_status, [](FakeController& c, control::PeerId peer,
                                           const wire::Header& header, std::span<const std::byte>) {
    wire::ClusterStatus status;
    status.actors.resize(250);
    c.server().reply(peer, header, status);
  });
  const std::string address = "TROUPE_ADDRESS=" + controller.endpoint();
  const auto shows = [&](const std::string& command, const std::string& text) {
    const auto out = testing::troupe_on_terminal(command, 100, address);
    INFO(out);
    CHECK(out.find(text) != std::string::npos);
  };
  shows("jobs", "200 of 250 jobs; `troupe jobs --skip 200` shows more");
  shows("jobs --limit 20 --skip 30", "20 of 250 jobs; `troupe jobs --skip 50` shows more");
  shows("jobs --skip 300", "no more jobs: there are 250");
  shows("status", "200 of 250 actors; `troupe status --all` shows more");
  const auto whole = testing::troupe_on_terminal("status --all", 100, address);
  CHECK(whole.find(" of 250") == std::string::npos);
}

TEST_CASE("status and jobs fit on a terminal, and say as much as they can there") {
  FakeController controller;
  const std::string cause(300, 'x');
  controller.on(wire::Kind::list_jobs, [&](FakeController& c, control::PeerId peer,
                                           const wire::Header& header, std::span<const std::byte>) {
    wire::JobList list;
    list.jobs.push_back(
        {3, JobState::failed, std::string(60, 'p'), 2, 5, 20, 1.5, "actor 1 died: " + cause});
    c.server().reply(peer, header, list);
  });
  controller.on(wire::Kind::get_status, [](FakeController& c, control::PeerId peer,
                                           const wire::Header& header, std::span<const std::byte>) {
    wire::ClusterStatus status;
    for (std::uint32_t id = 0; id < 4; ++id) {
      wire::ActorRow actor;
      actor.id = id;
      actor.state = ActorState::busy;
      actor.host = "render-node-17";
      actor.pid = 412'345 + id;
      actor.device = "cpu";
      actor.local_rank = static_cast<std::int32_t>(id);
      actor.groups = {{"dp", {0}, 0}, {"cfg", {0, 2}, 1}, {"pp", {2, 3}, 0}};
      actor.doing = "job 3 step 5 patch 1 stage 0";
      actor.memory_bytes = 812'000'000;
      status.actors.push_back(actor);
    }
    status.recent_failures = {"job 3: actor 1 died, " + std::string(40, 'y') + " and " +
                              std::string(90, 'z')};
    c.server().reply(peer, header, status);
  });
  const std::string address = "TROUPE_ADDRESS=" + controller.endpoint();
  const auto longest = [](const std::string& text) {
    std::size_t longest = 0;
    std::istringstream lines(text.substr(text.find("ID ")));
    for (std::string line; std::getline(lines, line);) {
      if (line.empty()) break;
      const auto later_bytes =
          std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) == 0x80; });
      longest = std::max(longest, line.size() - static_cast<std::size_t>(later_bytes));
    }
    return longest;
  };
  const auto status = testing::troupe_on_terminal("status", 80, address);
  INFO(status);
  CHECK(longest(status) <= 80);
  for (const char* word : {"render-node-17", "412345", "412348", "812 MB", "cfg 1/2 [0 2]"})
    CHECK(status.find(word) != std::string::npos);
  CHECK(status.find("dp 0/1") == std::string::npos);
  std::istringstream failures(status.substr(status.find("Recent failures")));
  for (std::string line; std::getline(failures, line);)
    CHECK(line.size() <= 80);
  const auto jobs = testing::troupe_on_terminal("jobs", 80, address);
  INFO(jobs);
  CHECK(longest(jobs) <= 80);
  CHECK(longest(jobs) > 70);
  CHECK(jobs.find("actor 1 died") != std::string::npos);
  CHECK(std::count(jobs.begin(), jobs.end(), '\n') == 3);
  CHECK(jobs.ends_with("… is cut to fit: `troupe jobs ID` shows more of a job\n"));
  auto whole = testing::troupe_on_terminal("jobs 3", 80, address);
  std::erase_if(whole, [](char c) { return c == ' ' || c == '\n'; });
  CHECK(whole.find(cause) != std::string::npos);
  CHECK(jobs.find("PRIO") == std::string::npos);  // nobody has one
  CHECK(jobs.find("CAUSE") != std::string::npos);
  CHECK(testing::troupe_on_terminal("jobs --json", 80, address).find(cause) != std::string::npos);
  CHECK(testing::troupe("jobs", address).out.find(cause) != std::string::npos);
}
