// Where a local socket may lie for a client to trust whoever listens on it.
#include "transport/control/endpoint.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include "tests/support/doctest.h"
#include "tests/support/text.h"

namespace troupe::control {
namespace fs = std::filesystem;
namespace {

constexpr uid_t kNobody = 65534;

/// A listener on a path; nobody takes its connections.
FileHandle listen_at(const fs::path& path) {
  FileHandle socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket.get(), 4) != 0)
    return FileHandle();
  return socket;
}

/// "missing", "trusted", or why not.
std::string judged(const fs::path& socket) {
  try {
    const auto folder = SocketFolder::open(parse_endpoint("ipc://" + socket.string()));
    if (!folder) return "missing";
    return folder->check_listener() ? "trusted" : "not to be told";
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

/// Another user who has bound in a folder while it was open, for as long as this lives.
class Squatter {
 public:
  explicit Squatter(const fs::path& path) {
    int ready[2] = {-1, -1};
    REQUIRE(pipe2(ready, O_CLOEXEC) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      if (setuid(kNobody) != 0) _exit(1);
      const FileHandle socket = listen_at(path);
      if (socket && write(ready[1], "x", 1) == 1)
        for (;;)
          pause();
      _exit(1);
    }
    close(ready[1]);
    char sign = 0;
    REQUIRE(read(ready[0], &sign, 1) == 1);
    close(ready[0]);
  }
  ~Squatter() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

}  // namespace

TEST_CASE("a folder that others may write in is refused, by its name and by a link's") {
  const IpcFolder scratch;
  const fs::path folder = scratch.path() / "run", socket = folder / "control.sock";
  CHECK(judged(socket) == "missing");
  fs::create_directory(folder);
  fs::create_directory_symlink(folder, scratch.path() / "link");
  const FileHandle listener = listen_at(socket);
  for (const auto mode : {0700, 0755}) {
    REQUIRE(chmod(folder.c_str(), static_cast<mode_t>(mode)) == 0);
    CHECK(judged(socket) == "trusted");
    CHECK(judged(scratch.path() / "link/control.sock") == "trusted");
  }
  for (const auto mode : {0777, 01777, 0770, 0702}) {
    CAPTURE(mode);
    REQUIRE(chmod(folder.c_str(), static_cast<mode_t>(mode)) == 0);
    CHECK(
        troupe::testing::has(judged(socket), "other users can write in folder " + folder.string()));
    CHECK(troupe::testing::has(judged(scratch.path() / "link/control.sock"),
                               "other users can write"));
  }
  REQUIRE(chmod(folder.c_str(), 0700) == 0);
  fs::create_symlink(socket, folder / "other.sock");
  CHECK(troupe::testing::has(judged(folder / "other.sock"), "a link is no socket"));
  CHECK(troupe::testing::has(judged(socket / "x"), "Not a directory"));
}

TEST_CASE("a folder, a socket and a listener of another user are refused" *
          doctest::skip(geteuid() != 0)) {
  // Where other users may come, too.
  std::string name = "/tmp/troupe-test-XXXXXX";
  REQUIRE(mkdtemp(name.data()) != nullptr);
  REQUIRE(chmod(name.c_str(), 0755) == 0);
  const fs::path folder = fs::path(name) / "run", socket = folder / "control.sock";
  fs::create_directory(folder);
  REQUIRE(chmod(folder.c_str(), 0777) == 0);
  const Squatter squatter(socket);
  CHECK(troupe::testing::has(judged(socket), "other users can write"));
  // What was put there stays when the folder is closed.
  REQUIRE(chmod(folder.c_str(), 0700) == 0);
  CHECK(troupe::testing::has(judged(socket), "the socket belongs to another user (65534)"));
  REQUIRE(chown(socket.c_str(), 0, 0) == 0);
  CHECK(troupe::testing::has(judged(socket),
                             "process " + std::to_string(squatter.pid()) +
                                 ", which listens there, belongs to another user (65534)"));
  REQUIRE(chown(folder.c_str(), kNobody, kNobody) == 0);
  CHECK(troupe::testing::has(judged(socket),
                             "folder " + folder.string() + " belongs to another user (65534)"));
}

TEST_CASE("who listens is looked at again where it could not be told") {
  const IpcFolder scratch;
  const fs::path path = scratch.path() / "s";
  CHECK(judged(path) == "trusted");  // nobody can put anything there but this user
  FileHandle listener = listen_at(path);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  std::vector<FileHandle> waiting;
  const auto knock = [&] {
    waiting.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    return ::connect(waiting.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof address) ==
           0;
  };
  while (waiting.size() < 100 && knock()) {
  }
  REQUIRE(errno == EAGAIN);
  CHECK(judged(path) == "not to be told");
  const FileHandle taken(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(taken);
  CHECK(judged(path) == "trusted");
  listener = FileHandle();
  CHECK(judged(path) == "not to be told");  // nobody listens on it
}

TEST_CASE("the folder that was looked at is the one that is connected to") {
  const IpcFolder scratch;
  const fs::path folder = scratch.path() / "run";
  fs::create_directory(folder);
  const FileHandle mine = listen_at(folder / "s");
  const auto held = SocketFolder::open(parse_endpoint("ipc://" + (folder / "s").string()));
  REQUIRE(held);
  fs::rename(folder, scratch.path() / "away");
  fs::create_directory(folder);
  const FileHandle others = listen_at(folder / "s");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  REQUIRE(held->address().starts_with("ipc://"));
  std::strncpy(address.sun_path, held->address().c_str() + 6, sizeof address.sun_path - 1);
  const FileHandle client(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  const auto comes = [](const FileHandle& listener) {
    return FileHandle(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  };
  REQUIRE(fcntl(mine.get(), F_SETFL, O_NONBLOCK) == 0);
  REQUIRE(fcntl(others.get(), F_SETFL, O_NONBLOCK) == 0);
  CHECK_FALSE(comes(others));
  CHECK(comes(mine));
}

}  // namespace troupe::control
