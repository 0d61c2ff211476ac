#include "transport/control/endpoint.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/files.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

namespace troupe::control {
namespace fs = std::filesystem;
namespace {

struct Socket {
  zmq::context_t context;
  zmq::socket_t socket{context, zmq::socket_type::router};
};

std::string error_of(const std::string& endpoint, bool insecure = false) {
  Socket s;
  try {
    bind_endpoint(s.socket, endpoint, insecure);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("endpoints that are none are refused with the reason") {
  CHECK(troupe::testing::has(error_of("udp://1.2.3.4:5"), "not an endpoint"));
  CHECK(troupe::testing::has(error_of("tcp://127.0.0.1"), "no port"));
  CHECK(troupe::testing::has(error_of("tcp://127.0.0.1:x"), "port \"x\""));
  CHECK(troupe::testing::has(error_of("tcp://127.0.0.1:70000"), "port \"70000\""));
  CHECK(troupe::testing::has(error_of("ipc://here"), "absolute path"));
  CHECK(troupe::testing::has(error_of("ipc:///tmp/" + std::string(200, 'x')),
                             "longer than the 107 bytes"));
}

TEST_CASE("a port in use is named") {
  Socket first;
  const std::string endpoint = bind_endpoint(first.socket, "tcp://127.0.0.1:0", false);
  CHECK_FALSE(endpoint.ends_with(":0"));
  CHECK(error_of(endpoint) == "[control] " + endpoint + ": port in use");
}

TEST_CASE("who listens on an ipc socket is known, though nobody takes the connection") {
  const IpcFolder folder;
  const std::string endpoint = folder.endpoint("control");
  CHECK_FALSE(listener_process(parse_endpoint(endpoint)));
  CHECK(listener_text(endpoint, "nobody") == "nobody");
  Socket silent;
  bind_endpoint(silent.socket, endpoint, false);
  const auto listener = listener_process(parse_endpoint(endpoint));
  REQUIRE(listener);
  CHECK(listener->pid == getpid());
  CHECK_FALSE(listener->stopped);
  const auto name = std::string("process ").append(std::to_string(getpid()));
  CHECK(listener_text(endpoint) == name);
  CHECK(listener_text(endpoint, "or another") == name + ", or another");
  CHECK_FALSE(listener_process(parse_endpoint("tcp://127.0.0.1:9")));
}

TEST_CASE("beyond loopback only on demand") {
  CHECK(troupe::testing::has(error_of("tcp://0.0.0.0:0"), "--insecure"));
  CHECK(troupe::testing::has(error_of("tcp://*:0"), "--insecure"));
  CHECK(error_of("tcp://0.0.0.0:0", true) == "no error");
  CHECK(error_of("tcp://localhost:0") == "no error");
  CHECK(troupe::testing::has(error_of("tcp://192.0.2.1:0", true), "192.0.2.1"));
}

TEST_CASE("ipc folders: made private, refused when open or not there") {
  const IpcFolder folder;
  struct stat info {};
  REQUIRE(stat(folder.path().c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);

  const fs::path fresh = folder.path() / "fresh";
  CHECK(error_of("ipc://" + (fresh / "control").string()) == "no error");
  REQUIRE(stat(fresh.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);

  fs::permissions(fresh, fs::perms::group_exec, fs::perm_options::add);
  CHECK(troupe::testing::has(error_of("ipc://" + (fresh / "control").string()),
                             "open to other users"));
  CHECK(troupe::testing::has(
      error_of("ipc://" + (folder.path() / "no" / "where" / "control").string()),
      "cannot make folder"));
}

TEST_CASE("the socket file of a dead process is replaced, others are not") {
  const IpcFolder folder;
  const fs::path path = folder.path() / "control";
  const std::string endpoint = folder.endpoint("control");
  {
    // A listener that is closed without unlinking leaves what a killed process leaves.
    FileHandle listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    REQUIRE(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(listener.get(), 1) == 0);
    CHECK(error_of(endpoint) == "[control] " + endpoint + ": in use by a running process");
  }
  REQUIRE(fs::exists(path));
  {
    Socket second;
    CHECK(bind_endpoint(second.socket, endpoint, false) == endpoint);
    CHECK(troupe::testing::has(error_of(endpoint), "in use by a running process"));
  }
  fs::remove(path);
  std::ofstream(path) << "precious";
  CHECK(troupe::testing::has(error_of(endpoint), "file of another type"));
  CHECK(fs::file_size(path) == 8);
}

TEST_CASE("a folder for sockets has room for their paths, however long the runtime folder's is") {
  const testing::Scratch scratch;
  const auto runtime = scratch.path / std::string(90 - scratch.path.native().size(), 'r');
  fs::create_directories(runtime);
  const char* before = std::getenv("XDG_RUNTIME_DIR");
  const std::string kept = before ? before : "";
  setenv("XDG_RUNTIME_DIR", runtime.c_str(), 1);
  {
    const IpcFolder folder;
    CHECK_NOTHROW(parse_endpoint(folder.endpoint("control.sock.blobs")));
    CHECK(fs::is_empty(runtime));
  }
  setenv("XDG_RUNTIME_DIR", scratch.path.c_str(), 1);
  CHECK(IpcFolder().endpoint("x").starts_with("ipc://" + scratch.path.string()));
  before ? setenv("XDG_RUNTIME_DIR", kept.c_str(), 1) : unsetenv("XDG_RUNTIME_DIR");
}

}  // namespace troupe::control
