#include <signal.h>

#include <cerrno>
#include <chrono>
#include <iostream>
#include <thread>

#include "base/format.h"
#include "client/cli/endpoint.h"
#include "client/cli/json.h"
#include "client/cli/verb.h"
#include "client/listener.h"
#include "transport/control/endpoint.h"
#include "transport/control/types.h"

namespace troupe::cli {
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
