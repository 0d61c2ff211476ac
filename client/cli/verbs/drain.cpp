#include <algorithm>
#include <chrono>
#include <iostream>
#include <thread>

#include "client/cli/endpoint.h"
#include "client/cli/json.h"
#include "client/cli/verb.h"
#include "troupe/actor.h"

namespace troupe::cli {
namespace {

class DrainVerb : public Verb {
 public:
  explicit DrainVerb(CLI::App& parent)
      : Verb(parent, "drain",
             "Empty hosts or actors without losing a job; then their actors leave") {
    app_->add_option("PLACE", places_, "Hosts by name, actors by number, as `troupe status` shows")
        ->type_name("HOST|ACTOR");
    app_->add_flag(
        "--now", now_,
        "Running jobs go on elsewhere at once, where there are idle actors for them or "
        "they are --elastic; users' actors there end, and restart elsewhere if they may");
    app_->add_option("--wait", wait_, "Return when they are empty, after S seconds at most")
        ->check(whole(0, 86'400))
        ->type_name("S");
    add_connect_option(*app_, target_);
  }

  int run() override {
    if (places_.empty()) throw UsageError("drain needs a HOST or an ACTOR");
    Client client = connect(target_);
    const std::string note = take(client.drain(places_, now_));
    if (wait_ > 0) await_end(client);
    if (json()) {
      print_json({{"places", places_}, {"note", note}, {"empty", wait_ > 0}});
    } else {
      std::cout << (wait_ > 0 ? "drained" : note) << std::endl;
    }
    return kOk;
  }

 private:
  bool named(const ActorInfo& actor) const {
    return std::any_of(places_.begin(), places_.end(), [&](const auto& place) {
      return place == actor.host || place == std::to_string(actor.id);
    });
  }

  void await_end(Client& client) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(wait_);
    for (;;) {
      const auto actors = take(client.status()).actors;
      const auto users = take(client.actors().list());
      const bool busy = std::any_of(actors.begin(), actors.end(), [&](const auto& actor) {
        return named(actor) && actor.state == "draining";
      });
      const bool used = std::any_of(users.begin(), users.end(), [&](const auto& actor) {
        return actor.state != "dead" && std::ranges::find(places_, actor.host) != places_.end();
      });
      if (!busy && !used) return;
      if (std::chrono::steady_clock::now() > deadline)
        throw CommandError(
            Error{"timeout", "not empty after " + std::to_string(wait_) + " s; it goes on"});
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  std::vector<std::string> places_;
  bool now_ = false;
  int wait_ = 0;
  Target target_;
};

}  // namespace

std::unique_ptr<Verb> make_drain(CLI::App& parent) {
  return std::make_unique<DrainVerb>(parent);
}

}  // namespace troupe::cli
