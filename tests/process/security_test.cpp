// Keys, allowed folders and strangers' bytes at a running cluster's doors.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "base/files.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/listening_sockets.h"
#include "tests/process/support/models.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

std::uint64_t resident_bytes(pid_t pid) {
  std::istringstream pages(read_all("/proc/" + std::to_string(pid) + "/statm"));
  std::uint64_t whole = 0, resident = 0;
  pages >> whole >> resident;
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

std::size_t descriptors(pid_t pid) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd"), {}));
}

FileHandle knock(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  FileHandle socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return FileHandle();
  return socket;
}

FileHandle knock(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  FileHandle socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address),
                static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())) != 0)
    return FileHandle();
  return socket;
}

/// Random bytes, some of them behind what each door takes for a beginning.
std::string noise(std::mt19937_64& random) {
  static const std::string greeting =
      std::string("\xff\0\0\0\0\0\0\0\1\x7f\3\0", 12) + "NULL" + std::string(16 + 32, '\0');
  static const std::string hello("\x54\x52\x50\x45\2\0\0\0", 8);
  std::string bytes = random() % 3 == 0 ? greeting : random() % 2 == 0 ? hello : "";
  for (std::size_t i = random() % 4000; i > 0; --i)
    bytes += static_cast<char>(random());
  return bytes;
}

}  // namespace

TEST_CASE("random bytes and silent strangers at every door: the cluster goes on, memory is flat") {
  auto options = actors(2);
  options.listen = "tcp://127.0.0.1:0";
  FaultCluster cluster(options);
  auto job = tiny_job(2);
  job.parallelism = {.dp = 1, .cfg = 2};
  const auto before = cluster.run(job);
  REQUIRE(before.latents);

  auto processes = cluster.pids();
  processes.push_back(getpid());
  std::vector<ListeningSockets> doors;
  for (const auto pid : processes)
    doors.push_back(listening_sockets_of(pid));
  REQUIRE(doors.back().tcp.size() == 2);  // control plane and blobs
  for (std::size_t actor = 0; actor + 1 < doors.size(); ++actor) {
    CHECK(doors[actor].tcp.size() == 1);
    CHECK(doors[actor].names.size() == 1);
  }
  std::mt19937_64 random(7);
  const auto storm = [&](int rounds, std::vector<FileHandle>& silent) {
    for (int round = 0; round < rounds; ++round) {
      for (const auto& door : doors) {
        std::vector<FileHandle> sockets;
        for (const auto& tcp : door.tcp)
          sockets.push_back(knock(tcp.port));
        for (const auto& name : door.names)
          sockets.push_back(knock(name));
        for (auto& socket : sockets) {
          if (!socket) continue;
          const std::string bytes = noise(random);
          [[maybe_unused]] const auto sent =
              ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
          if (round % 8 == 0 && silent.size() < 100) silent.push_back(std::move(socket));
        }
      }
    }
  };
  std::vector<FileHandle> silent;
  storm(50, silent);  // what allocators keep is kept by now
  std::vector<std::uint64_t> held;
  for (const auto pid : processes)
    held.push_back(resident_bytes(pid));
  storm(400, silent);
  CHECK(silent.size() >= 50);

  const auto after = cluster.run(job);
  CHECK(after.latents->data == before.latents->data);
  CHECK(cluster.restarts() == 0);
  for (std::size_t i = 0; i < processes.size(); ++i) {
    CAPTURE(i);
    CHECK(eventually(kPatience,
                     [&] { return resident_bytes(processes[i]) < held[i] + (24u << 20); }));
  }
  silent.clear();
  CHECK(eventually(kPatience, [&] {
    return std::all_of(processes.begin(), processes.end() - 1,
                       [](pid_t pid) { return descriptors(pid) < 64; });
  }));
}

