#include <iostream>

#include "client/cli/endpoint.h"
#include "client/cli/json.h"
#include "client/cli/table.h"
#include "client/cli/verb.h"

namespace troupe::cli {
namespace {

/// "pp 1/4 [0 2 4 6]": rank 1 of the four actors named.
std::string groups_text(const ActorInfo& actor) {
  std::string text;
  for (const GroupInfo& group : actor.groups) {
    if (!text.empty()) text += ", ";
    text += group.axis + " " + std::to_string(group.rank_in_group) + "/" +
            std::to_string(group.ranks.size()) + " [";
    for (std::size_t i = 0; i < group.ranks.size(); ++i) {
      if (i > 0) text += ' ';
      text += std::to_string(group.ranks[i]);
    }
    text += "]";
  }
  return text.empty() ? "-" : text;
}

Row actor_row(const ActorInfo& actor) {
  return {std::to_string(actor.id),
          actor.state,
          actor.host,
          std::to_string(actor.pid),
          actor.device,
          std::to_string(actor.local_rank),
          std::to_string(actor.restarts),
          bytes_text(actor.memory_bytes),
          groups_text(actor),
          actor.doing.empty() ? "-" : actor.doing};
}

void print_status(const ClusterInfo& cluster) {
  std::cout << "Cluster\n"
            << "  endpoint    " << cluster.endpoint << "\n"
            << "  controller  " << cluster.host << ", pid " << cluster.pid << ", troupe "
            << cluster.version << ", up " << duration_text(cluster.uptime_seconds) << "\n"
            << "  model       " << (cluster.model.empty() ? "(as each job says)" : cluster.model)
            << "\n\n";
  std::cout << "Actors: " << cluster.actors.size() << "\n";
  if (!cluster.actors.empty()) {
    std::vector<Row> rows;
    for (const ActorInfo& actor : cluster.actors)
      rows.push_back(actor_row(actor));
    std::cout << table({"ID", "STATE", "HOST", "PID", "DEVICE", "LOCAL", "RESTARTS", "MEMORY",
                        "GROUPS (rank/size)", "DOING"},
                       rows);
  }
  std::cout << "\nJobs: " << cluster.jobs_queued << " queued, " << cluster.jobs_running
            << " running, " << cluster.jobs_ended << " ended\n\n"
            << "Recent failures:" << (cluster.recent_failures.empty() ? " none" : "") << "\n";
  for (const std::string& failure : cluster.recent_failures)
    std::cout << "  " << failure << "\n";
  std::cout << std::flush;
}

class StatusVerb : public Verb {
 public:
  explicit StatusVerb(CLI::App& parent)
      : Verb(parent, "status", "Say who lives where, in which groups with which rank, doing what") {
    add_connect_option(*app_, endpoint_);
  }

  int run() override {
    Client client = take(Client::connect(checked_endpoint(endpoint_)));
    const ClusterInfo cluster = take(client.status());
    if (json()) {
      print_json(to_json(cluster));
    } else {
      print_status(cluster);
    }
    return kOk;
  }

 private:
  std::string endpoint_;
};

}  // namespace

std::unique_ptr<Verb> make_status(CLI::App& parent) {
  return std::make_unique<StatusVerb>(parent);
}

}  // namespace troupe::cli
