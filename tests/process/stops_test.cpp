// Orders in which controller, host and gateway are stopped and started again under load: accepted
// jobs end exactly once, and hosts wait or say why they end.
#include <signal.h>

#include <boost/asio.hpp>
#include <filesystem>
#include <map>
#include <memory>

#include "tests/process/support/journal_jobs.h"
#include "tests/process/support/journaled_controller.h"
#include "tests/support/free_ports.h"
#include "tests/support/text.h"
#include "troupe/inspect.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

enum class Party { controller, host, gateway };
enum class Event { start, term, kill, stop_verb, drain };

struct Step {
  Party party;
  Event event;
};

enum class Outcome {
  succeed,         // all jobs, with the bits of an undisturbed run
  queued_succeed,  // all that waited; the one under way may have failed with its actors
  lost,            // nobody knows of them any more
};

struct Row {
  const char* name;
  bool journal;
  std::vector<Step> steps;
  Outcome outcome;
  /// Output and exit code of the first `troupe join`; no code = it lives.
  std::vector<std::string> host_says;
  std::optional<int> host_code;
};

/// A controller with one actor, a host with another one, and where it is started a gateway: each a
/// process.
class Site {
 public:
  explicit Site(bool journal) : journal_(journal) {
    start(Party::controller);
    start(Party::host);
    REQUIRE(eventually(2 * kPatience, [&] { return ready_actors() == 2; }));
  }

  void start(Party party) {
    std::vector<std::string> words;
    if (party == Party::controller) {
      words = {"start",
               "--actors",
               "1",
               "--listen",
               endpoint_,
               "--model",
               TROUPE_SOURCE_DIR "/examples/demo/model",
               "--jobs-together",
               "1"};
      if (journal_) words.insert(words.end(), {"--journal", scratch_ / "journal"});
    } else if (party == Party::host) {
      words = {"join",   "--connect", endpoint_,          "--actors", "1",
               "--name", "beta",      "--drain-deadline", "600"};
    } else {
      words = {"serve", "--connect", endpoint_, "--http", "127.0.0.1:0"};
    }
    running_[party] = std::make_unique<Command>(words, scratch_.path.string());
    const auto& command = *running_[party];
    if (party == Party::controller) {
      REQUIRE(eventually(2 * kPatience, [&] { return has(command.out(), "ready"); }));
    } else if (party == Party::gateway) {
      REQUIRE(eventually(2 * kPatience, [&] { return has(command.out(), "page "); }));
      REQUIRE(eventually(2 * kPatience,
                         [&] { return ask("GET", "/health").starts_with("HTTP/1.1 200 "); }));
    }
  }
  void act(const Step& step) {
    if (step.event == Event::start) {
      if (step.party == Party::host) hosts_.push_back(std::move(running_[Party::host]));
      return start(step.party);
    }
    auto& command = *running_[step.party];
    if (step.event == Event::drain) return succeeds({"drain", "beta", "--wait", "600"});
    if (step.event == Event::stop_verb)
      succeeds({"stop"});
    else
      command.signal(step.event == Event::term ? SIGTERM : SIGKILL);
    const int code = command.wait(2 * kPatience);
    CHECK(code == (step.event == Event::kill ? 128 + SIGKILL : 0));
  }

  Command& party(Party which) { return *running_[which]; }
  Command& first_host() { return hosts_.empty() ? party(Party::host) : *hosts_.front(); }
  Client client() {
    std::optional<Client> client;
    REQUIRE(eventually(2 * kPatience, [&] {
      auto made = Client::connect(endpoint_);
      if (made) client.emplace(std::move(made.value()));
      return client.has_value();
    }));
    return std::move(*client);
  }
  Inspector inspector() { return take(Inspector::connect(endpoint_, kPatience), "inspect"); }
  std::string metrics() { return inspector().metrics().value(); }
  int ready_actors() {
    int count = 0;
    const auto status = client().status().value();
    for (const auto& actor : status.actors)
      count += can_compute(actor.state);
    return count;
  }
  /// A job handed in over HTTP; its number.
  std::uint64_t paint() {
    const nlohmann::json job = {
        {"prompt", "a red circle"}, {"steps", 4}, {"height", 128}, {"width", 128}, {"pp", 2},
        {"detached", true}};
    const auto answer = ask("POST", "/api/v1/jobs", job.dump());
    INFO(answer);
    const auto at = answer.find("\r\n\r\n");
    REQUIRE(at != std::string::npos);
    // NUMBER-SERIES
    return std::stoull(nlohmann::json::parse(answer.substr(at + 4)).at("id").get<std::string>());
  }

