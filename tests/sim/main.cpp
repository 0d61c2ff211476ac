// troupe_sim: as many seeds as one asks for, of all plays in turn. See README.md.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/command_line.h"
#include "tests/controller/user_world.h"
#include "tests/sim/plays.h"
#include "tests/sim/shared_array.h"

namespace {

using Clock = std::chrono::steady_clock;
using troupe::sim::Totals;

const std::string kUsers = "users";
constexpr double kTellEvery = 30;  // seconds

volatile std::sig_atomic_t interrupted = 0;

struct Options {
  std::uint64_t seeds = 10'000;
  std::uint64_t first = 1;
  double minutes = 0;  // 0 = no limit
  std::uint64_t workers = std::max(1U, std::thread::hardware_concurrency());
  std::string play;  // empty = all
  std::optional<std::uint64_t> seed;
};

std::vector<std::string> play_names() {
  std::vector<std::string> names;
  for (const auto& play : troupe::sim::plays())
    names.push_back(play.name);
  names.push_back(kUsers);
  return names;
}

void play_users(std::uint64_t seed, Totals& totals) {
  // Every third one remembers next to none of the dead, every fifth is stopped before all leave.
  const auto world =
      std::make_unique<troupe::user::UserWorld>(seed, seed % 3 == 0 ? seed % 4 : 256);
  world->stops = seed % 5 == 0;
  try {
    world->play();
  } catch (const std::exception& error) {
    throw std::runtime_error(world->trace(200) + "play " + kUsers + ", seed " +
                             std::to_string(seed) + ": " + error.what() +
                             "\nonce more: scripts/sim --play " + kUsers + " --seed " +
                             std::to_string(seed));
  }
  ++totals.seeds;
  totals.jobs += world->answered;  // requests, here
  totals.succeeded += world->answered - world->refused;
  totals.deaths += world->deaths;
  totals.echoes += world->repeated;
  totals.ghosts += world->ghosts;
}

/// Seeds shared out over processes, for the rooms know no threads.
class Sweep {
 public:
  explicit Sweep(Options options) : options_(std::move(options)) {
    for (const auto& play : troupe::sim::plays()) {
      if (options_.play.empty() || options_.play == play.name) names_.push_back(play.name);
    }
    if (options_.play.empty() || options_.play == kUsers) names_.push_back(kUsers);
    if (names_.empty()) throw std::invalid_argument("there is no play " + options_.play);
    workers_ = std::make_unique<SharedArray<Worker>>(options_.workers);
    totals_ = std::make_unique<SharedArray<Totals>>(options_.workers * names_.size());
  }

  /// Plays all seeds. False when an invariant was broken: the worker that found it has said so.
  bool run() {
    std::vector<pid_t> pids;
    for (std::uint64_t worker = 0; worker < options_.workers; ++worker) {
      const pid_t pid = fork();
      if (pid < 0) throw std::runtime_error("fork failed");
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        _exit(work(worker));
      }
      pids.push_back(pid);
    }
    bool sound = true;
    for (auto told = began_; std::ranges::any_of(pids, [](pid_t pid) { return pid != 0; });) {
      for (std::uint64_t worker = 0; worker < pids.size(); ++worker) {
        int status = 0;
        if (pids[worker] == 0 || waitpid(pids[worker], &status, WNOHANG) == 0) continue;
        pids[worker] = 0;
        if (WIFSIGNALED(status)) tell_crash(worker, WTERMSIG(status));
        sound = sound && status == 0;
      }
      if (!sound || interrupted) (*workers_)[0].stop = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (since(told) < kTellEvery) continue;
      told = Clock::now();
      tell_pace();
    }
    return sound;
  }
  void play(const std::string& name, std::uint64_t seed, std::uint64_t worker = 0) {
    const auto place = std::ranges::find(names_, name) - names_.begin();
    auto& totals = (*totals_)[worker * names_.size() + place];
    name == kUsers ? play_users(seed, totals)
                   : troupe::sim::play_seed(troupe::sim::play_of(name), seed, totals);
  }
  void tell() const {
    std::printf("%-18s %9s %9s %9s %9s %9s %9s %9s %9s %9s\n", "play", "seeds", "jobs", "succeeded",
                "deaths", "resumed", "doubled", "gaps", "echoes", "ghosts");
    std::uint64_t seeds = 0;
    for (std::size_t place = 0; place < names_.size(); ++place) {
      const auto sum = [&](std::uint64_t Totals::*count) {
        std::uint64_t all = 0;
        for (std::size_t worker = 0; worker < options_.workers; ++worker)
          all += (*totals_)[worker * names_.size() + place].*count;
        return all;
      };
      seeds += sum(&Totals::seeds);
      std::printf("%-18s", names_[place].c_str());
      for (const auto count :
           {&Totals::seeds, &Totals::jobs, &Totals::succeeded, &Totals::deaths, &Totals::recoveries,
            &Totals::duplicates, &Totals::gaps, &Totals::echoes, &Totals::ghosts})
        std::printf(" %9llu", static_cast<unsigned long long>(sum(count)));
      std::printf("\n");
    }
    std::printf("%llu seeds in %.0f s, no invariant broken\n",
                static_cast<unsigned long long>(seeds), since(began_));
  }

