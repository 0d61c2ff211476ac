// Others who pose as the controller, and what the clients of this user say to them: nothing.
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <zmq.hpp>

#include "tests/process/support/connect.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/models.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"
#include "troupe/inspect.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr uid_t kNobody = 65534;

/// A folder that every user may enter and only its owner may write in.
class PublicFolder {
 public:
  PublicFolder() {
    std::string name = "/tmp/troupe-test-XXXXXX";
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
    REQUIRE(chmod(path.c_str(), 0755) == 0);
  }
  ~PublicFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  fs::path path;
};

/// A process that listens as a controller would, as user `uid`, and remembers whether anybody has
/// said a word.
class Impostor {
 public:
  Impostor(const std::string& endpoint, uid_t uid) {
    int up[2] = {-1, -1};
    REQUIRE(pipe(up) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(up[0]);
      if (geteuid() != uid && setuid(uid) != 0) _exit(9);
      listen(endpoint, up[1]);
    }
    close(up[1]);
    from_ = up[0];
    char text[128] = "";
    REQUIRE(read(from_, text, sizeof text - 1) > 0);
    at = text;
  }
  ~Impostor() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(from_);
  }
  /// Asks the process to end and waits for it: 0 when nobody has said anything.
  int heard() {
    kill(pid_, SIGTERM);
    int status = 0;
    waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::string at;

 private:
  static volatile sig_atomic_t told_;
  [[noreturn]] static void listen(const std::string& endpoint, int up) {
    signal(SIGTERM, [](int) { told_ = 1; });
    zmq::context_t context;
    zmq::socket_t socket(context, zmq::socket_type::router);
    socket.set(zmq::sockopt::rcvtimeo, 50);
    try {
      socket.bind(endpoint);
    } catch (const zmq::error_t&) {
      _exit(8);
    }
    const auto name = socket.get(zmq::sockopt::last_endpoint);
    if (write(up, name.data(), name.size()) < 0) _exit(7);
    for (;;) {
      zmq::message_t frame;
      try {
        if (socket.recv(frame)) _exit(1);
      } catch (const zmq::error_t&) {
      }
      if (told_) _exit(0);
    }
  }

  pid_t pid_ = -1;
  int from_ = -1;
};
volatile sig_atomic_t Impostor::told_ = 0;

struct Ended {
  int code;
  std::string err;
};

Ended does(const Words& arguments, const std::string& folder, const Words& environment) {
  Command command(arguments, folder, environment);
  const int code = command.wait(2 * kPatience);
  return {code, command.err()};
}

/// Returns every verb that talks to a controller.
std::vector<Words> verbs(const std::string& scratch) {
  return {{"status"},
          {"jobs"},
          {"wait", "1"},
          {"cancel", "1"},
          {"drain", "0"},
          {"stop"},
          {"logs"},
          {"timeline", "1"},
          {"repl"},
          {"join", "--wait", "0"},
          {"submit", "--prompt", "a secret", "--output", scratch + "/a.png"}};
}

}  // namespace

TEST_CASE("another user's controller in this user's place is told nothing, by no verb" *
          doctest::skip(geteuid() != 0)) {
  const PublicFolder open;
  const Scratch scratch;
  const fs::path folder = open.path / "troupe";
  fs::create_directory(folder);
  // As who finds that nobody has made it.
  REQUIRE(chown(folder.c_str(), kNobody, kNobody) == 0);
  Impostor impostor("ipc://" + (folder / "control.sock").string(), kNobody);
  Impostor blobs("ipc://" + (folder / "control.sock.blobs").string(), kNobody);
  const Words environment = {"XDG_RUNTIME_DIR=" + open.path.string()};
  const auto refused = [&](const std::string& part) {
    for (const auto& verb : verbs(scratch.path.string())) {
      const auto ended = does(verb, scratch.path.string(), environment);
      CAPTURE(verb.front());
      CAPTURE(ended.err);
      CHECK(ended.code == 1);
      CHECK(has(ended.err, part));
    }
  };
  refused("belongs to another user (65534)");
  const auto start = does({"start", "--actors", "1"}, scratch.path.string(), environment);
  CHECK(start.code == 1);
  CHECK(has(start.err, "belongs to another user"));
  const auto client = Client::connect(impostor.at, kPatience);
  REQUIRE_FALSE(client);
  CHECK(client.error().code == ErrorCode::refused);
  CHECK_FALSE(Inspector::connect(impostor.at, kPatience));
  // By another name.
  fs::create_directory_symlink(folder, open.path / "link");
  const auto linked = Client::connect("ipc://" + (open.path / "link/control.sock").string(), 60s);
  REQUIRE_FALSE(linked);
  CHECK(has(linked.error().what, "belongs to another user"));
  // In a folder of this user's that was open: while it is, and when it has been closed.
  REQUIRE(chown(folder.c_str(), 0, 0) == 0);
  REQUIRE(chmod(folder.c_str(), 0777) == 0);
  refused("other users can write in folder");
  const auto in_the_open = does({"start", "--actors", "1"}, scratch.path.string(), environment);
  CHECK(in_the_open.code == 1);
  CHECK(has(in_the_open.err, "other users can write in it"));
  REQUIRE(chmod(folder.c_str(), 0700) == 0);
  refused("the socket belongs to another user (65534)");
  CHECK(impostor.heard() == 0);
  CHECK(blobs.heard() == 0);
}

