#include <unistd.h>

#include <chrono>
#include <iostream>
#include <thread>

#include "base/format.h"
#include "client/cli/cluster_view.h"
#include "client/cli/endpoint.h"
#include "client/cli/job_view.h"
#include "client/cli/json.h"
#include "client/cli/verb.h"

namespace troupe::cli {
namespace {

void print_status(const ClusterInfo& cluster, bool all) {
  std::cout << status_text(cluster, output_width(), all ? cluster.actors.size() : kShownRows)
            << std::flush;
}

class StatusVerb : public Verb {
 public:
  explicit StatusVerb(Options& parent)
      : Verb(parent, "status", "Say who lives where, in which groups with which rank, doing what") {
    app_->add_option("--watch", watch_seconds_, "Say it again and again, so far apart")
        ->check(number(0.1, 86400))
        ->type_name("SECONDS");
    app_->add_flag("--all", all_,
                   fmt::format("All actors; else of more than {} the first", kShownRows));
    add_connect_option(*app_, target_);
    set_footer(
        "GROUPS is, for each axis that the actor shares with others, its rank and all ranks: \"pp "
        "1/2 [0 2]\" is the second of two stages. Jobs themselves are in `troupe jobs`. --watch "
        "goes on until Ctrl-C, or the cluster's end.",
        {"troupe status", "troupe status --watch 2", "troupe status --json"}, "commands.md#status");
  }

  int run() override {
    if (json() && watch_seconds_ > 0) throw UsageError("--watch does not go with --json");
    Client client = connect(target_);
    if (json()) {
      print_json(to_json(take(client.status())));
      return kOk;
    }
    print_status(take(client.status()), all_);
    while (watch_seconds_ > 0 && std::cout) {
      std::this_thread::sleep_for(std::chrono::duration<double>(watch_seconds_));
      const ClusterInfo cluster = take(client.status());
      std::cout << (isatty(STDOUT_FILENO) ? "\x1b[H\x1b[2J" : "\n");
      print_status(cluster, all_);
    }
    return kOk;
  }

 private:
  double watch_seconds_ = 0;  // 0: once
  bool all_ = false;
  Target target_;
};

}  // namespace

std::unique_ptr<Verb> make_status(Options& parent) {
  return std::make_unique<StatusVerb>(parent);
}

}  // namespace troupe::cli
