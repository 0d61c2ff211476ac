#include "controller/gateway/gateway.h"

#include <boost/asio/io_context.hpp>
#include <condition_variable>
#include <mutex>

#include "controller/cluster/live_outside.h"
#include "controller/gateway/init_image.h"
#include "controller/journal/memory_store.h"
#include "tests/controller/sample_model.h"
#include "tests/support/doctest.h"
#include "transport/control/blob_channel.h"
#include "transport/control/connection.h"
#include "transport/control/endpoint.h"

using namespace troupe;

namespace {

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
    changed_.wait_for(lock, std::chrono::seconds(10), [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

/// A gateway in front of one actor that never says hello: what is accepted stays in the queue.
struct Hall {
  bool with_journal;
  std::chrono::milliseconds accept_within;
  boost::asio::io_context io{1};
  control::IpcFolder folder;
  control::BlobStore blobs;
  control::Server server{io, at("control")};
  control::BlobServer blob_server{io, at("blobs"), blobs};
  cluster::Members members{"secret"};
  jobs::JobTable table{4, 8};
  cluster::LiveOutside outside{io, server, blob_server, blobs, {}};
  cluster::Deployments deployments{outside, members, {}};
  jobs::JobRunner runner{{.outside = outside,
                          .members = members,
                          .deployments = deployments,
                          .table = table,
                          .on_progress = [](const auto&, const auto&) {},
                          .on_finished = [](const auto&) {}}};
  Gate gate;
  journal::MemoryStore store;
  std::string disk_error;                     // why nothing can be written
  std::vector<std::function<void()>> writes;  // under way
  journal::Journal journal{[this](journal::Change change, journal::Journal::Done done) {
                             writes.push_back([this, change, done] {
                               if (disk_error.empty()) store.apply(change);
                               if (!done) return;
                               done(disk_error.empty() ? std::nullopt : std::optional(disk_error));
                             });
                           },
                           [this](control::BlobId id) { return blobs.bytes(id); },
                           journal::Calendar{0}};
  gateway::Gateway gateway{{},
                           {.io = io,
                            .server = server,
                            .blob_server = blob_server,
                            .blobs = blobs,
                            .members = members,
                            .deployments = deployments,
                            .table = table,
                            .runner = runner,
                            .now = [] { return 0.0; },
                            .stop = [] {},
                            .read_model =
                                [this](const std::string& folder) {
                                  gate.wait();
                                  if (folder == "bad")
                                    throw std::runtime_error("[read_model] bad: no such folder");
                                  return test::sample_model();
                                },
                            .journal = with_journal ? &journal : nullptr,
                            .grace = std::chrono::milliseconds(300),
                            .accept_within = accept_within}};
  std::unique_ptr<control::Connection> client = connect();

  explicit Hall(bool journaled = false, std::chrono::milliseconds within = std::chrono::seconds(25))
      : with_journal(journaled), accept_within(within) {
    test::sample_model();  // read here, not on the reader's thread
    members.spawned(members.add("here", "cpu").id, 77, 1);
    server.on_message([this](auto peer, const auto& header, auto payload) {
      gateway.on_message(peer, header, payload);
    });
    server.on_lost([this](auto peer, const auto&) { gateway.client_lost(peer); });
  }
  ~Hall() { gate.open(); }

  control::ServerOptions at(const std::string& name) const {
    control::ServerOptions options;
    options.endpoint = folder.endpoint(name);
    return options;
  }
  std::unique_ptr<control::Connection> connect() {
    control::ConnectionOptions options;
    options.endpoint = server.endpoint();
    options.hello.role = "client";
    auto connection = std::make_unique<control::Connection>(io, options);
    connection->start([](const auto&) {}, [](const auto& failure) { FAIL(failure.what); });
    REQUIRE(until([&] { return connection->connected(); }));
    return connection;
  }
  bool until(const std::function<bool()>& holds) {
    const auto end = control::Clock::now() + std::chrono::seconds(10);
    while (!holds() && control::Clock::now() < end)
      io.run_one_for(std::chrono::milliseconds(20));
    return holds();
  }
  /// The answer as text: the job's number, or why there is none.
  void submit(control::Connection& from, const std::string& model, std::vector<std::string>& said,
              std::uint64_t key = 0) {
    wire::SubmitJob submission;
    submission.key = key;
    submission.job.model = model;
    submission.job.request.prompts = {"x"};
    from.request(submission, std::chrono::seconds(20), [&said](const control::Reply& reply) {
      said.push_back(reply ? std::to_string(reply.as<wire::JobAccepted>().job)
                           : reply.failure().what);
    });
  }
};

}  // namespace

TEST_CASE("while a model is read the controller answers others, and jobs keep their order") {
  Hall hall;
  std::vector<std::string> said;
  for (const char* model : {"a", "bad", "b", ""})
    hall.submit(*hall.client, model, said);
  std::optional<std::size_t> listed;
  hall.client->request(wire::ListJobs{}, std::chrono::seconds(5), [&](const control::Reply& reply) {
    listed = reply.as<wire::JobList>().jobs.size();
  });
  REQUIRE(hall.until([&] { return listed.has_value(); }));
  CHECK(*listed == 0);
  CHECK(said == std::vector<std::string>{"model is missing: the cluster was started without one"});
  said.clear();
  hall.gate.open();
  REQUIRE(hall.until([&] { return said.size() == 3; }));
  CHECK(said == std::vector<std::string>{"1", "[read_model] bad: no such folder", "2"});
  CHECK(hall.table.find(1)->spec.model == "a");
  CHECK(hall.table.find(1)->fingerprint != 0);
  CHECK(hall.table.find(1)->fingerprint != hall.table.find(2)->fingerprint);
}

TEST_CASE("a client that goes while its model is read leaves no job behind") {
  Hall hall;
  std::vector<std::string> said;
  auto other = hall.connect();
  hall.submit(*other, "a", said);
  hall.submit(*hall.client, "b", said);
  bool asked = false;
  other->request(wire::ListJobs{}, std::chrono::seconds(5), [&](const auto&) { asked = true; });
  REQUIRE(hall.until([&] { return asked; }));
  other->close();
  said.clear();
  REQUIRE(hall.until([&] { return hall.server.peers() == 1; }));
  hall.gate.open();
  REQUIRE(hall.until([&] { return !said.empty(); }));
  CHECK(said == std::vector<std::string>{"1"});
  CHECK(hall.table.find(1)->spec.model == "b");
}

TEST_CASE("a cluster that stops takes in no job whose model was being read") {
  Hall hall;
  std::vector<std::string> said;
  hall.submit(*hall.client, "a", said);
  bool asked = false;
  hall.client->request(wire::ListJobs{}, std::chrono::seconds(5),
                       [&](const auto&) { asked = true; });
  REQUIRE(hall.until([&] { return asked; }));
  hall.gateway.close("the cluster is stopping");
  hall.gate.open();
  REQUIRE(hall.until([&] { return !said.empty(); }));
  CHECK(said == std::vector<std::string>{"the cluster is stopping"});
  CHECK(hall.table.all().empty());
}

TEST_CASE("readings are bounded: more than 64 that wait are refused") {
  Hall hall;
  std::vector<std::string> said;
  for (int i = 0; i < 66; ++i)
    hall.submit(*hall.client, "bad", said);
  REQUIRE(hall.until([&] { return said.size() == 2; }));
  CHECK(said[0] == "64 jobs wait for their models' folders to be read: try again later");
  hall.gate.open();
  CHECK(hall.until([&] { return said.size() == 66; }));
}

TEST_CASE("with a journal a job is answered when it is kept, and refused when it cannot be") {
  Hall hall(/*journaled=*/true);
  hall.gate.open();
  std::vector<std::string> said;
  hall.submit(*hall.client, "a", said);
  REQUIRE(hall.until([&] { return hall.writes.size() == 1; }));
  CHECK(said.empty());
  CHECK(hall.table.queue().empty());
  hall.writes[0]();
  REQUIRE(hall.until([&] { return said.size() == 1; }));
  CHECK(said[0] == "1");
  CHECK(hall.table.queue().size() == 1);
  hall.disk_error = "[journal] the disk is full";
  hall.submit(*hall.client, "a", said);
  REQUIRE(hall.until([&] { return hall.writes.size() == 2; }));
  hall.writes[1]();
  REQUIRE(hall.until([&] { return said.size() == 2; }));
  CHECK(said[1] == hall.disk_error);
  CHECK(hall.table.find(2) == nullptr);
  CHECK(hall.store.load().size() == 1);
}

TEST_CASE("what is handed in again under its key is the same job, answered or not") {
  Hall hall(/*journaled=*/true);
  hall.gate.open();
  std::vector<std::string> said;
  hall.submit(*hall.client, "a", said, 17);
  hall.submit(*hall.client, "a", said, 17);
  REQUIRE(hall.until([&] { return hall.writes.size() == 1; }));
  hall.submit(*hall.client, "a", said, 17);
  bool asked = false;
  hall.client->request(wire::ListJobs{}, std::chrono::seconds(5),
                       [&](const auto&) { asked = true; });
  REQUIRE(hall.until([&] { return asked; }));
  CHECK(said.empty());
  hall.writes[0]();
  REQUIRE(hall.until([&] { return said.size() == 3; }));
  hall.submit(*hall.client, "a", said, 17);
  hall.submit(*hall.client, "a", said, 18);
  REQUIRE(hall.until([&] { return hall.writes.size() == 2; }));
  hall.writes[1]();
  REQUIRE(hall.until([&] { return said.size() == 5; }));
  CHECK(said == std::vector<std::string>{"1", "1", "1", "1", "2"});
}

TEST_CASE("after a restart: who does not come back loses its job, who comes back keeps it") {
  journal::MemoryStore store;
  {
    Hall before(/*journaled=*/true);
    before.gate.open();
    std::vector<std::string> said;
    for (const std::uint64_t key : {1, 2})
      before.submit(*before.client, "a", said, key);
    REQUIRE(before.until([&] { return before.writes.size() == 2; }));
    for (auto& write : before.writes)
      write();
    REQUIRE(before.until([&] { return said.size() == 2; }));
    store = before.store;
  }
  Hall hall(/*journaled=*/true);
  hall.gate.open();
  const auto revival = journal::revive(
      store.load(), store.past(), {0},
      [&](control::BlobBytes bytes) { return hall.blobs.add(std::move(bytes)); }, hall.table);
  hall.gateway.take_up(revival, "killed");
  bool back = false;
  hall.client->request(wire::WaitJob{2}, std::chrono::seconds(5),
                       [&](const auto&) { back = true; });
  REQUIRE(hall.until([&] { return back; }));
  REQUIRE(hall.until([&] { return hall.table.find(1)->state == wire::JobState::cancelled; }));
  CHECK(hall.table.find(1)->failure.what ==
        "its client has not come back after its controller's restart");
  CHECK(hall.table.find(2)->state == wire::JobState::queued);
  CHECK(hall.until([&] { return hall.table.queue() == std::vector<jobs::JobId>{2}; }));
}

TEST_CASE("after a restart a job waits for a host with memory enough to join again") {
  journal::MemoryStore store;
  {
    Hall before(/*journaled=*/true);
    before.gate.open();
    std::vector<std::string> said;
    before.submit(*before.client, "a", said, 1);
    REQUIRE(before.until([&] { return before.writes.size() == 1; }));
    before.writes[0]();
    REQUIRE(before.until([&] { return said.size() == 1; }));
    store = before.store;
  }
  for (const bool joins : {true, false}) {
    CAPTURE(joins);
    Hall hall(/*journaled=*/true);
    hall.gate.open();
    auto revival = journal::revive(
        store.load(), store.past(), {0},
        [&](control::BlobBytes bytes) { return hall.blobs.add(std::move(bytes)); }, hall.table);
    auto& job = *hall.table.find(1);
    job.detached = true;
    hall.gateway.take_up(revival, "killed");
    REQUIRE(hall.until([&] { return job.model != nullptr; }));
    // Its only actor has not said yet how much it may hold.
    CHECK(hall.table.queue().empty());
    hall.members.at(0).memory_limit = 1000;
    hall.until([&, end = control::Clock::now() + std::chrono::milliseconds(220)] {
      return control::Clock::now() > end;
    });
    CHECK(job.state == wire::JobState::queued);
    if (joins) hall.members.add("there", "cpu", /*remote=*/true).memory_limit = 1ull << 40;
    REQUIRE(hall.until(
        [&] { return !hall.table.queue().empty() || job.state == wire::JobState::failed; }));
    CHECK(job.state == (joins ? wire::JobState::queued : wire::JobState::failed));
    if (!joins) CHECK(job.failure.code == wire::FailureCode::out_of_memory);
  }
}

TEST_CASE("degrees picked for actors that can hold none are refused for memory, with a remedy") {
  Hall hall;
  hall.gate.open();
  hall.members.at(0).memory_limit = 1000;
  wire::SubmitJob submission;
  submission.job.model = "a";
  submission.job.request.prompts = {"x"};
  submission.job.parallelism.automatic = true;
  std::optional<wire::Failure> failure;
  hall.client->request(submission, std::chrono::seconds(20), [&](const control::Reply& reply) {
    failure = reply ? wire::Failure{} : reply.failure();
  });
  REQUIRE(hall.until([&] { return failure.has_value(); }));
  CHECK(failure->code == wire::FailureCode::out_of_memory);
  CHECK(failure->what.starts_with("[memory] rank 0 needs "));
  CHECK(failure->what.find("actor 0 may hold 1 kB: no pp, tp") != std::string::npos);
}

TEST_CASE("weights of a type that no actor's device has are refused before anything loads") {
  Hall hall;
  hall.gate.open();
  const auto answer = [&](const std::string& type) {
    wire::SubmitJob submission;
    submission.job.model = "a";
    submission.job.request.prompts = {"x"};
    submission.job.request.weight_dtype = type;
    std::string said;
    hall.client->request(submission, std::chrono::seconds(20), [&](const control::Reply& reply) {
      said = reply ? "accepted" : reply.failure().what;
    });
    REQUIRE(hall.until([&] { return !said.empty(); }));
    return said;
  };
  CHECK(answer("int8") == "accepted");
  CHECK(answer("fp8").starts_with("[weights] fp8 needs a GPU of compute capability 8.9, and "));
  hall.members.add("there", "cuda:0", /*remote=*/true);
  CHECK(answer("fp8") == "accepted");
  hall.members.at(0).draining = true;
  CHECK(answer("int8").starts_with("[weights] int8 is for actors on the CPU, and "));
}

TEST_CASE("a job whose model is gone after a restart fails, and says why") {
  journal::MemoryStore store;
  Hall hall(/*journaled=*/true);
  hall.gate.open();
  jobs::JobEntry job;
  job.id = 4;
  job.spec.model = "bad";
  job.spec.request.prompts = {"x"};
  job.phase = "denoising";
  job.state = wire::JobState::running;
  job.detached = true;
  hall.table.restore(job);
  hall.gateway.take_up({.to_plan = {4}, .cancelled = {}}, "killed");
  REQUIRE(hall.until([&] { return hall.table.find(4)->state == wire::JobState::failed; }));
  CHECK(hall.table.find(4)->failure.what ==
        "killed, and the job cannot go on: [read_model] bad: no such folder");
}

TEST_CASE("with a journal a job goes on when its client is back before its old link is given up") {
  for (const bool journaled : {true, false}) {
    CAPTURE(journaled);
    Hall hall(journaled);
    hall.gate.open();
    auto first = hall.connect();
    std::vector<std::string> said;
    hall.submit(*first, "a", said);
    if (journaled) {
      REQUIRE(hall.until([&] { return hall.writes.size() == 1; }));
      hall.writes[0]();
    }
    REQUIRE(hall.until([&] { return said.size() == 1; }));
    auto second = hall.connect();
    bool back = false;
    second->request(wire::WaitJob{1}, std::chrono::seconds(5), [&](const auto&) { back = true; });
    REQUIRE(hall.until([&] { return back; }));
    const auto& job = *hall.table.find(1);
    const auto cancelled = [&] { return job.state == wire::JobState::cancelled; };
    const auto owner = job.owner;
    first->close();
    if (journaled) {
      REQUIRE(hall.until([&] { return job.owner != owner; }));
      CHECK(job.state == wire::JobState::queued);
      second->close();
    }
    REQUIRE(hall.until(cancelled));
    CHECK(job.failure.what == "its client is gone");
  }
}

TEST_CASE("the time for accepting a job is one: reading its model and writing it down together") {
  using std::chrono::milliseconds;
  for (const bool late : {true, false}) {
    CAPTURE(late);
    Hall hall(/*journaled=*/true, late ? milliseconds(1500) : milliseconds(20'000));
    std::vector<std::string> said;
    const auto pass = [&](milliseconds time) {
      const auto end = control::Clock::now() + time;
      hall.until([&] { return control::Clock::now() > end; });
    };
    hall.submit(*hall.client, "a", said);
    pass(milliseconds(900));
    hall.gate.open();
    REQUIRE(hall.until([&] { return hall.writes.size() == 1; }));
    pass(milliseconds(800));
    hall.writes[0]();
    REQUIRE(hall.until([&] { return said.size() == 1; }));
    CHECK(hall.table.find(1)->state == (late ? wire::JobState::cancelled : wire::JobState::queued));
    if (late) CHECK(hall.table.find(1)->failure.what == "it was accepted too late for its client");
  }
}

TEST_CASE("a picture to start from is looked at before a job is made of it") {
  const auto png = [](std::uint32_t width, std::uint32_t height) {
    std::string bytes("\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR", 16);
    for (const auto number : {width, height})
      for (int shift = 24; shift >= 0; shift -= 8)
        bytes.push_back(static_cast<char>(number >> shift & 0xff));
    return bytes + std::string(9, 'x');
  };
  using gateway::wrong_with_init_image;
  CHECK(wrong_with_init_image(png(1, 1)).empty());
  CHECK(wrong_with_init_image(png(1 << 14, 1 << 14)).empty());
  CHECK(wrong_with_init_image(png((1 << 14) + 1, 1 << 14)) ==
        "init image has 16385 x 16384 pixels: from 1 to 268435456 are taken");
  CHECK(
      wrong_with_init_image(png(0xffffffff, 0xffffffff)).starts_with("init image has 4294967295"));
  CHECK(wrong_with_init_image(png(0, 7)).starts_with("init image has 0 x 7 pixels"));
  CHECK(wrong_with_init_image(png(1, 1).substr(0, 32)) == "init image is no PNG file");
  CHECK(wrong_with_init_image("\xff\xd8\xff") == "init image is no PNG file");
  CHECK(wrong_with_init_image("") == "init image is no PNG file");

  Hall hall;
  hall.gate.open();
  control::BlobStore own;
  control::ConnectionOptions options;
  options.endpoint = hall.blob_server.endpoint();
  options.hello.role = "client";
  options.incarnation = hall.client->incarnation();
  control::BlobConnection channel(hall.io, options, own);
  channel.start({}, [](const auto& failure) { FAIL(failure.what); });
  const auto refusal = [&](const std::string& bytes, std::uint64_t size) {
    wire::SubmitJob submission;
    submission.job.model = "a";
    submission.job.request.prompts = {"x"};
    submission.job.request.init_image_blob = own.add(bytes);
    submission.job.request.init_image_bytes = size;
    std::optional<wire::Failure> failure;
    hall.client->request(submission, std::chrono::seconds(20), [&](const control::Reply& reply) {
      failure = reply ? wire::Failure{} : reply.failure();
    });
    REQUIRE(hall.until([&] { return failure.has_value(); }));
    CHECK(failure->code == wire::FailureCode::bad_request);
    return failure->what;
  };
  CHECK(refusal("x", (1 << 30) + 1) == "init image has 1073741825 bytes: at most 1073741824");
  CHECK(refusal("no picture", 10) == "init image is no PNG file");
  CHECK(refusal(png(1 << 20, 1 << 20), 33) ==
        "init image has 1048576 x 1048576 pixels: from 1 to 268435456 are taken");
  CHECK(hall.blobs.size() == 0);
  CHECK(hall.table.all().empty());
}
