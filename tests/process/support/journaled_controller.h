#pragma once
#include <signal.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/process/support/connect.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"

namespace troupe::testing {

/// A controller as a process of its own, which is killed and started again on one journal.
class JournaledController {
 public:
  explicit JournaledController(std::vector<std::string> more = {}) : more_(std::move(more)) {
    start();
  }

  void start() {
    std::vector<std::string> arguments = {"start",
                                          "--actors",
                                          "2",
                                          "--listen",
                                          endpoint(),
                                          "--model",
                                          TROUPE_SOURCE_DIR "/examples/demo/model",
                                          "--journal",
                                          journal()};
    arguments.insert(arguments.end(), more_.begin(), more_.end());
    controller_.emplace(arguments, scratch_.path.string());
  }
  bool ready() {
    return eventually(2 * kPatience,
                      [&] { return controller_->out().find("ready") != std::string::npos; });
  }
  void kill() {
    actors_ = actors_of(controller_->pid());
    controller_->signal(SIGKILL);
    controller_->wait(kPatience);
  }
  void signal(int number) { controller_->signal(number); }
  /// Kills the controller and starts it again.
  void blow() {
    kill();
    CHECK(gone(actors_));
    start();
  }
  void stop() {
    controller_->signal(SIGTERM);
    CHECK(controller_->wait(2 * kPatience) == 0);
  }

  /// Waits until the journal has everything that happened before.
  void settle(Client& client) {
    auto job = tiny_job(1);
    job.detached = true;
    // A job is accepted when it is written down, and changes are written in their order. Its end is
    // told when it is written, too, by the cancel or before that came: a controller that is started
    // again must not compute it.
    const auto next = client.submit(job);
    REQUIRE(next);
    const auto cancelled = client.cancel(next.value());
    const auto ended = client.wait(next.value(), kPatience);
    INFO((ended ? std::string("it succeeded") : ended.error().what));
    CHECK((ended || cancelled));
    if (!ended) CHECK(ended.error().what.find("cancelled by a client") != std::string::npos);
  }
  /// Returns an inspector for holds, once all actors are there.
  Inspector inspector() {
    REQUIRE(ready());
    return take(Inspector::connect(endpoint(), kPatience), "inspect");
  }

  std::string endpoint() const { return "ipc://" + (scratch_ / "control.sock"); }
  std::string journal() const { return scratch_ / "journal"; }
  std::string folder() const { return scratch_.path.string(); }
  std::string out() const { return controller_->out(); }
  std::string err() const { return controller_->err(); }
  Client client() {
    std::optional<Client> client;
    REQUIRE(eventually(2 * kPatience, [&] {
      auto made = Client::connect(endpoint());
      if (made) client.emplace(std::move(made.value()));
      return client.has_value();
    }));
    return std::move(*client);
  }

 private:
  Scratch scratch_;
  std::vector<std::string> more_;
  std::vector<pid_t> actors_;
  std::optional<Command> controller_;
};

}  // namespace troupe::testing