 private:
  void succeeds(std::vector<std::string> words) {
    words.insert(words.end(), {"--connect", endpoint_});
    Command command(words, scratch_.path.string());
    const int code = command.wait(600s);
    INFO(command.err());
    CHECK(code == 0);
  }
  static std::string word_after(const std::string& text, const std::string& before) {
    const auto at = text.find(before);
    REQUIRE(at != std::string::npos);
    const auto from = at + before.size();
    return text.substr(from, text.find_first_of(" \n", from) - from);
  }
  /// The gateway's answer, with its head.
  std::string ask(const std::string& method, const std::string& path,
                  const std::string& body = "") {
    namespace asio = boost::asio;
    const auto url = word_after(party(Party::gateway).out(), "http://127.0.0.1:");
    const auto port = url.substr(0, url.find('/'));
    asio::io_context io;
    asio::ip::tcp::socket socket(io);
    socket.connect(
        {asio::ip::make_address("127.0.0.1"), static_cast<std::uint16_t>(std::stoi(port))});
    asio::write(socket, asio::buffer(method + " " + path + " HTTP/1.1\r\nHost: 127.0.0.1:" + port +
                                     "\r\nContent-Type: application/json\r\nConnection: close\r\n"
                                     "Content-Length: " +
                                     std::to_string(body.size()) + "\r\n\r\n" + body));
    std::string answer;
    boost::system::error_code end;
    asio::read(socket, asio::dynamic_buffer(answer), end);
    return answer;
  }

  Scratch scratch_;
  bool journal_;
  const std::string endpoint_ = endpoint_to_come_back_to();
  std::map<Party, std::unique_ptr<Command>> running_;
  std::vector<std::unique_ptr<Command>> hosts_;  // earlier ones
};

/// Returns the result of a run that nothing disturbs.
const JobResult& undisturbed() {
  static const JobResult result = [] {
    Site site(/*journal=*/false);
    auto client = site.client();
    return run(client, job_of(30));
  }();
  return result;
}

constexpr Party C = Party::controller, H = Party::host, G = Party::gateway;
constexpr Event plus = Event::start, term = Event::term, kill_9 = Event::kill;

const std::vector<Row> kRows = {
    {"controller: SIGTERM",
     true,
     {{C, term}, {C, plus}},
     Outcome::succeed,
     {": it was stopped, and goes on with its jobs when it is started again; waiting for a "
      "controller at "},
     {}},
    {"controller: kill -9", true, {{C, kill_9}, {C, plus}}, Outcome::succeed, {}, {}},
    {"troupe stop, then all anew",
     true,
     {{C, Event::stop_verb}, {C, plus}, {H, plus}},
     Outcome::succeed,
     {"was stopped: this host has left it"},
     0},
    {"controller by SIGTERM, then its host while it waits",
     true,
     {{C, term}, {H, term}, {C, plus}, {H, plus}},
     Outcome::succeed,
     {"this host has left: it was told to"},
     0},
    {"controller and host by kill -9",
     true,
     {{C, kill_9}, {H, kill_9}, {C, plus}, {H, plus}},
     Outcome::succeed,
     {},
     128 + SIGKILL},
    {"host by kill -9, and again at once",
     true,
     {{H, kill_9}, {H, plus}},
     Outcome::queued_succeed,
     {},
     128 + SIGKILL},
    {"host by SIGTERM, and again",
     true,
     {{H, term}, {H, plus}},
     Outcome::succeed,
     {"this host is drained and has left the cluster"},
     0},
    {"host by kill -9, then the controller by SIGTERM",
     true,
     {{H, kill_9}, {C, term}, {C, plus}, {H, plus}},
     Outcome::queued_succeed,
     {},
     128 + SIGKILL},
    {"host by SIGTERM, then the controller by SIGTERM",
     true,
     {{H, term}, {C, term}, {H, plus}, {C, plus}},
     Outcome::succeed,
     {"this host is drained and has left the cluster"},
     0},
    {"drained host by SIGTERM, then the controller",
     true,
     {{H, Event::drain}, {H, term}, {C, term}, {C, plus}, {H, plus}},
     Outcome::succeed,
     {"this host is drained: its actors have left", "this host is drained and has left"},
     0},
    {"gateway by SIGTERM, then the controller",
     true,
     {{G, term}, {C, term}, {C, plus}, {G, plus}},
     Outcome::succeed,
     {},
     {}},
    {"gateway by kill -9, then the controller",
     true,
     {{G, kill_9}, {C, kill_9}, {C, plus}, {G, plus}},
     Outcome::succeed,
     {},
     {}},
    {"without a journal: controller by SIGTERM",
     false,
     {{C, term}, {C, plus}, {H, plus}},
     Outcome::lost,
     {"was stopped: this host has left it"},
     0},
    {"without a journal: host by SIGTERM, and again",
     false,
     {{H, term}, {H, plus}},
     Outcome::succeed,
     {"this host is drained and has left the cluster"},
     0},
    {"without a journal: controller by kill -9",
     false,
     {{C, kill_9}, {C, plus}},
     Outcome::lost,
     {"the controller is lost: "},
     {}},
};

