// A plugin that hangs while it is opened: nobody who wants to leave waits for it.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/process/support/connect.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/plugin_cluster.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"
#include "transport/control/key_folder.h"

namespace troupe::testing {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

const std::string kHangs = TROUPE_BINARY_DIR "/lib/libtroupe_test_hanging_plugin.so";

/// A child of that process with the words in its command line; 0 = there is none.
pid_t child_of(pid_t parent, const std::string& words) {
  for (const auto& task : fs::directory_iterator("/proc/" + std::to_string(parent) + "/task")) {
    std::ifstream children(task.path() / "children");
    for (pid_t child = 0; children >> child;) {
      if (has(read_all("/proc/" + std::to_string(child) + "/cmdline"), words)) return child;
    }
  }
  return 0;
}

/// The process that looks at a plugin for that one.
pid_t check_of(pid_t parent) {
  return child_of(parent, "--describe");
}

/// A check ends by itself after half a minute.
constexpr auto kBeforeItIsGivenUp = 25s;

/// Ctrl-C while it looks at the plugin: the exit code, and nothing is left of the check.
void leaves_at_once(Command& command) {
  pid_t check = 0;
  REQUIRE(eventually(kPatience, [&] { return (check = check_of(command.pid())) != 0; }));
  command.signal(SIGINT);
  CHECK(command.wait(kBeforeItIsGivenUp) == 0);
  CHECK(gone({check}));
}

}  // namespace

TEST_CASE("Ctrl-C at start does not wait for a plugin that hangs") {
  Scratch folder;
  Command start(
      {"start", "--actors", "1", "--listen", "ipc://" + (folder / "c.sock"), "--plugin", kHangs},
      folder.path);
  leaves_at_once(start);
}

TEST_CASE("Ctrl-C while start --detach waits: the cluster that was starting ends, too") {
  Scratch folder;
  Command start({"start", "--detach", "--actors", "1", "--listen", "ipc://" + (folder / "c.sock"),
                 "--log", folder / "log", "--plugin", kHangs},
                folder.path);
  pid_t controller = 0, check = 0;
  REQUIRE(eventually(kPatience, [&] {
    controller = child_of(start.pid(), "start");
    return controller != 0 && (check = check_of(controller)) != 0;
  }));
  start.signal(SIGINT);
  CHECK(start.wait(kBeforeItIsGivenUp) == 130);
  CHECK(start.err() == "troupe: interrupted while actors were starting\n");
  CHECK(gone({controller, check}));
}

TEST_CASE("Ctrl-C at join does not wait for a plugin that hangs") {
  Scratch folder;
  const auto keys = folder / "keys";
  control::KeyFolder(keys).make(false);
  auto options = actors(1);
  options.listen = "tcp://127.0.0.1:0";
  options.keys = keys;
  options.plugins = {kPlugin};
  cluster::Cluster cluster(options);
  cluster.wait_ready(kReadyDeadline);
  // On the guest another one lies in its place.
  const auto own = folder / fs::path(kPlugin).filename().string();
  fs::copy_file(kHangs, own);
  fs::create_directory(folder / "beta");
  Command join({"join", "--connect", cluster.endpoint(), "--keys", keys, "--name", "beta", "--wait",
                "20", "--actors", "1", "--plugin", own},
               folder / "beta");
  leaves_at_once(join);
}

}  // namespace troupe::testing
