#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iostream>
#include <thread>

#include "base/format.h"
#include "client/cli/json.h"
#include "client/cli/options.h"
#include "client/cli/verb.h"
#include "client/link.h"
#include "transport/control/endpoint.h"
#include "transport/control/types.h"
#include "troupe/actor.h"

namespace troupe::cli {
namespace {

class DrainVerb : public Verb {
 public:
  explicit DrainVerb(Options& options) : Verb(options) {
    app_->add_option("PLACE", places_, "Hosts by name, actors by number, as `troupe status` shows")
        ->type_name("HOST|ACTOR")
        ->kind(ValueKind::place);
    app_->add_flag(
        "--now", now_,
        "Running jobs go on elsewhere at once, where there are idle actors for them or "
        "they are --elastic; users' actors there end, and restart elsewhere if they may");
    app_->add_option("--wait", wait_, "Return when they are empty, after S seconds at most")
        ->check(whole(0, 86'400))
        ->type_name("S");
    add_connect_option(*app_, target_);
    set_footer("No new job goes there; running jobs end there, then the actors leave for good.",
               {"troupe drain node7 --wait 600", "troupe drain 2 3 --now"}, "operate.md#drain");
  }

  int run() override {
    if (places_.empty()) throw UsageError("drain needs a HOST or an ACTOR");
    Client client = connect(target_);
    const std::string note = take(client.drain(places_, now_));
    if (wait_ > 0) {
      std::cerr << "troupe: " << one_line(note) << std::endl;
      await_end(client);
    }
    if (json()) {
      print_json({{"places", places_},
                  {"note", note},
                  {"empty", wait_ > 0 || who_is_left(client).empty()}});
    } else {
      std::cout << (wait_ > 0 ? "drained" : one_line(note)) << std::endl;
    }
    return kOk;
  }

 private:
  bool named(const ActorInfo& actor) const {
    return std::any_of(places_.begin(), places_.end(), [&](const auto& place) {
      return place == actor.host || place == std::to_string(actor.id);
    });
  }

  /// Returns the actors that are still there and why: "actor 1 (job 3 step 5), user's actor 7
  /// (Counter)"; empty if there are none.
  std::string who_is_left(Client& client) const {
    std::string left;
    const auto add = [&left](const std::string& who, const std::string& what) {
      left += (left.empty() ? "" : ", ") + who + (what.empty() ? "" : " (" + what + ")");
    };
    for (const auto& actor : take(client.status()).actors) {
      if (named(actor) && actor.state == ActorState::draining)
        add(fmt::format("actor {}", actor.id), actor.doing);
    }
    for (const auto& actor : take(client.actors().list())) {
      if (actor.state != UserActorState::dead &&
          std::ranges::find(places_, actor.host) != places_.end())
        add(fmt::format("user's actor {}", actor.id), actor.class_name);
    }
    return left;
  }

  void await_end(Client& client) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(wait_);
    for (;;) {
      const std::string left = who_is_left(client);
      if (left.empty()) return;
      if (std::chrono::steady_clock::now() > deadline)
        throw CommandError(
            Error{ErrorCode::timeout,
                  fmt::format("not empty after {} s: {}; draining goes on", wait_, left)});
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  std::vector<std::string> places_;
  bool now_ = false;
  int wait_ = 0;
  Target target_;
};

}  // namespace

std::unique_ptr<Verb> make_drain(Options& options) {
  return std::make_unique<DrainVerb>(options);
}

namespace {

constexpr auto kStopDeadline = std::chrono::seconds(15);

class StopVerb : public Verb {
 public:
  explicit StopVerb(Options& options) : Verb(options) {
    add_connect_option(*app_, target_);
    set_footer(
        "A cluster that was started with --journal goes on with its jobs when it is started again. "
        "Hosts that joined leave; where the controller alone is ended, by a signal, they wait for "
        "the next one. "
        "Returns when the controller is gone; `troupe drain` lets jobs end first.",
        {"troupe stop"}, "commands.md#stop");
  }

  int run() override {
    const std::string endpoint = checked_endpoint(target_.endpoint);
    Client client = connect(target_);
    const ClusterInfo cluster = take(client.status());
    const auto asked = client.stop_cluster();
    // A controller that is gone before its answer was read has stopped, too.
    if (!asked && asked.error().code != ErrorCode::lost) throw CommandError(asked.error());
    await_end(client, cluster);
    if (cluster.host == control::host_name())
      await_free_address(control::parse_endpoint(endpoint), cluster.pid);
    const auto jobs = cluster.jobs_queued + cluster.jobs_running;
    const std::string note = jobs > 0 && asked ? one_line(asked.value()) : "";
    if (json()) {
      print_json({{"stopped", endpoint}, {"pid", cluster.pid}, {"jobs", jobs}, {"note", note}});
    } else {
      std::cout << "stopped " << endpoint << (note.empty() ? "" : ": " + note) << std::endl;
    }
    return kOk;
  }

 private:
  /// Waits until the controller no longer answers.
  static void await_end(Client& client, const ClusterInfo& cluster) {
    const auto deadline = std::chrono::steady_clock::now() + kStopDeadline;
    while (client.status()) {
      if (std::chrono::steady_clock::now() > deadline) {
        throw CommandError(
            Error{ErrorCode::timeout,
                  fmt::format("the controller (pid {} on {}) was told to stop and still answers",
                              cluster.pid, cluster.host)});
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  /// Waits while the controller's process lives and the address is taken, so that the next `troupe
  /// start` on this machine finds it free: a controller says goodbye before it closes its sockets.
  static void await_free_address(const control::Endpoint& address, std::int64_t pid) {
    if (!address.ipc && !address.loopback()) return;
    const auto blobs = control::parse_endpoint(control::blob_endpoint_of(address.text));
    const auto deadline = std::chrono::steady_clock::now() + kStopDeadline;
    const auto lives = [pid] { return kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM; };
    for (const auto* each : {&address, &blobs}) {
      while (client::listener_missing(*each).empty() && lives() &&
             std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  Target target_;
};

}  // namespace

std::unique_ptr<Verb> make_stop(Options& options) {
  return std::make_unique<StopVerb>(options);
}

}  // namespace troupe::cli
