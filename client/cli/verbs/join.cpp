#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <iostream>

#include "client/cli/actor_options.h"
#include "client/cli/command_line.h"
#include "client/cli/endpoint.h"
#include "client/cli/files.h"
#include "client/cli/json.h"
#include "client/cli/signals.h"
#include "client/cli/verb.h"
#include "client/cli/verbs/starting.h"
#include "controller/cluster/device_check.h"
#include "controller/cluster/joined_host.h"

namespace troupe::cli {
namespace {

/// As the controller wants it: numbers are actors.
CLI::Validator host_name() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        if (text.size() > 64) return "the name is longer than 64 bytes";
        const bool number = text.find_first_not_of("0123456789") == std::string::npos;
        return number ? "\"" + text + "\" is not a name: one that is no number is needed" : "";
      },
      "");
}

class JoinVerb : public Verb {
 public:
  explicit JoinVerb(CLI::App& parent)
      : Verb(parent, "join",
             "Give a cluster this host's actors, until Ctrl-C or the cluster's end") {
    add_connect_option(*app_, target_);
    app_->add_option("--actors", options_.actors, "Actors to give")
        ->check(whole(1, 1024))
        ->type_name("N")
        ->envname("TROUPE_ACTORS")
        ->capture_default_str();
    app_->add_option("--device", options_.device, "What they compute on: cpu or cuda")
        ->check(one_of({"cpu", "cuda"}))
        ->type_name("NAME")
        ->envname("TROUPE_DEVICE")
        ->capture_default_str();
    add_threads_option(*app_, options_.threads_per_actor);
    add_pin_option(*app_, options_.pin);
    add_memory_limit_option(*app_, options_.memory_limit);
    app_->add_option("--name", options_.name,
                     "What the host is called in the cluster (default: under srun the node's name, "
                     "else its own)")
        ->check(host_name())
        ->type_name("HOST");
    app_->add_option("--tensor-host", options_.tensor_host,
                     "Address on which actors take tensors of other hosts' actors, a number "
                     "(default: the one by which this host reaches the controller)")
        ->check(numeric_address())
        ->type_name("ADDRESS");
    app_->add_option("--plugin", options_.plugins,
                     "Where this host has a plugin of the cluster's, if not at the same path; by "
                     "its file name (repeatable)")
        ->type_name("FILE");
    add_keep_logs_option(*app_, options_.log_folder);
    app_->add_option("--wait", wait_,
                     "Seconds to wait for a controller that is not there, or not any more")
        ->check(whole(0, 86'400))
        ->type_name("S")
        ->capture_default_str();
    app_->add_option("--drain-deadline", drain_deadline_,
                     "After Ctrl-C: seconds for running jobs to leave this host's actors")
        ->check(whole(0, 86'400))
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
    options_.on_waiting = [](const std::string& what) {
      std::cerr << "troupe: " << one_line(what) << std::endl;
    };
    for (auto& plugin : options_.plugins)
      plugin = std::filesystem::absolute(plugin).lexically_normal().string();
    make_log_folder(options_.log_folder);
    cluster::check_device(options_.device, options_.actors);
    check_crowding(options_.actors, options_.threads_per_actor, options_.device);
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