void check_outcome(Site& site, const Row& row, const std::vector<std::uint64_t>& ids,
                   const std::optional<std::uint64_t>& painted) {
  auto client = site.client();
  if (row.outcome == Outcome::lost) {
    CHECK(client.jobs().value().empty());
    REQUIRE(eventually(2 * kPatience, [&] { return site.ready_actors() == 2; }));
    check_same(run(client, job_of(30)), undisturbed());
    return;
  }
  for (const auto id : ids) {
    const auto result = client.wait(id, 600s);
    const bool succeeds = row.outcome == Outcome::succeed || id != ids.front();
    if (succeeds && !result) FAIL_CHECK(result.error().what);
    if (result) check_same(result.value(), undisturbed());
    if (!result) CHECK(has(result.error().what, "beta"));
  }
  if (painted) CHECK(client.wait(*painted, 600s));
  // What ended stays as it is, and nothing is there twice.
  const auto ended = client.jobs().value();
  CHECK(ended.size() == ids.size() + (painted ? 1 : 0));
  if (row.outcome == Outcome::succeed)
    for (const auto& job : ended)
      CHECK(job.state == JobState::succeeded);
  if (!row.journal) return;
  site.act({C, term});
  site.start(C);
  auto next = site.client();
  const auto again = next.jobs().value();
  REQUIRE(again.size() == ended.size());
  for (std::size_t i = 0; i < ended.size(); ++i) {
    CHECK(again[i].id == ended[i].id);
    CHECK(again[i].state == ended[i].state);
    CHECK(again[i].cause == ended[i].cause);
  }
}

}  // namespace

TEST_CASE("stopped in any order and started again: jobs end once, hosts wait or say why they end") {
  for (const auto& row : kRows) {
    SUBCASE(row.name) {
      const auto& expected = undisturbed();
      CHECK(expected.pictures.size() == 1);
      Site site(row.journal);
      std::vector<std::uint64_t> ids;
      std::optional<std::uint64_t> painted;  // over HTTP
      const bool has_gateway =
          std::ranges::any_of(row.steps, [](const auto& step) { return step.party == G; });
      if (has_gateway) site.start(G);
      {
        auto client = site.client();
        auto inspector = site.inspector();
        hold_actor(inspector, 0, {.step = 2});
        for (int i = 0; i < 3; ++i)
          ids.push_back(client.submit(job_of(30)).value());
        if (has_gateway) painted = site.paint();
        held_actor(client, 0);
        // Who is drained waits for the job under way.
        if (row.steps.front().party == H) release_actor(inspector, 0);
      }
      for (const auto& step : row.steps)
        site.act(step);
      check_outcome(site, row, ids, painted);
      auto& host = site.first_host();
      if (row.host_code) CHECK(host.wait(2 * kPatience) == *row.host_code);
      for (const auto& words : row.host_says)
        CHECK(eventually(kPatience, [&] { return has(host.err(), words); }));
      INFO(host.err());
      if (!row.host_code) CHECK(is_alive(host.pid()));
    }
  }
}

