#include <chrono>
#include <iostream>
#include <thread>

#include "base/numbers.h"
#include "client/cli/endpoint.h"
#include "client/cli/json.h"
#include "client/cli/signals.h"
#include "client/cli/verb.h"
#include "troupe/inspect.h"

namespace troupe::cli {
namespace {

constexpr std::chrono::milliseconds kAskAgain{500};
constexpr std::uint32_t kMostLines = 10'000;

class LogsVerb : public SharedVerb {
 public:
  LogsVerb(Options& options, Where where) : SharedVerb(options, where) {
    app_->add_option("WHO", who_, "An actor's ID, or controller (the default)")
        ->kind(ValueKind::speaker);
    app_->add_flag("--follow,-f", follow_, "Go on as more comes, until Ctrl-C");
    app_->add_option("--lines", lines_, "The last lines only")
        ->check(whole(1, kMostLines))
        ->type_name("N")
        ->capture_default_str();
    if (in_console())
      app_->add_option("LINES", lines_, "The same as --lines, in its place")
          ->check(whole(1, kMostLines));
    add_connect();
    app_->add_rivals({"--follow", "--json"});
    set_footer(
        "The cluster remembers the last lines of every actor, those of its earlier processes too. "
        "What is older is in the folder of `troupe start --keep-logs`.",
        {"troupe logs 2", "troupe logs controller --follow"}, "observability.md#logs");
  }

  bool shows_progress() const override { return follow_; }

  void check() override {
    if (follow_ && json()) throw UsageError("--follow does not go with --json");
  }

 protected:
  int run_on(Connections& at) override {
    const bool controller = who_ == "controller";
    const std::int64_t who = controller ? -1 : static_cast<std::int64_t>(checked_actor());
    Inspector& inspector = at.inspector();
    const SignalWatch& signals = at.signals();
    LogInfo info = take(inspector.logs(who, 0, lines_));
    if (json()) {
      print({{"who", who_}, {"last", info.last}, {"lines", info.lines}});
      return kOk;
    }
    if (info.lines.empty() && !follow_ && in_console())
      std::cout << (controller ? "the controller" : "actor " + who_) << " has said nothing\n";
    show(info);
    // Who runs the verb says that nobody can read it.
    while (follow_ && std::cout.good() && signals.caught() == 0) {
      std::this_thread::sleep_for(kAskAgain);
      info = take(inspector.logs(who, info.last, kMostLines));
      show(info);
    }
    return signals.caught() == 0 || signals.caught() == SIGINT ? kOk : signals.exit_code();
  }

 private:
  std::uint32_t checked_actor() const {
    if (const auto actor = parse_number<std::uint32_t>(who_)) return *actor;
    throw UsageError("logs \"" + who_ +
                     "\": WHO is controller, or an actor's ID as `troupe status` "
                     "shows it");
  }

  static void show(const LogInfo& info) {
    for (const std::string& line : info.lines)
      std::cout << on_one_line(line) << "\n";
    std::cout << std::flush;
  }

  std::string who_ = "controller";
  bool follow_ = false;
  std::uint32_t lines_ = 100;
};

}  // namespace

std::unique_ptr<SharedVerb> make_logs(Options& options, Where where) {
  return std::make_unique<LogsVerb>(options, where);
}

}  // namespace troupe::cli
