#include <algorithm>
#include <chrono>
#include <iostream>
#include <thread>

#include "base/format.h"
#include "client/cli/endpoint.h"
#include "client/cli/json.h"
#include "client/cli/options.h"
#include "client/cli/verb.h"
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

}  // namespace troupe::cli