TEST_CASE("a cluster with keys: who has them works with it, who has not is told what to do") {
  const Scratch scratch;
  const auto does = [&](const Words& arguments, const Words& more = {}) {
    Words environment = more;
    environment.push_back("XDG_RUNTIME_DIR=" + scratch.path.string());
    Command command(arguments, scratch.path.string(), environment);
    struct Ended {
      int code;
      std::string out, err;
    };
    const int code = command.wait(4 * kPatience);
    return Ended{code, command.out(), command.err()};
  };
  const std::string keys = scratch / "keys", laptop = scratch / "laptop";
  const std::string tiny = checkpoint("tiny-pixart");
  REQUIRE(does({"keys", "--keys", keys}).code == 0);
  const auto again = does({"keys", "--keys", keys});
  CHECK(again.code == 1);
  CHECK(has(again.err, "--force"));
  REQUIRE(does({"keys", "add", "laptop", "--keys", keys, "--output", laptop}).code == 0);

  const auto started = does({"start", "--detach", "--json", "--actors", "1", "--model", tiny,
                             "--listen", "tcp://127.0.0.1:0", "--keys", keys});
  INFO(started.err);
  REQUIRE(started.code == 0);
  const auto facts = nlohmann::json::parse(started.out);
  const auto endpoint = facts["endpoint"].get<std::string>();
  const auto pid = facts["pid"].get<pid_t>();

  CHECK(does({"status", "--connect", endpoint, "--keys", laptop}).code == 0);
  CHECK(does({"status", "--connect", endpoint}, {"TROUPE_KEYS=" + laptop}).code == 0);
  const auto picture = does({"submit", "--prompt", "a cat", "--steps", "2", "--output",
                             scratch / "a.png", "--connect", endpoint, "--keys", laptop});
  INFO(picture.err);
  CHECK(picture.code == 0);
  CHECK(fs::file_size(scratch / "a.png") > 100);

  const auto bare = does({"status", "--connect", endpoint});
  CHECK(bare.code == 1);
  CHECK(has(bare.err, "asks for keys: give --keys DIR or set TROUPE_KEYS"));
  CHECK(std::count(bare.err.begin(), bare.err.end(), '\n') == 1);
  REQUIRE(does({"keys", "remove", "laptop", "--keys", keys}).code == 0);
  const auto removed = does({"status", "--connect", endpoint, "--keys", laptop});
  CHECK(removed.code == 1);
  CHECK(has(removed.err, "troupe keys add"));
  const std::string others = scratch / "others";
  REQUIRE(does({"keys", "--keys", others}).code == 0);
  const auto stranger = does({"status", "--connect", endpoint, "--keys", others});
  CHECK(stranger.code == 1);
  CHECK(has(stranger.err, "has another key than"));

  // An actor's keys are on no command line.
  const auto actors = actors_of(pid);
  REQUIRE(actors.size() == 1);
  const std::string line = read_all("/proc/" + std::to_string(actors[0]) + "/cmdline");
  CHECK(has(line, "troupe-actor"));
  std::istringstream server(read_all(keys + "/server.pub"));
  std::string word, key;
  while (server >> word)
    key = word;
  REQUIRE(key.size() == 40);
  CHECK_FALSE(has(line, key));

  // Over tcp only the cluster's own model may be named.
  const auto elsewhere =
      does({"submit", "--prompt", "a", "--steps", "1", "--output", scratch / "b.png", "--model",
            checkpoint("tiny-variants"), "--connect", endpoint, "--keys", keys});
  CHECK(elsewhere.code == 1);
  CHECK(has(elsewhere.err, "may not be named here"));
  CHECK(has(elsewhere.err, "tiny-variants"));
  CHECK(does({"stop", "--connect", endpoint, "--keys", keys}).code == 0);
}

TEST_CASE("--allow-models: what it names and what is below, links followed") {
  auto options = actors(1);
  options.allow_models = {{std::string(TROUPE_SOURCE_DIR) + "/tests/fixtures"}};
  FaultCluster cluster(options);
  CHECK_NOTHROW(cluster.run(tiny_job(1)));
  const auto refusal = [&](const std::string& folder) {
    auto job = tiny_job(1);
    job.model = folder;
    const auto answer = cluster.client().submit(job);
    return answer ? "accepted" : answer.error().what;
  };
  const Scratch scratch;
  CHECK(has(refusal(std::string(TROUPE_SOURCE_DIR) + "/examples/demo/model"), "--allow-models"));
  CHECK(has(refusal("/etc/passwd"), "/etc/passwd: may not be named here"));
  CHECK(has(refusal("/no/such/folder"), "/no/such/folder: may not be named here"));
  CHECK(has(refusal(checkpoint("tiny-pixart") + "/../../../examples/demo/model"),
            "may not be named here"));
  fs::create_directory_symlink(checkpoint("tiny-pixart"), scratch.path / "link");
  auto job = tiny_job(1);
  job.model = scratch / "link";
  CHECK_NOTHROW(cluster.run(job));
}
