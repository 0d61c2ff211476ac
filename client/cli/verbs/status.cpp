#include <unistd.h>

#include <poll.h>
#include <termios.h>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "base/format.h"
#include "base/text.h"
#include "client/cli/cluster_view.h"
#include "client/cli/json.h"
#include "client/cli/signals.h"
#include "client/cli/terminal.h"
#include "client/cli/verb.h"

namespace troupe::cli {
namespace {

void print_status(const ClusterInfo& cluster, bool all) {
  std::cout << status_text(cluster, output_width(), all ? cluster.actors.size() : kShownRows)
            << std::flush;
}

class StatusVerb : public Verb {
 public:
  explicit StatusVerb(Options& options) : Verb(options) {
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

std::unique_ptr<Verb> make_status(Options& options) {
  return std::make_unique<StatusVerb>(options);
}

namespace {

using TopClock = std::chrono::steady_clock;
constexpr int kTopSlice = 100;  // milliseconds
constexpr std::size_t kTopFixedLines = 8;

/// The terminal's other screen, with keys as they are typed; all as before at the end.
class FullScreen {
 public:
  FullScreen() {
    if (tcgetattr(STDIN_FILENO, &before_) == 0) {
      termios raw = before_;
      raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      keys_ = tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
    }
    std::cout << "\x1b[?1049h\x1b[?25l" << std::flush;
  }
  ~FullScreen() {
    std::cout << "\x1b[?25h\x1b[?1049l" << std::flush;
    if (keys_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;

  /// A key that comes within a moment; 0 where none does.
  char key() const {
    pollfd ready{STDIN_FILENO, POLLIN, 0};
    if (poll(&ready, 1, kTopSlice) <= 0) return 0;
    char typed = 0;
    return read(STDIN_FILENO, &typed, 1) == 1 ? typed : 'q';
  }

 private:
  termios before_{};
  bool keys_ = false;
};

/// Throughput between two looks.
class Throughput {
 public:
  /// "3.2 steps/s, 1.5 pictures/min"; of the pictures since the first look.
  std::string text(const std::vector<JobInfo>& jobs, TopClock::time_point now) {
    double steps = 0;
    std::map<std::uint64_t, int> done;
    for (const JobInfo& job : jobs) {
      const bool succeeded = job.state == JobState::succeeded;
      done[job.id] = succeeded ? job.steps : job.step;
      const auto before = steps_.find(job.id);
      const int since = before == steps_.end() ? (last_ && !has_ended(job.state) ? 0 : done[job.id])
                                               : before->second;
      steps += std::max(0, done[job.id] - since);
      if (succeeded && first_ && !counted_.contains(job.id)) pictures_ += job.pictures;
      if (has_ended(job.state)) counted_.insert(job.id);
    }
    steps_ = std::move(done);
    std::string text;
    if (last_) {
      const double passed = std::chrono::duration<double>(now - *last_).count();
      const double minutes = std::chrono::duration<double>(now - *first_).count() / 60;
      text = fmt::format("{:.1f} steps/s, {:.1f} pictures/min", passed > 0 ? steps / passed : 0,
                         minutes > 0 ? pictures_ / minutes : 0);
    }
    if (!first_) first_ = now;
    last_ = now;
    return text;
  }

 private:
  std::optional<TopClock::time_point> first_, last_;
  std::map<std::uint64_t, int> steps_;
  std::set<std::uint64_t> counted_;
  int pictures_ = 0;
};

/// The first lines of a text, and how many more there are.
std::string first_lines(const std::string& text, std::size_t most) {
  const auto lines = static_cast<std::size_t>(std::ranges::count(text, '\n'));
  if (lines <= most) return text;
  const std::size_t kept = most == 0 ? 0 : most - 1;
  std::size_t end = 0;
  for (std::size_t i = 0; i < kept; ++i)
    end = text.find('\n', end) + 1;
  return text.substr(0, end) + fmt::format("… {} more\n", lines - kept);
}

class TopVerb : public Verb {
 public:
  explicit TopVerb(Options& options) : Verb(options, "`troupe status --json` has it") {
    app_->add_option("--every", seconds_, "How long until the next look")
        ->check(number(0.1, 3600))
        ->type_name("SECONDS")
        ->capture_default_str();
    add_connect_option(*app_, target_);
    set_footer(
        "q or Ctrl-C leaves. Jobs that have not ended come first. Steps/s is of all jobs since the "
        "last look, pictures/min since the first.",
        {"troupe top", "troupe top --every 0.5"}, "commands.md#top");
  }

  int run() override {
    if (isatty(STDOUT_FILENO) != 1)
      throw UsageError("top needs a terminal; `troupe status --watch SECONDS` goes to a file");
    Client client = connect(target_);
    const SignalWatch signals;
    const FullScreen screen;
    Throughput throughput;
    for (;;) {
      const auto status = take(client.status());
      auto jobs = take(client.jobs());
      // Jobs that have ended come last, the newest first.
      const auto ended = std::stable_partition(
          jobs.begin(), jobs.end(), [](const JobInfo& job) { return !has_ended(job.state); });
      std::reverse(ended, jobs.end());
      const auto now = TopClock::now();
      const std::string rate = throughput.text(jobs, now);
      auto size = drawn(status, jobs, rate);
      const auto next = now + std::chrono::duration_cast<TopClock::duration>(
                                  std::chrono::duration<double>(seconds_));
      while (TopClock::now() < next) {
        const char key = screen.key();
        if (signals.caught() != 0) return signals.caught() == SIGINT ? kOk : signals.exit_code();
        if (key == 'q' || key == 'Q' || key == 4) return kOk;  // Ctrl-D
        if (key == ' ') break;
        if (size != std::pair(terminal_columns(STDOUT_FILENO), terminal_rows(STDOUT_FILENO)))
          size = drawn(status, jobs, rate);
      }
    }
  }

 private:
  /// Draws all of it anew; answers with the screen's columns and rows.
  static std::pair<std::size_t, std::size_t> drawn(const ClusterInfo& cluster,
                                                   const std::vector<JobInfo>& jobs,
                                                   const std::string& rate) {
    const auto columns = terminal_columns(STDOUT_FILENO), rows = terminal_rows(STDOUT_FILENO);
    const std::size_t width = columns == 0 ? 80 : columns;
    const std::size_t room =
        std::max<std::size_t>(rows == 0 ? 25 : rows, kTopFixedLines + 4) - kTopFixedLines;
    const auto busy = std::ranges::count(cluster.actors, ActorState::busy, &ActorInfo::state);
    std::string text = shorten(fmt::format("troupe {} at {}, up {}{}", cluster.version,
                                           cluster.endpoint, duration_text(cluster.uptime_seconds),
                                           cluster.model.empty() ? "" : ", " + cluster.model),
                               width - 1) +
                       "\n";
    text +=
        shorten(fmt::format("{} of {} actors busy; jobs: {} running, {} queued, {} ended{}", busy,
                            cluster.actors.size(), cluster.jobs_running, cluster.jobs_queued,
                            cluster.jobs_ended, rate.empty() ? "" : "; " + rate),
                width - 1) +
        "\n\n";
    // Half of the room each, and what one does not need the other has.
    auto actors = actors_text(cluster.actors, width);
    auto list = jobs.empty() ? std::string("no jobs\n") : jobs_table(jobs, width, "troupe jobs");
    const auto lines = [](const std::string& of) {
      return static_cast<std::size_t>(std::ranges::count(of, '\n'));
    };
    const auto for_actors = std::max(room / 2, room - std::min(room, lines(list)));
    actors = first_lines(actors, for_actors);
    list = first_lines(list, room - std::min(room, lines(actors)));
    text += actors + "\n" + list;
    if (!cluster.recent_failures.empty())
      text += "\n" + coloured(shorten("last failure: " + cluster.recent_failures.back(), width - 1),
                              Colour::red, STDOUT_FILENO);
    std::string screen = "\x1b[H";
    for (const char c : text)
      screen += c == '\n' ? "\x1b[K\r\n" : std::string(1, c);
    std::cout << screen << "\x1b[J" << std::flush;
    return {columns, rows};
  }

  double seconds_ = 1;
  Target target_;
};

}  // namespace

std::unique_ptr<Verb> make_top(Options& options) {
  return std::make_unique<TopVerb>(options);
}

}  // namespace troupe::cli
