// What each role of a key may do, over every verb and call.
#include <nlohmann/json.hpp>

#include "tests/process/support/connect.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/models.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"
#include "transport/control/key_folder.h"
#include "troupe/actor.h"
#include "troupe/inspect.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

using control::ClientRole;
using Words = std::vector<std::string>;

/// One who has a key.
struct Someone {
  std::string keys;
  Client client;
  Inspector inspector;
};

/// "" when it was done, else why not.
template <class T>
std::string said(const Result<T>& result) {
  return result ? "" : result.error().what;
}

}  // namespace

TEST_CASE("own-jobs, all-jobs, operate: each may what its name says, and is told why not") {
  const Scratch scratch;
  const control::KeyFolder keys(scratch / "keys");
  keys.make(false);
  auto options = actors(1);
  options.listen = "tcp://127.0.0.1:0";
  options.keys = scratch / "keys";
  options.model = checkpoint("tiny-pixart");
  cluster::Cluster cluster(options);
  cluster.wait_ready(kReadyDeadline);
  const auto someone = [&](const std::string& name, ClientRole role) {
    const std::string folder = scratch / name;
    const auto key = control::KeyFolder(scratch / "keys").make_client(folder, false);
    keys.add({name, key, role});
    return Someone{folder, take(Client::connect(cluster.endpoint(), kPatience, folder), "connect"),
                   take(Inspector::connect(cluster.endpoint(), kPatience, folder), "connect")};
  };
  auto alice = someone("alice", ClientRole::own_jobs), bob = someone("bob", ClientRole::own_jobs),
       carol = someone("carol", ClientRole::all_jobs), dave = someone("dave", ClientRole::operate);

  auto held_job = tiny_job();
  held_job.detached = true;
  hold_actor(dave.inspector, 0, {.step = 1});
  const auto job = take(alice.client.submit(held_job), "submit");
  CHECK(said(alice.inspector.control(job, JobAction::pause)) == "");
  const auto not_its_own =
      "job " + std::to_string(job) + " is not its own: the key \"bob\" has the role own-jobs";
  const auto needs = [](const std::string& name, const std::string& has, const std::string& need) {
    return "the key \"" + name + "\" has the role " + has + ", and this needs " + need;
  };

  // Somebody else's job.
  CHECK(take(bob.client.jobs(), "jobs").empty());
  for (auto* each : {&alice, &carol, &dave})
    CHECK(take(each->client.jobs(), "jobs").size() == 1);
  CHECK(has(said(bob.client.cancel(job)), not_its_own));
  CHECK(has(said(bob.client.wait(job, kPatience)), not_its_own));
  CHECK(has(said(bob.inspector.control(job, JobAction::pause)), not_its_own));
  CHECK(has(said(bob.inspector.latents(job)), not_its_own));
  CHECK(has(said(bob.inspector.graph(job)), not_its_own));
  CHECK(has(said(bob.inspector.timeline(job)), not_its_own));
  CHECK(has(said(bob.inspector.failures(job)), not_its_own));
  CHECK(has(said(bob.client.cancel(job + 1)), "is not known here"));
  const auto work_told_to = [](Someone& who) {
    return take(who.client.status(), "status").actors.at(0).doing;
  };
  CHECK(eventually(kPatience, [&] { return has(work_told_to(alice), "job "); }));
  CHECK(has(work_told_to(carol), "job " + std::to_string(job)));
  CHECK(work_told_to(bob) == "another client's job");
  // Its own, and everybody's.
  CHECK(eventually(kPatience, [&] { return alice.inspector.graph(job).ok(); }));
  CHECK(said(alice.inspector.timeline(job)) == "");
  CHECK(has(said(alice.inspector.timeline(0)), "of which job?"));
  CHECK(has(said(alice.inspector.failures()), "of which job?"));
  CHECK(said(alice.inspector.machine()) == "");
  CHECK(said(carol.inspector.timeline(0)) == "");
  CHECK(said(carol.inspector.failures()) == "");

  // What concerns more than jobs.
  for (auto* each : {&alice, &bob, &carol, &dave})
    CHECK(said(each->client.status()) == "");
  CHECK(has(said(alice.inspector.logs(0)), needs("alice", "own-jobs", "all-jobs")));
  CHECK(has(said(alice.inspector.logs(-1)), needs("alice", "own-jobs", "all-jobs")));
  CHECK(said(carol.inspector.logs(0)) == "");
  CHECK(has(said(alice.client.actors().list()), needs("alice", "own-jobs", "all-jobs")));
  CHECK(has(said(alice.client.actors().classes()), needs("alice", "own-jobs", "all-jobs")));
  CHECK(has(said(alice.client.actors().kill(1)), needs("alice", "own-jobs", "all-jobs")));
  CHECK(has(said(alice.client.actors().find("x", 1s)), needs("alice", "own-jobs", "all-jobs")));
  CHECK(said(carol.client.actors().list()) == "");
  for (auto* each : {&alice, &carol}) {
    const auto refusal = each == &alice ? needs("alice", "own-jobs", "operate")
                                        : needs("carol", "all-jobs", "operate");
    CHECK(has(said(each->inspector.mailbox(0)), refusal));
    CHECK(has(said(each->inspector.tensors(0, job)), refusal));
    CHECK(has(said(each->inspector.slice(0, job, "x", {})), refusal));
    CHECK(has(said(each->inspector.inject(0, Fault::kill)), refusal));
    CHECK(has(said(each->client.drain({"0"})), refusal));
    CHECK(has(said(each->client.stop_cluster()), refusal));
    // A host that joins is given the cluster's secrets.
    Command join({"join", "--connect", cluster.endpoint(), "--keys", each->keys, "--name", "guest",
                  "--wait", "20"},
                 scratch.path.string());
    CHECK(join.wait(kPatience) == 1);
    CHECK(has(join.err(), "and a host that joins needs operate"));
  }
  CHECK(said(dave.inspector.mailbox(0)) == "");
  CHECK(said(carol.inspector.control(job, JobAction::resume)) == "");
  CHECK(said(carol.client.cancel(job)) == "");

  // The command line passes the words on, and names roles.
  const auto does = [&](const Words& words) {
    Command command(words, scratch.path.string());
    const int code = command.wait(kPatience);
    return std::tuple(code, command.out(), command.err());
  };
  const auto [stopped, nothing, why] =
      does({"stop", "--connect", cluster.endpoint(), "--keys", alice.keys});
  CHECK(stopped == 1);
  CHECK(has(why, needs("alice", "own-jobs", "operate")));
  const auto [changed, told, no_error] =
      does({"keys", "role", "alice", "--role", "operate", "--keys", scratch / "keys"});
  CHECK(changed == 0);
  CHECK(has(told, "operate for alice"));
  const auto [listed, list, none] = does({"keys", "list", "--json", "--keys", scratch / "keys"});
  CHECK(listed == 0);
  std::map<std::string, std::string> roles;
  const auto listing = nlohmann::json::parse(list);
  for (const auto& client : listing["clients"])
    roles[client["name"].get<std::string>()] = client["role"].get<std::string>();
  CHECK(roles == std::map<std::string, std::string>{{"default", "operate"},
                                                    {"alice", "operate"},
                                                    {"bob", "own-jobs"},
                                                    {"carol", "all-jobs"},
                                                    {"dave", "operate"}});
  // A link that is up stays as it is; the next one may more.
  CHECK(has(said(alice.client.stop_cluster()), needs("alice", "own-jobs", "operate")));
  auto again = take(Client::connect(cluster.endpoint(), kPatience, alice.keys), "connect");
  CHECK(said(again.stop_cluster()) == "");
}
