#include <filesystem>
#include <thread>

#include "tests/client/fake_controller.h"
#include "tests/support/doctest.h"
#include "troupe/client.h"
#include "troupe/inspect.h"

using namespace troupe;
using namespace std::chrono_literals;
using testing::FakeController;

namespace {

Submission simple_submission() {
  Submission submission;
  submission.request.prompts = {"a red circle"};
  return submission;
}

class Stopwatch {
 public:
  std::chrono::milliseconds elapsed() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                                 begin_);
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// Returns the error of a client at a listener that never answers, after waiting for as long as it
/// was asked to. On a busy machine that may be over before the listener is reached: then the client
/// is asked to wait longer.
Error silence_at(const std::string& endpoint) {
  Error error;
  for (const auto deadline : {300ms, 3000ms, 30000ms}) {
    const Stopwatch watch;
    const auto client = Client::connect(endpoint, deadline, "none");
    REQUIRE_FALSE(client.ok());
    CHECK(watch.elapsed() >= deadline);
    error = client.error();
    if (error.message().find("somebody listens at ") == std::string::npos) continue;
    CHECK(error.message().find("and does not answer (waited " + std::to_string(deadline.count()) +
                               " ms)") != std::string::npos);
    return error;
  }
  FAIL("nobody is said to listen: " << error.message());
  return error;
}

}  // namespace

TEST_CASE("no socket, no listener, no endpoint: each a one-line error, in time") {
  const Stopwatch watch;
  const auto no_socket = Client::connect("ipc:///tmp/troupe-no-such-folder/control.sock", 60s);
  REQUIRE_FALSE(no_socket.ok());
  CHECK(no_socket.error().code == ErrorCode::unreachable);
  CHECK(no_socket.error().message().find("ipc:///tmp/troupe-no-such-folder/control.sock") !=
        std::string::npos);
  CHECK(watch.elapsed() < 30s);  // far from its deadline

  for (const char* endpoint : {"tcp://127.0.0.1:1", "tcp://localhost:1", "tcp://[::1]:1"}) {
    const Stopwatch at_once;
    const auto no_listener = Client::connect(endpoint, 60s);
    REQUIRE_FALSE(no_listener.ok());
    CHECK(no_listener.error().code == ErrorCode::unreachable);
    CHECK(no_listener.error().message().find(endpoint) != std::string::npos);
    CHECK(at_once.elapsed() < 30s);
  }

  for (const char* nonsense : {"control.sock", "http://x:1", "tcp://", "tcp://host", "ipc://"}) {
    const auto bad = Client::connect(nonsense, 300ms);
    REQUIRE_FALSE(bad.ok());
    CHECK(bad.error().code == ErrorCode::bad_request);
    CHECK(bad.error().message().find('\n') == std::string::npos);
  }
}

TEST_CASE("over tcp, by number or name, a controller that is there is reached") {
  boost::asio::io_context io{1};
  control::ServerOptions options;
  options.endpoint = "tcp://127.0.0.1:0";
  auto server = std::make_unique<control::Server>(io, options);
  const std::string port = server->endpoint().substr(server->endpoint().rfind(':'));
  const auto guard = boost::asio::make_work_guard(io);
  std::thread loop([&] { io.run(); });
  for (const char* host : {"127.0.0.1", "localhost"}) {
    const auto client = Client::connect("tcp://" + std::string(host) + port, 60s, "none");
    CHECK(client.ok());
  }
  boost::asio::post(io, [&] {
    server.reset();
    io.stop();
  });
  loop.join();
}

TEST_CASE("a listener over tcp that never answers is waited for as long as was asked") {
  zmq::context_t context;
  zmq::socket_t silent(context, zmq::socket_type::router);
  silent.set(zmq::sockopt::linger, 0);
  silent.bind("tcp://127.0.0.1:0");
  const auto error = silence_at(silent.get(zmq::sockopt::last_endpoint));
  CHECK(error.code == ErrorCode::timeout);
  CHECK(error.message().find("somebody listens at tcp://127.0.0.1:") != std::string::npos);
}

