// troupe_sim: as many seeds as one asks for, of all plays in turn. See README.md.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "tests/controller/user_world.h"
#include "tests/sim/plays.h"

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
  std::string play;    // empty = all
  std::uint64_t seed = 0;
};

std::uint64_t whole_number(const std::string& text) {
  std::size_t used = 0;
  const auto number = text.empty() || text[0] == '-' ? 0 : std::stoull(text, &used);
  if (used == 0 || used != text.size()) throw std::invalid_argument(text + " is no number");
  return number;
}

Options read_options(int count, char** words) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto value = [&]() -> std::string {
      if (++i == count) throw std::invalid_argument(word + " needs a value");
      return words[i];
    };
    if (word == "--play")
      options.play = value();
    else if (word == "--seed")
      options.seed = whole_number(value());
    else if (word == "--first")
      options.first = whole_number(value());
    else if (word == "--minutes")
      options.minutes = static_cast<double>(whole_number(value()));
    else
      options.seeds = whole_number(word);
  }
  if (options.seed != 0 && options.play.empty())
    throw std::invalid_argument("--seed needs the --play that it is of");
  return options;
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

class Sweep {
 public:
  explicit Sweep(Options options) : options_(std::move(options)) {
    for (const auto& play : troupe::sim::plays()) {
      if (options_.play.empty() || options_.play == play.name) names_.push_back(play.name);
    }
    if (options_.play.empty() || options_.play == kUsers) names_.push_back(kUsers);
    if (names_.empty()) throw std::invalid_argument("there is no play " + options_.play);
  }

  void run() {
    for (; done_ < options_.seeds && !interrupted && !out_of_time(); ++done_) {
      play(names_[done_ % names_.size()], options_.first + done_ / names_.size());
      if (since(told_) < kTellEvery) continue;
      told_ = Clock::now();
      std::printf("%llu of %llu seeds, %.0f a second\n", static_cast<unsigned long long>(done_ + 1),
                  static_cast<unsigned long long>(options_.seeds),
                  static_cast<double>(done_ + 1) / since(began_));
      std::fflush(stdout);
    }
  }
  void play(const std::string& name, std::uint64_t seed) {
    auto& totals = totals_[name];
    name == kUsers ? play_users(seed, totals)
                   : troupe::sim::play_seed(troupe::sim::play_of(name), seed, totals);
  }
  void tell() const {
    std::printf("%-18s %9s %9s %9s %9s %9s %9s %9s %9s %9s\n", "play", "seeds", "jobs", "succeeded",
                "deaths", "resumed", "doubled", "gaps", "echoes", "ghosts");
    std::uint64_t seeds = 0;
    for (const auto& [name, totals] : totals_) {
      seeds += totals.seeds;
      std::printf("%-18s", name.c_str());
      for (const auto count :
           {totals.seeds, totals.jobs, totals.succeeded, totals.deaths, totals.recoveries,
            totals.duplicates, totals.gaps, totals.echoes, totals.ghosts})
        std::printf(" %9llu", static_cast<unsigned long long>(count));
      std::printf("\n");
    }
    std::printf("%llu seeds in %.0f s, no invariant broken\n",
                static_cast<unsigned long long>(seeds), since(began_));
  }

 private:
  static double since(Clock::time_point when) {
    return std::chrono::duration<double>(Clock::now() - when).count();
  }
  bool out_of_time() const { return options_.minutes > 0 && since(began_) > options_.minutes * 60; }

  Options options_;
  std::vector<std::string> names_;
  std::map<std::string, Totals> totals_;
  std::uint64_t done_ = 0;
  Clock::time_point began_ = Clock::now(), told_ = began_;
};

}  // namespace

int main(int count, char** words) {
  std::signal(SIGINT, [](int) { interrupted = 1; });
  std::signal(SIGTERM, [](int) { interrupted = 1; });
  try {
    const auto options = read_options(count, words);
    Sweep sweep(options);
    options.seed != 0 ? sweep.play(options.play, options.seed) : sweep.run();
    sweep.tell();
    return 0;
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "troupe_sim: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
