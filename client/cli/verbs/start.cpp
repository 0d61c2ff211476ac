#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <iostream>

#include "client/cli/endpoint.h"
#include "client/cli/files.h"
#include "client/cli/json.h"
#include "client/cli/signals.h"
#include "client/cli/verb.h"
#include "client/cli/verbs/daemon.h"
#include "controller/cluster/cluster.h"
#include "models/spec/model_spec.h"

namespace troupe::cli {
namespace {

constexpr int kReadySeconds = 120;

class StartVerb : public Verb {
 public:
  explicit StartVerb(CLI::App& parent)
      : Verb(parent, "start", "Start a cluster: the controller and its actors") {
    app_->add_option(
            "--listen", options_.listen,
            "Where to listen: ipc://PATH or tcp://HOST:PORT (default: " + default_endpoint() + ")")
        ->type_name("ENDPOINT");
    app_->add_option("--actors", options_.actors, "Actors to start")
        ->check(quiet(CLI::Range(1, 4096)))
        ->type_name("N")
        ->capture_default_str();
    app_->add_option("--model", options_.model, "Model of the jobs that name none")
        ->type_name("DIR");
    app_->add_option("--device", options_.device, "What actors compute on: cpu or cuda")
        ->check(quiet(CLI::IsMember({"cpu", "cuda"})))
        ->type_name("NAME")
        ->capture_default_str();
    app_->add_option("--threads-per-actor", options_.threads_per_actor,
                     "Threads that an actor computes with")
        ->check(quiet(CLI::Range(1, 4096)))
        ->type_name("T")
        ->capture_default_str();
    app_->add_option("--keep-logs", options_.log_folder,
                     "Keep the actors' log files in this folder")
        ->type_name("DIR");
    app_->add_flag("--insecure", options_.insecure,
                   "Allow to listen beyond this machine without keys");
    app_->add_flag("--detach", detach_, "Go to the background once all actors are ready");
    app_->add_option("--log", log_,
                     "With --detach: the controller's log (default: " + runtime_folder() +
                         "/controller.log)")
        ->type_name("FILE");
    app_->footer(
        "In the foreground Ctrl-C ends the cluster. The other commands find it by themselves when "
        "--listen\n"
        "is left out; otherwise give them --connect ENDPOINT or set TROUPE_ADDRESS.\n\n"
        "Examples:\n"
        "  troupe start --actors 4 --model DIR\n"
        "  troupe start --actors 2 --listen tcp://127.0.0.1:7400 --detach");
  }

  int run() override {
    if (app_->count("--log") > 0 && !detach_) throw UsageError("--log goes with --detach only");
    settle_options();
    if (!detach_) {
      return serve([this](const DaemonReport& report) {
        if (report.ok) std::cout << report.text << std::flush;
      });
    }
    if (log_.empty()) log_ = make_runtime_folder() + "/controller.log";
    check_writable("--log", log_);
    const DaemonReport report = run_in_background(
        log_, kReadySeconds + 10, [this](const ReportOnce& tell) { return serve(tell); });
    if (!report.ok) throw CommandError(Error{"failed", report.text});
    std::cout << report.text << std::flush;
    return kOk;
  }

 private:
  void settle_options() {
    if (options_.listen.empty()) {
      make_runtime_folder();
      options_.listen = default_endpoint();
    }
    options_.listen = checked_endpoint(options_.listen);
    const auto absolute = [](std::string& path) {
      if (!path.empty()) path = std::filesystem::absolute(path).lexically_normal().string();
    };
    absolute(options_.model);
    absolute(options_.log_folder);
    absolute(log_);
    if (!options_.log_folder.empty()) make_log_folder(options_.log_folder);
    if (!options_.model.empty()) spec::read_model_spec(options_.model);
  }

  std::string ready_text(const cluster::Cluster& cluster) const {
    if (json()) {
      nlohmann::json ready = {{"endpoint", cluster.endpoint()},
                              {"pid", getpid()},
                              {"actors", options_.actors},
                              {"model", options_.model}};
      if (detach_) ready["log"] = log_;
      return ready.dump(2) + "\n";
    }
    std::string text = "endpoint  " + cluster.endpoint() + "\npid       " +
                       std::to_string(getpid()) + "\nactors    " + std::to_string(options_.actors) +
                       " ready\n";
    if (detach_) text += "log       " + log_ + "\n";
    return text;
  }

  int serve(const ReportOnce& tell) {
    SignalWatch signals;
    cluster::Cluster cluster(options_);
    ActOnSignal stop(signals, [&] { cluster.stop(); });
    try {
      cluster.wait_ready(std::chrono::seconds(kReadySeconds));
    } catch (const std::exception&) {
      if (!signals.caught()) throw;
    }
    if (!signals.caught()) {
      tell({true, ready_text(cluster)});
      cluster.run_until_stopped();
    }
    if (signals.caught() == SIGINT && isatty(STDERR_FILENO)) std::cerr << std::endl;
    return kOk;
  }

  cluster::ClusterOptions options_;
  bool detach_ = false;
  std::string log_;
};

}  // namespace

std::unique_ptr<Verb> make_start(CLI::App& parent) {
  return std::make_unique<StartVerb>(parent);
}

}  // namespace troupe::cli
