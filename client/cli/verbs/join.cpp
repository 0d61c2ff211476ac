#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <iostream>

#include "client/cli/endpoint.h"
#include "client/cli/files.h"
#include "client/cli/json.h"
#include "client/cli/signals.h"
#include "client/cli/verb.h"
#include "controller/cluster/joined_host.h"

namespace troupe::cli {
namespace {

class JoinVerb : public Verb {
 public:
  explicit JoinVerb(CLI::App& parent)
      : Verb(parent, "join",
             "Give a cluster this host's actors, until Ctrl-C or the cluster's end") {
    add_connect_option(*app_, target_);
    app_->add_option("--actors", options_.actors, "Actors to give")
        ->check(quiet(CLI::Range(1, 1024)))
        ->type_name("N")
        ->envname("TROUPE_ACTORS")
        ->capture_default_str();
    app_->add_option("--device", options_.device, "What they compute on: cpu or cuda")
        ->check(quiet(CLI::IsMember({"cpu", "cuda"})))
        ->type_name("NAME")
        ->envname("TROUPE_DEVICE")
        ->capture_default_str();
    app_->add_option("--threads-per-actor", options_.threads_per_actor,
                     "Threads that an actor computes with")
        ->check(quiet(CLI::Range(1, 4096)))
        ->type_name("T")
        ->capture_default_str();
    app_->add_option("--name", options_.name,
                     "What the host is called in the cluster (default: under srun the node's name, "
                     "else its own)")
        ->type_name("HOST");
    app_->add_option("--tensor-host", options_.tensor_host,
                     "Address on which actors take tensors of other hosts' actors, a number "
                     "(default: the one by which this host reaches the controller)")
        ->type_name("ADDRESS");
    app_->add_option("--keep-logs", options_.log_folder,
                     "Keep the actors' log files in this folder")
        ->type_name("DIR");
    app_->add_option("--wait", wait_,
                     "Seconds to wait for a controller that is not there, or not any more")
        ->check(quiet(CLI::Range(0, 86'400)))
        ->type_name("S")
        ->capture_default_str();
    app_->add_option("--drain-deadline", drain_deadline_,
                     "After Ctrl-C: seconds for running jobs to leave this host's actors")
        ->check(quiet(CLI::Range(0, 86'400)))
        ->type_name("S")
        ->capture_default_str();
    app_->footer(
        "Models must lie at the same path on every host. Ctrl-C drains the host, a second one "
        "leaves at once.\n\n"
        "Example:\n"
        "  troupe join --connect tcp://10.0.0.1:7400 --keys ~/troupe-keys --actors 4");
  }

  int run() override {
    options_.endpoint = checked_endpoint(target_.endpoint);
    options_.keys = target_.keys;
    if (options_.name.empty()) options_.name = slurm_name();
    options_.wait = std::chrono::seconds(wait_);
    options_.drain_deadline = std::chrono::seconds(drain_deadline_);
    make_log_folder(options_.log_folder);
    SignalWatch signals;
    cluster::JoinedHost host(options_);
    ActOnSignal stop(signals, [&] { host.stop(); });
    host.run([&] { print_joined(host.name()); });
    if (signals.caught() == SIGINT && isatty(STDERR_FILENO)) std::cerr << std::endl;
    return kOk;
  }

 private:
  /// Of this task of `srun`; "" outside of it.
  static std::string slurm_name() {
    const char* node = std::getenv("SLURMD_NODENAME");
    const char* local = std::getenv("SLURM_LOCALID");
    if (!node || !local || !std::getenv("SLURM_STEP_ID")) return "";
    return std::string(node) + (std::string(local) == "0" ? "" : "-" + std::string(local));
  }

  void print_joined(const std::string& name) const {
    if (json()) {
      print_json({{"endpoint", options_.endpoint},
                  {"host", name},
                  {"pid", getpid()},
                  {"actors", options_.actors}});
    } else {
      std::cout << "joined    " << options_.endpoint << "\nhost      " << name << "\nactors    "
                << options_.actors << std::endl;
    }
  }

  Target target_;
  cluster::JoinOptions options_;
  int wait_ = 60;
  int drain_deadline_ = 60;
};

}  // namespace

std::unique_ptr<Verb> make_join(CLI::App& parent) {
  return std::make_unique<JoinVerb>(parent);
}

}  // namespace troupe::cli