TEST_CASE("a listener that never answers is a timeout: somebody is there") {
  control::IpcFolder folder;
  zmq::context_t context;
  zmq::socket_t silent(context, zmq::socket_type::router);
  silent.set(zmq::sockopt::linger, 0);
  silent.bind(folder.endpoint("control.sock"));
  CHECK(silence_at(folder.endpoint("control.sock")).code == ErrorCode::timeout);
}

TEST_CASE("whoever connects can be stopped, before and while it waits for an answer") {
  control::IpcFolder folder;
  zmq::context_t context;
  zmq::socket_t silent(context, zmq::socket_type::router);
  silent.set(zmq::sockopt::linger, 0);
  silent.set(zmq::sockopt::rcvtimeo, 60'000);
  silent.bind(folder.endpoint("control.sock"));
  silent.bind("tcp://127.0.0.1:0");
  const std::string tcp = silent.get(zmq::sockopt::last_endpoint);
  const Stopwatch watch;
  for (const auto& endpoint : {folder.endpoint("control.sock"), tcp}) {
    for (const bool early : {true, false}) {
      CAPTURE(endpoint);
      std::stop_source stop;
      if (early) stop.request_stop();
      std::thread stopping([&] {
        zmq::message_t hello;
        if (!early && silent.recv(hello)) stop.request_stop();
      });
      const auto client = Client::connect(endpoint, 1h, "none", stop.get_token());
      stopping.join();
      REQUIRE_FALSE(client.ok());
      CHECK(client.error().code == ErrorCode::interrupted);
      CHECK(client.error().message() == "interrupted while connecting to " + endpoint);
      CHECK_FALSE(Inspector::connect(endpoint, 1h, "none", stop.get_token()).ok());
    }
  }
  CHECK(watch.elapsed() < 30min);
}

TEST_CASE("stopped later, a connection stays, and no controller is looked for where it is lost") {
  FakeController controller("a journal");
  std::stop_source stop;
  auto client = Client::connect(controller.endpoint(), 60s, {}, stop.get_token());
  REQUIRE(client.ok());
  const auto job = client.value().submit(simple_submission());
  REQUIRE(job.ok());
  stop.request_stop();
  CHECK(client.value().cancel(job.value()).ok());
  controller.vanish();
  const auto result = client.value().wait(job.value(), 1h);
  REQUIRE_FALSE(result.ok());
  CHECK(result.error().code == ErrorCode::interrupted);
  CHECK(result.error().message().find(controller.endpoint()) != std::string::npos);
}

TEST_CASE("a controller of another protocol version: both versions are named") {
  control::IpcFolder folder;
  const std::string endpoint = folder.endpoint("control.sock");
  zmq::context_t context;
  zmq::socket_t other(context, zmq::socket_type::router);
  other.set(zmq::sockopt::linger, 0);
  other.set(zmq::sockopt::rcvtimeo, 60'000);
  other.bind(endpoint);
  std::thread controller([&] {
    zmq::message_t peer, frame;
    if (!other.recv(peer) || !other.recv(frame)) return;
    const auto hello = wire::decode_header({frame.data<std::byte>(), frame.size()});
    wire::Header header;
    header.version = wire::kProtocolVersion + 1;
    header.incarnation = 5;
    header.sequence = 1;
    header.flags = wire::kFlagReply;
    header.correlation = hello.correlation;
    other.send(peer, zmq::send_flags::sndmore);
    other.send(zmq::buffer(wire::encode_frame(header, wire::Welcome{2, 100, 1000, "troupe 9", {}})),
               zmq::send_flags::none);
  });
  const auto client = Client::connect(endpoint, 60s);
  controller.join();
  REQUIRE_FALSE(client.ok());
  CHECK(client.error().code == ErrorCode::version_mismatch);
  CHECK(client.error().message().find("version " + std::to_string(wire::kProtocolVersion + 1)) !=
        std::string::npos);
  CHECK(client.error().message().find("version " + std::to_string(wire::kProtocolVersion)) !=
        std::string::npos);
}

TEST_CASE("a controller that refuses: its reason") {
  FakeController controller;
  controller.run([&] {
    controller.server().on_connect(
        [](const control::PeerInfo&) { return std::optional<std::string>("full house"); });
  });
  const auto client = Client::connect(controller.endpoint(), 60s);
  REQUIRE_FALSE(client.ok());
  CHECK(client.error().code == ErrorCode::refused);
  CHECK(client.error().message().find("full house") != std::string::npos);
}

TEST_CASE("a controller that vanishes: the job is lost, so is all that is asked afterwards") {
  FakeController controller;
  auto client = Client::connect(controller.endpoint(), 60s);
  REQUIRE(client.ok());
  const auto job = client.value().submit(simple_submission());
  REQUIRE(job.ok());
  std::thread killer([&] {
    std::this_thread::sleep_for(100ms);
    controller.vanish();
  });
  const auto result = client.value().wait(job.value(), 60s);
  killer.join();
  REQUIRE_FALSE(result.ok());
  CHECK(result.error().code == ErrorCode::lost);
  CHECK(result.error().message().find(controller.endpoint()) != std::string::npos);
  CHECK(result.error().message().find("job 1") != std::string::npos);
  const auto status = client.value().status();
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::lost);
  const auto unknown = client.value().wait(99, 60s);
  REQUIRE_FALSE(unknown.ok());
  CHECK(unknown.error().code == ErrorCode::lost);
}

TEST_CASE(
    "a picture that is gone, or latents that do not fill their shape, end the wait with a cause") {
  FakeController controller;
  controller.on(wire::Kind::submit_job, [](FakeController& c, control::PeerId peer,
                                           const wire::Header& header, std::span<const std::byte>) {
    const auto job = c.accept(peer, header);
    auto blob = c.hold(job == 1 ? "picture" : "latents", std::string(12, 'x'), {1, 4, 8, 8});
    if (job == 1) c.drop(blob);
    c.succeed(peer, job, {blob});
  });
  auto client = Client::connect(controller.endpoint(), 60s);
  REQUIRE(client.ok());
  for (const char* name : {"picture", "latents"}) {
    const auto job = client.value().submit(simple_submission());
    REQUIRE(job.ok());
    const auto result = client.value().wait(job.value(), 60s);
    REQUIRE_FALSE(result.ok());
    CHECK(result.error().message().find(name) != std::string::npos);
  }
}

TEST_CASE("an answer of the wrong kind, and bytes that are none, cost an error each") {
  FakeController controller;
  controller.on(wire::Kind::get_status,
                [](FakeController& c, control::PeerId peer, const wire::Header& header,
                   std::span<const std::byte>) { c.server().reply(peer, header, wire::Done{}); });
  controller.on(wire::Kind::list_jobs, [](FakeController& c, control::PeerId peer,
                                          const wire::Header& header, std::span<const std::byte>) {
    c.server().reply(peer, header, wire::Failure{wire::FailureCode::overloaded, "[gateway] later"});
  });
  auto client = Client::connect(controller.endpoint(), 60s);
  REQUIRE(client.ok());
  const auto status = client.value().status();
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::protocol);
  const auto jobs = client.value().jobs();
  REQUIRE_FALSE(jobs.ok());
  CHECK(jobs.error().code == ErrorCode::overloaded);
  CHECK(jobs.error().message() == "[gateway] later");
}

TEST_CASE("a request over the size of a message is refused here") {
  FakeController controller;
  auto client = Client::connect(controller.endpoint(), 60s);
  REQUIRE(client.ok());
  Submission submission = simple_submission();
  submission.request.embeddings.assign(200, {std::string(16000, 'a'), "word"});
  const auto job = client.value().submit(submission);
  REQUIRE_FALSE(job.ok());
  CHECK(job.error().code == ErrorCode::bad_request);
  CHECK(client.value().cancel(1).ok());  // the link is none the worse
}

TEST_CASE("a client that goes leaves at once, and the controller learns of it") {
  FakeController controller;
  {
    auto client = Client::connect(controller.endpoint(), 60s);
    REQUIRE(client.ok());
    REQUIRE(client.value().submit(simple_submission()).ok());
  }
  for (int i = 0; i < 6000 && controller.clients_lost == 0; ++i)
    std::this_thread::sleep_for(10ms);
  CHECK(controller.clients_lost == 1);
}