TEST_CASE("a controller in the background has a log of its own") {
  Scratch scratch;
  const std::vector<std::string> environment = {"XDG_RUNTIME_DIR=" + scratch.path.string()};
  const auto start = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"start", "--actors", "0", "--detach"});
    Command command(more, scratch.path.string(), environment);
    const int code = command.wait(2 * kPatience);
    INFO(command.err());
    return std::pair(code, code == 0 ? command.out() : command.err());
  };
  const auto stop = [&](const std::string& endpoint) {
    Command command({"stop", "--connect", endpoint}, scratch.path.string(), environment);
    CHECK(command.wait(2 * kPatience) == 0);
  };
  // Both would be "-a-b.sock".
  std::filesystem::create_directory(scratch / "a");
  std::filesystem::permissions(scratch / "a", std::filesystem::perms::owner_all);
  const std::string one = "ipc://" + (scratch / "a-b.sock"),
                    two = "ipc://" + (scratch / "a/b.sock");
  const auto log_of = [](const std::string& out) {
    const auto at = out.find("log       ");
    REQUIRE(at != std::string::npos);
    return out.substr(at, out.find('\n', at) - at);
  };
  const auto first = start({"--listen", one});
  const auto second = start({"--listen", two});
  REQUIRE(first.first == 0);
  REQUIRE(second.first == 0);
  CHECK(has(log_of(first.second), "-a-b.sock-"));
  CHECK(has(log_of(second.second), "-a-b.sock-"));
  CHECK(log_of(first.second) != log_of(second.second));
  stop(two);
  const std::string log = scratch / "own.log";
  CHECK(start({"--listen", two, "--log", log}).first == 0);
  const auto refused = start({"--listen", "ipc://" + (scratch / "three.sock"), "--log", log});
  CHECK(refused.first == 1);
  CHECK(has(refused.second, "--log " + log + ": another controller writes its log there"));
  stop(two);
  CHECK(start({"--listen", two, "--log", log}).first == 0);  // the one before has ended
  stop(two);
  stop(one);
}

TEST_CASE("a host's actors show the next controller no key that it does not know") {
  Scratch scratch;
  const std::string log = scratch / "controller.log";
  const auto start = [&](const std::string& listen) {
    Command command({"start", "--actors", "0", "--listen", listen, "--detach", "--log", log,
                     "--json", "--journal", scratch / "journal"},
                    scratch.path.string());
    REQUIRE(command.wait(2 * kPatience) == 0);
    return nlohmann::json::parse(command.out());
  };
  const auto endpoint = endpoint_to_come_back_to();
  const auto first = start(endpoint);
  Command host({"join", "--connect", endpoint, "--actors", "1", "--name", "beta"},
               scratch.path.string());
  const auto ready = [&] {
    auto client = Client::connect(endpoint);
    const auto status = client ? client.value().status() : Result<ClusterInfo>(client.error());
    return status && !status.value().actors.empty() &&
           status.value().actors.front().state == ActorState::ready;
  };
  REQUIRE(eventually(2 * kPatience, ready));
  const auto actors = actors_of(host.pid());
  REQUIRE(actors.size() == 1);
  // The host notices nothing, so that its actor finds the next controller before it is ended.
  host.signal(SIGSTOP);
  kill(first["pid"].get<pid_t>(), SIGKILL);
  REQUIRE(gone({first["pid"].get<pid_t>()}));
  const auto second = start(endpoint);
  CHECK(eventually(2 * kPatience, [&] { return !is_alive(actors.front()); }));
  host.signal(SIGCONT);
  REQUIRE(eventually(2 * kPatience, ready));
  INFO(read_all(log));
  CHECK_FALSE(has(read_all(log), "does not have this key"));
  kill(second["pid"].get<pid_t>(), SIGTERM);
  CHECK(gone({second["pid"].get<pid_t>()}));
}

TEST_CASE("jobs that wait for their actors after a restart: every view counts them, and says why") {
  Site site(/*journal=*/true);
  std::vector<std::uint64_t> ids;
  {
    auto client = site.client();
    for (int i = 0; i < 2; ++i)
      ids.push_back(client.submit(job_of(900)).value());
  }
  site.act({C, Event::stop_verb});
  site.start(C);
  auto client = site.client();
  const auto waits = [&](const JobInfo& job) {
    return job.state == JobState::queued &&
           job.cause ==
               "waits for 2 actors, for 300 s at most: 1 is here (its "
               "controller was started again)";
  };
  REQUIRE(eventually(2 * kPatience, [&] {
    const auto jobs = client.jobs().value();
    return jobs.size() == 2 && std::ranges::all_of(jobs, waits);
  }));
  CHECK(client.status().value().jobs_queued == 2);
  const auto metrics = site.metrics();
  CHECK(has(metrics, "\ntroupe_queue_length 2\n"));
  CHECK(has(metrics, "\ntroupe_jobs{state=\"queued\"} 2\n"));
  auto inspector = site.inspector();
  hold_actor(inspector, 0, {"step"});  // the job does not end before it is looked at
  site.act({H, plus});
  held_actor(client, 0);
  CHECK(state_of(client, ids.front()) == JobState::running);
  CHECK(client.status().value().jobs_queued == 1);
  for (const auto id : ids)
    CHECK(client.cancel(id));
  for (const auto id : ids)
    REQUIRE(eventually(2 * kPatience, [&] { return state_of(client, id) == JobState::cancelled; }));
  CHECK(client.status().value().jobs_queued == 0);
  CHECK(has(site.metrics(), "\ntroupe_queue_length 0\n"));
}
