#include <chrono>
#include <iostream>
#include <thread>

#include "base/numbers.h"
#include "client/cli/files.h"
#include "client/cli/json.h"
#include "client/cli/signals.h"
#include "client/cli/terminal.h"
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

namespace {

class TimelineVerb : public SharedVerb {
 public:
  TimelineVerb(Options& options, Where where) : SharedVerb(options, where) {
    app_->add_option("ID", id_, "The job, as `troupe jobs` names it, or all")->kind(ValueKind::job);
    app_->add_option("-o,--output", output_,
                     "Trace file, replaced if it is there; - = standard output")
        ->check(not_empty())
        ->type_name("FILE.json")
        ->capture_default_str();
    add_connect();
    set_footer(
        "A row for each actor, a slice for each micro-step with its waits inside, an arrow for "
        "each "
        "tensor. Open it "
        "at https://ui.perfetto.dev or chrome://tracing. A job that runs is shown as far as it is.",
        {"troupe timeline 3 -o trace.json"}, "observability.md#time-lines");
  }

 protected:
  int run_on(Connections& at) override {
    const std::uint64_t job = id_ == "all" ? 0 : checked_job_id("timeline", id_);
    const bool to_file = output_ != "-";
    if (!to_file && json()) throw UsageError("--output - and --json both want standard output");
    if (to_file) check_writable("--output", output_);
    const std::string trace = take(at.inspector().timeline(job));
    if (!to_file) {
      std::cout << trace;
      return kOk;
    }
    write_file(output_, trace);
    if (json()) {
      print({{"job", job}, {"output", output_}, {"bytes", trace.size()}});
    } else {
      std::cout << output_ << "\n";
    }
    return kOk;
  }

 private:
  std::string id_;
  std::string output_ = "trace.json";
};

}  // namespace

std::unique_ptr<SharedVerb> make_timeline(Options& options, Where where) {
  return std::make_unique<TimelineVerb>(options, where);
}

}  // namespace troupe::cli