 private:
  struct Worker {
    std::atomic<bool> stop;           // of the first one: for all
    std::atomic<std::uint64_t> next;  // of the first one: the number that nobody has taken yet
    std::atomic<std::uint64_t> now;   // which number it plays
    std::atomic<std::uint64_t> done;  // how many it has played
  };

  const std::string& name_of(std::uint64_t number) const { return names_[number % names_.size()]; }
  std::uint64_t seed_of(std::uint64_t number) const {
    return options_.first + number / names_.size();
  }
  /// A worker's life; its exit code.
  int work(std::uint64_t worker) {
    auto& all = (*workers_)[0];
    auto& own = (*workers_)[worker];
    try {
      while (!all.stop && !interrupted && !out_of_time()) {
        own.now = all.next++;
        if (own.now >= options_.seeds) break;
        play(name_of(own.now), seed_of(own.now), worker);
        ++own.done;
      }
      return 0;
    } catch (const std::exception& error) {
      if (!all.stop.exchange(true)) std::fprintf(stderr, "%s\n", error.what());
      return 1;
    }
  }
  void tell_crash(std::uint64_t worker, int signal) const {
    const auto number = (*workers_)[worker].now.load();
    std::fprintf(
        stderr,
        "play %s, seed %llu: ended by signal %d\nonce more: scripts/sim --play %s --seed %llu\n",
        name_of(number).c_str(), static_cast<unsigned long long>(seed_of(number)), signal,
        name_of(number).c_str(), static_cast<unsigned long long>(seed_of(number)));
  }
  void tell_pace() const {
    std::uint64_t done = 0;
    for (std::size_t worker = 0; worker < options_.workers; ++worker)
      done += (*workers_)[worker].done;
    std::printf("%llu of %llu seeds, %.0f a second\n", static_cast<unsigned long long>(done),
                static_cast<unsigned long long>(options_.seeds),
                static_cast<double>(done) / since(began_));
    std::fflush(stdout);
  }
  static double since(Clock::time_point when) {
    return std::chrono::duration<double>(Clock::now() - when).count();
  }
  bool out_of_time() const { return options_.minutes > 0 && since(began_) > options_.minutes * 60; }

  Options options_;
  std::vector<std::string> names_;
  std::unique_ptr<SharedArray<Worker>> workers_;
  std::unique_ptr<SharedArray<Totals>> totals_;  // by worker, then by play
  Clock::time_point began_ = Clock::now();
};

}  // namespace

int main(int count, char** words) {
  using namespace troupe::bench;
  std::signal(SIGINT, [](int) { interrupted = 1; });
  std::signal(SIGTERM, [](int) { interrupted = 1; });
  Options options;
  constexpr std::int64_t kMany = std::numeric_limits<std::int64_t>::max();
  CLI::App app{"The deterministic simulation: seeds of all plays in turn, on all cores",
               "troupe_sim"};
  app.add_option("SEEDS", options.seeds, "How many")->check(whole(1, kMany))->capture_default_str();
  app.add_option("--first", options.first, "The first of them")
      ->check(whole(0, kMany))
      ->capture_default_str();
  app.add_option("--jobs", options.workers, "Processes that play; default: one a core")
      ->check(whole(1, 1024));
  app.add_option("--minutes", options.minutes, "That it takes at most; default: as it needs")
      ->check(number_above(0, 100'000));
  const auto play =
      app.add_option("--play", options.play, "Of this play only")->check(one_of(play_names()));
  app.add_option("--seed", options.seed, "Only this one, with its trace if it fails")
      ->check(whole(0, kMany))
      ->needs(play);
  return run_program(app, count, words, [&] {
    Sweep sweep(options);
    try {
      if (options.seed)
        sweep.play(options.play, *options.seed);
      else if (!sweep.run())
        return 1;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());  // with the trace, on many lines
      return 1;
    }
    sweep.tell();
    return 0;
  });
}