TEST_CASE("on loopback, who cannot show that it is this user's cluster is told nothing") {
  const Scratch scratch;
  const Words environment = {"XDG_RUNTIME_DIR=" + scratch.path.string()};
  const std::string keys = scratch / "troupe/keys";
  Impostor impostor("tcp://127.0.0.1:*", geteuid() == 0 ? kNobody : geteuid());
  for (const bool made : {false, true}) {
    if (made) REQUIRE(does({"keys", "--keys", keys}, scratch.path.string(), environment).code == 0);
    for (auto verb : verbs(scratch.path.string())) {
      verb.insert(verb.end(), {"--connect", impostor.at});
      const auto ended = does(verb, scratch.path.string(), environment);
      CAPTURE(verb.front());
      CAPTURE(ended.err);
      CHECK(ended.code == 1);
      CHECK(has(ended.err, made ? "does not know this user's own keys"
                                : "there are none of this user's own keys in " + keys));
      CHECK(has(ended.err, "else it is another user's"));
    }
  }
  const auto client = Client::connect(impostor.at, kPatience);
  REQUIRE_FALSE(client);
  CHECK(client.error().code == ErrorCode::refused);
  CHECK(impostor.heard() == 0);
}

TEST_CASE("on loopback without keys this user's own come in, and nobody else") {
  const Scratch scratch, elsewhere;
  const Words own = {"XDG_RUNTIME_DIR=" + scratch.path.string()};
  const Words others = {"XDG_RUNTIME_DIR=" + elsewhere.path.string()};
  auto options = actors(1);
  options.listen = "tcp://127.0.0.1:0";
  options.insecure = true;
  cluster::Cluster open(options);
  CHECK_FALSE(Client::connect(open.endpoint(), kPatience));
  CHECK(Client::connect(open.endpoint(), kPatience, "none"));

  Command start({"start", "--actors", "1", "--listen", "tcp://127.0.0.1:0"}, scratch.path.string(),
                own);
  std::string endpoint;
  REQUIRE(eventually(kPatience, [&] {
    const auto text = start.out();
    const auto at = text.find("tcp://");
    if (at == std::string::npos || text.find('\n', at) == std::string::npos) return false;
    endpoint = text.substr(at, text.find('\n', at) - at);
    return true;
  }));
  CHECK(does({"status", "--connect", endpoint}, scratch.path.string(), own).code == 0);
  // Where blobs go up and come down.
  const auto bare = Client::connect(endpoint, kPatience, "none");
  REQUIRE_FALSE(bare);
  CHECK(has(bare.error().what, "asks for keys"));
  const auto stranger = does({"status", "--connect", endpoint}, scratch.path.string(), others);
  CHECK(stranger.code == 1);
  CHECK(has(stranger.err, "else it is another user's"));
  const auto join =
      does({"join", "--wait", "20", "--connect", endpoint}, scratch.path.string(), others);
  CHECK(join.code == 1);
  CHECK(has(join.err, "else it is another user's"));
  CHECK(does({"stop", "--connect", endpoint}, scratch.path.string(), own).code == 0);
  CHECK(start.wait(kPatience) == 0);
}
