// Two hosts with a network between them: namespaces of this machine, and a link that can be cut.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/process/support/damage.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/processes.h"
#include "tests/process/support/two_hosts.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;
using nlohmann::json;

namespace {

const std::string kModel = TROUPE_SOURCE_DIR "/examples/demo/model";
const std::string kTroupe = TROUPE_BINARY_DIR "/bin/troupe";

/// A cluster on "a" with keys, and its guest on "b", an actor each.
class Stage {
 public:
  Stage() {
    must("keys --keys " + keys_);
    const std::string runtime = "env XDG_RUNTIME_DIR=" + scratch_.path.string() + " ";
    controller_ = std::make_unique<Background>(
        net_.on_a(runtime + kTroupe + " start --actors 1 --listen " + endpoint_ + " --keys " +
                  keys_ + " --model " + kModel + " >" + (scratch_ / "start.out") + " 2>&1"));
    join_ = std::make_unique<Background>(
        net_.on_b(runtime + kTroupe + " join --actors 1 --name b --connect " + endpoint_ +
                  " --keys " + keys_ + " >" + (scratch_ / "join.out") + " 2>&1"));
  }

  TwoHosts& net() { return net_; }
  Background& join() { return *join_; }
  std::string said(const std::string& file) const { return read_all(scratch_ / file); }
  json status() const {
    const auto file = scratch_ / "status";
    if (!does(client("status --json", file))) return {};
    return json::parse(read_all(file), nullptr, /*allow_exceptions=*/false);
  }
  /// Returns whether the controller's actor is held in a job.
  bool holds() const {
    const auto now = status();
    return now.contains("actors") && has(now["actors"][0].dump(), "(held)");
  }
  bool guest_is(const std::string& state, std::chrono::milliseconds deadline) const {
    return eventually(deadline, [&] {
      const auto now = status();
      if (!now.contains("actors") || now["actors"].size() != 2) return false;
      return now["actors"][1]["state"] == state;
    });
  }
  std::string client(const std::string& words, const std::string& out) const {
    return net_.on_a(kTroupe + " " + words + " --connect " + endpoint_ + " --keys " + keys_ + " >" +
                     out + " 2>" + out + ".err");
  }
  std::string path(const std::string& name) const { return scratch_ / name; }

 private:
  void must(const std::string& words) const {
    REQUIRE(does(kTroupe + " " + words + " >/dev/null"));
  }
  Scratch scratch_;
  TwoHosts net_;
  std::string keys_ = scratch_ / "keys";
  std::string endpoint_ = "tcp://10.77.0.1:7400";
  std::unique_ptr<Background> controller_;
  std::unique_ptr<Background> join_;
};

json report_of(const Stage& stage, const std::string& out) {
  const auto document = json::parse(stage.said(out));
  return document.contains("report") ? document["report"] : document;
}

}  // namespace

TEST_CASE("two hosts: one picture over both, links that go down both ways and one way" *
          doctest::skip(!TwoHosts::possible())) {
  Stage stage;
  REQUIRE(stage.guest_is("ready", kPatience));
  const std::string words = "submit --prompt 'a red circle' --steps 12 --seed 3 --output ";
  CHECK(does(stage.client(words + stage.path("alone.png"), stage.path("alone"))));
  const auto alone = read_png(stage.path("alone.png"));
  for (const std::string degrees : {"--cfg 2", "--pp 2", "--ulysses 2", "--ring 2", "--tp 2"}) {
    CAPTURE(degrees);
    CHECK(does(stage.client(words + stage.path("both.png") + " " + degrees, stage.path("both"))));
    const auto both = read_png(stage.path("both.png"));
    REQUIRE(both.data.size() == alone.data.size());
    int worst = 0;
    for (std::size_t i = 0; i < both.data.size(); ++i)
      worst = std::max(worst, std::abs(int(both.data[i]) - int(alone.data[i])));
    CHECK(worst <= 1);
  }

  for (const bool one_way : {false, true}) {
    CAPTURE(one_way);
    CHECK(does(stage.client("repl -c 'inject hold 0 3600 step 8'", stage.path("hold"))));
    Background job(
        stage.client("submit --json --elastic --pp 2 -q --steps 150 --prompt x --output " +
                         stage.path("job.png"),
                     stage.path("job")));
    REQUIRE(eventually(2 * kPatience, [&] { return stage.holds(); }));
    const auto blow = std::chrono::steady_clock::now();
    one_way ? stage.net().cut_one_way() : stage.net().cut();
    CHECK(stage.guest_is("dead", kPatience));
    const double noticed =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - blow).count();
    CHECK(noticed < 60);
    one_way ? stage.net().mend_one_way() : stage.net().mend();
    CHECK(job.wait(600s) == 0);
    INFO(stage.said("job.err"));
    const auto report = report_of(stage, "job");
    CHECK(report["parts"].size() == 2);
    MESSAGE(std::string(one_way ? "one way" : "both ways")
            << ": noticed after " << noticed << " s; " << report["recoveries"].dump());
    // The host comes back by itself, into its place.
    CHECK(stage.guest_is("ready", kPatience));
  }
  CHECK(does(stage.client("stop", stage.path("stop"))));
  CHECK(stage.join().wait(kPatience) == 0);
}

TEST_CASE("a model that is not on every host: the job fails with the host's name" *
          doctest::skip(!TwoHosts::possible())) {
  Scratch scratch;
  const auto folder = copy_of("tiny-pixart", scratch.path);
  auto options = actors(1);
  options.listen = "tcp://127.0.0.1:0";
  FaultCluster cluster(options);
  // To the guest the folder is empty.
  Background guest("exec unshare -m sh -c 'mount -t tmpfs none " + folder.string() + " && exec " +
                   kTroupe + " join --name beta --connect " + cluster.cluster().endpoint() +
                   " >/dev/null 2>&1'");
  REQUIRE(eventually(kPatience, [&] {
    const auto rows = cluster.status().actors;
    return rows.size() == 2 && rows[1].state == ActorState::ready;
  }));
  auto job = tiny_job();
  job.model = folder.string();
  cluster.run(job);
  job.parallelism.cfg = 2;
  const auto id = cluster.submit(job);
  const auto fall = cluster.client().wait(id, kPatience);
  REQUIRE(!fall);
  CHECK(has(fall.error().what, "actor 1 on beta: "));
  CHECK(has(fall.error().what, folder.string()));
  MESSAGE(fall.error().what);
}
