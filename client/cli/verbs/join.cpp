#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <optional>
#include <thread>
#include <utility>

#include "base/format.h"
#include "base/log_line.h"
#include "client/cli/actor_options.h"
#include "client/cli/files.h"
#include "client/cli/json.h"
#include "client/cli/options.h"
#include "client/cli/signals.h"
#include "client/cli/slurm.h"
#include "client/cli/verb.h"
#include "client/cli/verbs/start.h"
#include "controller/app/joined_host.h"
#include "controller/hosts/capacity.h"

namespace troupe::cli {
namespace {

constexpr std::chrono::seconds kRanksBefore{60}, kAnswer{5};
constexpr std::chrono::milliseconds kLookAgain{200};

/// Checks a host's name as the controller does: numbers are actors.
Check host_name() {
  return Check([](std::string& text) -> std::string {
    if (text.size() > 64) return "the name is longer than 64 bytes";
    const bool number = text.find_first_not_of("0123456789") == std::string::npos;
    return number ? "\"" + text + "\" is not a name: one that is no number is needed" : "";
  });
}

class JoinVerb : public Verb {
 public:
  explicit JoinVerb(Options& options) : Verb(options) {
    add_connect_option(*app_, target_);
    app_->add_option("--port", port_,
                     "Under srun, without --connect: the controller's port on the job's first node")
        ->check(whole(1, 65'534))
        ->type_name("N")
        ->capture_default_str();
    add_model_plugin_option(*app_);
    add_actors_option(*app_, options_.actors, 1, "Actors to give");
    add_device_option(*app_, options_.device, "What they compute on: cpu or cuda");
    add_threads_option(*app_, options_.threads_per_actor);
    add_pin_option(*app_, options_.pin);
    add_cuda_graphs_option(*app_, options_.cuda_graphs);
    add_actors_per_gpu_option(*app_, options_.actors_per_gpu);
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
                     "A plugin of the cluster's, by its file name, as this host has it "
                     "(repeatable). Without it users' actors of that plugin do not come here")
        ->type_name("FILE");
    app_->add_flag("--any-plugin", options_.any_plugin,
                   "Load every plugin of the cluster's, from the path that the controller names");
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
    app_->add_rivals({"--port", "--connect"});
    set_footer(
        "Models must lie at the same path on every host. Ctrl-C drains the host, a second one "
        "leaves at once. Under srun without --connect the controller is looked for on the job's "
        "first node, whose own task ends at once; hosts join in the order of their ranks.",
        {"troupe join --connect tcp://10.0.0.1:7400 --keys ~/troupe-keys --actors 4",
         "srun troupe join --actors 8 --device cuda"},
        "operate.md#several-hosts");
  }

  void check() override {
    check_cuda_graphs(options_.cuda_graphs, options_.device);
    check_actors_per_gpu(options_.actors_per_gpu, options_.device);
    const auto task = slurm_task();
    first_node_ = target_.endpoint.empty() && task && !task->first.empty();
    if (app_->count("--port") > 0 && !first_node_)
      throw UsageError("--port goes with srun, and not with --connect");
  }

  int run() override {
    const auto task = slurm_task();
    if (first_node_) {
      if (task->self.node == task->first) return leave_to_controller(task->first);
      target_.endpoint = fmt::format("tcp://{}:{}", task->first, port_);
    }
    options_.endpoint = checked_endpoint(target_.endpoint);
    options_.keys = target_.keys;
    if (task && options_.name.empty()) options_.name = task->self.name;
    options_.wait = std::chrono::seconds(wait_);
    options_.drain_deadline = std::chrono::seconds(drain_deadline_);
    options_.on_waiting = log_line;
    options_.on_drained = [] {
      log_line(
          "this host is drained: its actors have left, and no job comes here; Ctrl-C and `troupe "
          "join` bring them back");
    };
    for (auto& plugin : options_.plugins)
      plugin = absolute_path(plugin);
    make_log_folder(options_.log_folder);
    cluster::check_device(options_);
    check_crowding(options_.actors, options_.threads_per_actor, options_.device);
    SignalWatch signals;
    if (task) await_ranks_before(*task, first_node_, signals);
    cluster::JoinedHost host = begin();
    ActOnSignal stop(signals, [&] { host.stop(); });
    const auto why = host.run([&] { print_joined(host.name()); });
    if (signals.caught() == SIGINT && isatty(STDERR_FILENO)) std::cerr << std::endl;
    log_line(why);
    return kOk;
  }

 private:
  cluster::JoinedHost begin() const {
    try {
      return cluster::JoinedHost(options_);
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(by_option(error.what(), {{"keys", "--keys"}}));
    }
  }

  /// The cluster's own actors are on that node: GPUs would be taken twice.
  int leave_to_controller(const std::string& node) const {
    if (json()) {
      print_json({{"host", node}, {"actors", 0}});
    } else {
      std::cout << node << " is left to the controller, which has its own actors there"
                << std::endl;
    }
    return kOk;
  }

  /// Waits until the host of the rank before has joined, so that actors are numbered as ranks are:
  /// Slurm lists neighbours side by side. The wait is short: that host may have another name, or be
  /// lost.
  void await_ranks_before(const SlurmTask& task, bool first_node, const SignalWatch& signals) {
    auto before = task.before;
    if (first_node)
      std::erase_if(before, [&](const auto& other) { return other.node == task.first; });
    if (before.empty() || options_.name != task.self.name) return;
    const std::string& awaited = before.back().name;
    const auto patience = std::min<std::chrono::seconds>(options_.wait, kRanksBefore);
    const auto deadline = std::chrono::steady_clock::now() + patience;
    const auto left = [&] {
      return std::chrono::duration_cast<std::chrono::milliseconds>(
          deadline - std::chrono::steady_clock::now());
    };
    std::optional<Client> client;
    bool said = false;
    while (!signals.caught() && left().count() > 0) {
      if (!client) {
        auto connected =
            Client::connect(options_.endpoint, std::min<std::chrono::milliseconds>(left(), kAnswer),
                            options_.keys, signals.token());
        if (connected) {
          client.emplace(std::move(connected.value()));
        } else if (is_final(connected.error().code)) {
          return;  // whoever joins is told the same, and says it
        }
      }
      if (client) {
        const auto cluster = client->status();
        if (!cluster) {
          client.reset();
        } else if (std::ranges::any_of(cluster.value().actors,
                                       [&](const auto& actor) { return actor.host == awaited; })) {
          return;
        } else if (!std::exchange(said, true)) {
          log_line(fmt::format("waiting for {}, the rank before, to join, for {} s at most",
                               awaited, patience.count()));
        }
      }
      std::this_thread::sleep_for(kLookAgain);
    }
    if (!signals.caught() && patience.count() > 0)
      std::cerr << "troupe: " << awaited << ", the rank before, has not joined within "
                << patience.count() << " s: this host does not wait for it any longer" << std::endl;
  }

  /// True if another try would be answered as the first was.
  static bool is_final(ErrorCode code) {
    return code == ErrorCode::refused || code == ErrorCode::version_mismatch ||
           code == ErrorCode::bad_request;
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
  int port_ = 7400;
  bool first_node_ = false;  // of Slurm's job has the controller
  int wait_ = 60;
  int drain_deadline_ = 60;
};

}  // namespace

std::unique_ptr<Verb> make_join(Options& options) {
  return std::make_unique<JoinVerb>(options);
}

}  // namespace troupe::cli
