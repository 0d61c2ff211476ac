#include <ATen/Parallel.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>

#include "actors/actor_process.h"

namespace {

/// The actor ends with the process that spawned it, whatever happens to that one.
void die_with_parent(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (parent > 0 && getppid() != parent) std::_Exit(3);
}

/// Leaves without waiting for a work loop that may be deep in a computation: the kernel takes
/// everything back.
[[noreturn]] void leave(int code) {
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "troupe-actor: one actor of a troupe cluster. Node agents start it; use `troupe start` or "
      "`troupe run`."};
  troupe::actors::ActorOptions options;
  pid_t parent = 0;
  app.add_option("--control", options.control_endpoint, "control plane of the controller")
      ->required();
  app.add_option("--blobs", options.blob_endpoint, "blob channel of the controller")->required();
  app.add_option("--id", options.id)->required();
  app.add_option("--incarnation", options.incarnation)->required();
  app.add_option("--device", options.device);
  app.add_option("--threads", options.threads)->check(CLI::Range(1, 1024));
  app.add_option("--parent", parent, "pid of the node agent");
  CLI11_PARSE(app, argc, argv);
  die_with_parent(parent);
  signal(SIGINT,
         SIG_IGN);  // a terminal's Ctrl-C is for the controller, which ends its actors in order
  signal(SIGPIPE, SIG_IGN);
  if (const char* token = std::getenv("TROUPE_TOKEN")) options.token = token;
  try {
    at::set_num_threads(options.threads);
    at::set_num_interop_threads(1);
    troupe::actors::ActorProcess actor(options);
    leave(actor.run());
  } catch (const std::exception& error) {
    const std::string text = error.what();
    std::fprintf(stderr, "troupe-actor %u: %s\n", options.id,
                 text.substr(0, text.find('\n')).c_str());
    leave(1);
  }
}
