#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "controller/app/live_environment.h"
#include "controller/app/messages.h"
#include "controller/journal/memory_store.h"
#include "tests/controller/endpoints.h"
#include "tests/controller/sample_model.h"
#include "tests/support/doctest.h"
#include "transport/control/connection.h"

namespace troupe::test {

/// Lets the reader's thread pass when it is told to.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(60), [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

/// A service room in front of one actor that never says hello: what is accepted stays in the queue.
struct ServiceFixture : Endpoints {
  bool with_journal;
  std::chrono::milliseconds accept_within;
  std::size_t most_queued;
  cluster::Members members{"secret"};
  jobs::JobTable table{most_queued, 8};
  cluster::LiveEnvironment environment{io, server, blob_server, blobs, {}};
  cluster::Deployments deployments{environment, members};
  recorder::Recorder recorder;
  jobs::JobRunner runner{{.environment = environment,
                          .members = members,
                          .deployments = deployments,
                          .table = table,
                          .options = {.rejoin_deadline = 3},
                          .recorder = &recorder}};
  service::FailureLog failures{recorder, [] { return 0.0; }};
  Gate gate;
  service::JobPlanner::Make plan_job = service::plan_job;  // called on the planner's thread
  journal::MemoryStore store;
  std::string disk_error;                    // why nothing can be written
  std::deque<std::function<void()>> writes;  // under way
  journal::Journal journal{[this](journal::Change change, journal::Journal::Done done) {
                             writes.push_back([this, change, done] {
                               if (disk_error.empty()) store.apply(change);
                               if (!done) return;
                               done(disk_error.empty() ? std::nullopt : std::optional(disk_error));
                             });
                           },
                           [this](control::BlobId id) { return blobs.bytes(id); },
                           journal::Calendar{0}};
  service::ClientService clients{
      {},
      {.io = io,
       .server = server,
       .blob_server = blob_server,
       .blobs = blobs,
       .members = members,
       .deployments = deployments,
       .table = table,
       .runner = runner,
       .failures = failures,
       .now = [] { return 0.0; },
       .stop = [] {},
       .read_model =
           [this](const std::string& folder) {
             gate.wait();
             if (folder == "bad") throw std::runtime_error("[read_model] bad: no such folder");
             return test::sample_model();
           },
       .plan_job = [this](const service::PlanInput& input) { return plan_job(input); },
       .journal = with_journal ? &journal : nullptr,
       .recorder = &recorder,
       .grace = std::chrono::seconds(3),
       .accept_within = accept_within}};
  service::Introspection desk{desk_tools("")};
  service::Introspection* introspection = nullptr;
  std::unique_ptr<control::Connection> client = connect();

  service::Introspection::Tools desk_tools(const std::string& log_folder) {
    return {.server = server,
            .environment = environment,
            .members = members,
            .table = table,
            .runner = runner,
            .recorder = recorder,
            .signal = [](auto, int) { return false; },
            .lines = [](auto, auto, auto) { return wire::LogLines{}; },
            .host = {},
            .log_folder = log_folder};
  }

  explicit ServiceFixture(bool journaled = false,
                          std::chrono::milliseconds within = std::chrono::seconds(25),
                          std::size_t queued = 4)
      : with_journal(journaled), accept_within(within), most_queued(queued) {
    test::sample_model();  // read here, not on the reader's thread
    members.spawned(members.add("here", "cpu").id, 77, 1);
    use(desk);
    runner.listen(clients);
    server.on_message([this](auto peer, const auto& header, auto payload) {
      cluster::deliver({.server = &server, .introspection = introspection, .clients = &clients},
                       cluster::Sender::client, {peer, header}, payload);
    });
    server.on_lost([this](auto peer, const auto& loss) { clients.client_lost(peer, loss); });
  }
  ~ServiceFixture() { gate.open(); }

  void use(service::Introspection& from_now_on) {
    introspection = &from_now_on;
    clients.use(from_now_on);
  }

  std::unique_ptr<control::Connection> connect() {
    control::ConnectionOptions options;
    options.endpoint = server.endpoint();
    options.hello.role = PeerRole::client;
    options.welcome_deadline = std::chrono::seconds(60);
    auto connection = std::make_unique<control::Connection>(io, options);
    connection->start([](const auto&) {}, [](const auto& failure) { FAIL(failure.what); });
    REQUIRE(until([&] { return connection->connected(); }));
    return connection;
  }
  /// Returns how the client's process connects its blob channel.
  control::ConnectionOptions blob_options() const {
    control::ConnectionOptions options;
    options.endpoint = blob_server.endpoint();
    options.hello.role = PeerRole::client;
    options.incarnation = client->incarnation();
    return options;
  }
  /// The answer as text: the job's number, or why there is none.
  void submit(control::Connection& from, const std::string& model, std::vector<std::string>& said,
              std::uint64_t key = 0) {
    wire::SubmitJob submission;
    submission.key = key;
    submission.job.model = model;
    submission.job.request.prompts = {"x"};
    from.request(submission, std::chrono::seconds(60), [&said](const control::Reply& reply) {
      said.push_back(reply ? std::to_string(reply.as<wire::JobAccepted>().job)
                           : reply.failure().what);
    });
  }
  /// A job comes in and its client is told so; the model's reader must be open.
  void take_in(control::Connection& from, std::uint64_t key = 0) {
    std::vector<std::string> said;
    const auto written = writes.size();
    submit(from, "a", said, key);
    if (with_journal) {
      REQUIRE(until([&] { return writes.size() > written; }));
      writes[written]();
    }
    REQUIRE(until([&] { return said.size() == 1; }));
  }
};

}  // namespace troupe::test
