#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

#include "tests/client/fake_controller.h"
#include "tests/client/run_command.h"
#include "tests/support/doctest.h"

using namespace troupe;

namespace {

/// Answers whatever comes as a controller of another protocol version would.
class OtherController {
 public:
  static constexpr std::uint16_t kVersion = wire::kProtocolVersion + 1;

  OtherController() : socket_(context_, zmq::socket_type::router) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::rcvtimeo, 100);
    socket_.bind(endpoint());
    thread_ = std::thread([this] {
      while (!ended_)
        answer();
    });
  }
  ~OtherController() {
    ended_ = true;
    thread_.join();
  }
  std::string endpoint() const { return folder_.endpoint("control.sock"); }

 private:
  void answer() {
    zmq::message_t peer, frame;
    if (!socket_.recv(peer) || !socket_.recv(frame)) return;
    wire::Header header;
    header.version = kVersion;
    header.incarnation = 5;
    header.sequence = 1;
    header.flags = wire::kFlagReply;
    header.correlation = wire::decode_header({frame.data<std::byte>(), frame.size()}).correlation;
    socket_.send(peer, zmq::send_flags::sndmore);
    socket_.send(
        zmq::buffer(wire::encode_frame(header, wire::Welcome{2, 100, 1000, "troupe 9", {}})),
        zmq::send_flags::none);
  }

  control::IpcFolder folder_;
  zmq::context_t context_;
  zmq::socket_t socket_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace

TEST_CASE("a controller of another protocol version: exit code 1, one line, both versions") {
  const OtherController other;
  // A host waits for a controller that is not there, not for one that it cannot talk to.
  for (const std::string verb :
       {"status", "jobs", "submit --prompt 'a cat'", "join --wait 86400"}) {
    CAPTURE(verb);
    const auto result = testing::troupe(verb + " --connect " + other.endpoint());
    CAPTURE(result.err);
    CHECK(result.exit_code == 1);
    CHECK(result.out == "");
    for (const int version : {int{OtherController::kVersion}, int{wire::kProtocolVersion}})
      CHECK(result.err.find("version " + std::to_string(version)) != std::string::npos);
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  }
}
