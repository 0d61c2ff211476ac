// How many ends of tasks a controller carries: rows of jobs × actors.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/command_line.h"
#include "benchmarks/dispatch/alone.h"
#include "benchmarks/dispatch/played_host.h"
#include "benchmarks/dispatch/played_watchers.h"
#include "benchmarks/dispatch/whole_cluster.h"

namespace troupe::bench {
namespace {

struct Settings {
  bool json = false;
  double task_ms = 5;
  std::size_t ends = 400'000;  // of a row, at least
  int hosts = 0;               // that are played; 0 = the dispatcher by itself
  int jobs = 0;                // through the controller; 0 = one for each host
  int steps = 40;              // of a job through the controller
  int lose = 0;                // hosts that vanish meanwhile
  int watchers = 0;            // clients that follow the jobs
  int checks = 0;              // of jobs with --parallel auto, before the others
  double within = 0;           // seconds for their jobs to begin again; 0 = any time
};

const std::vector<DispatchShape>& shapes() {
  static const wire::Parallelism of_8{.pp = 8};
  static const std::vector<DispatchShape> rows{
      {1, of_8},
      {1, {.cfg = 2, .pp = 8, .ulysses = 4}},
      {1, {.cfg = 2, .pp = 8, .ulysses = 8, .ring = 2}},
      {1, {.cfg = 2, .pp = 8, .ulysses = 8, .ring = 8}},
      {8, of_8},
      {32, of_8},
      {128, of_8},
      {32, {.cfg = 2, .pp = 8, .ulysses = 2}},
  };
  return rows;
}

nlohmann::json row_of(const DispatchFigures& figures, const Settings& settings) {
  return {{"jobs", figures.jobs},
          {"actors", figures.actors},
          {"ends", figures.ends},
          {"ends_per_second", figures.ends_per_second()},
          {"us_per_end", 1e6 / figures.ends_per_second()},
          {"worst_ms", 1e3 * figures.worst},
          {"needed_per_second", 1e3 * figures.actors / settings.task_ms}};
}

void print(const nlohmann::json& row) {
  std::printf(
      "%4d jobs on %4d actors: %10.0f ends/s, %7.2f us per end, worst %8.3f ms, needed %7.0f\n",
      row["jobs"].get<int>(), row["actors"].get<int>(), row["ends_per_second"].get<double>(),
      row["us_per_end"].get<double>(), row["worst_ms"].get<double>(),
      row["needed_per_second"].get<double>());
  std::fflush(stdout);
}

int run_cluster(const Settings& settings) {
  const wire::Parallelism of_8{.pp = 8};
  const DispatchShape shape{settings.jobs > 0 ? settings.jobs : settings.hosts, of_8};
  const auto figures = dispatch_cluster({.shape = shape,
                                         .hosts = settings.hosts,
                                         .task_seconds = settings.task_ms * 1e-3,
                                         .steps = settings.steps,
                                         .lose = settings.lose,
                                         .watchers = settings.watchers,
                                         .checks = settings.checks});
  const double us_per_end =
      1e6 * (figures.controller_seconds + figures.controller_io_seconds) / figures.ends;
  const nlohmann::json row = {{"jobs", figures.jobs},
                              {"actors", figures.actors},
                              {"task_ms", settings.task_ms},
                              {"join_seconds", figures.join_seconds},
                              {"seconds", figures.seconds},
                              {"ends_per_second", figures.ends / figures.seconds},
                              {"controller_wait", figures.controller_wait},
                              {"controller_seconds", figures.controller_seconds},
                              {"controller_io_seconds", figures.controller_io_seconds},
                              {"controller_starved_seconds", figures.controller_starved_seconds},
                              {"players_seconds", figures.players_seconds},
                              {"controller_us_per_end", us_per_end},
                              {"watchers_heard", figures.watchers_heard},
                              {"jobs_lost", figures.jobs_lost},
                              {"noticed_seconds", figures.noticed_seconds},
                              {"placed_seconds", figures.placed_seconds},
                              {"longest_answer_seconds", figures.longest_answer}};
  const bool late =
      settings.within > 0 && (figures.jobs_lost == 0 || figures.placed_seconds > settings.within);
  if (settings.json) {
    std::cout << nlohmann::json::array({row}).dump(1) << std::endl;
    return late ? 1 : 0;
  }
  std::printf(
      "%d jobs on %d actors, %.1f ms a task: joined in %.2f s, ran %.2f s, %.0f ends/s, waited "
      "%.2f %% for the controller, which took %.2f us of the processor an end\n"
      "processor: controller %.2f s, its sockets %.2f s, it had no core for %.2f s; players %.2f "
      "s\n",
      figures.jobs, figures.actors, settings.task_ms, figures.join_seconds, figures.seconds,
      figures.ends / figures.seconds, 100 * figures.controller_wait, us_per_end,
      figures.controller_seconds, figures.controller_io_seconds, figures.controller_starved_seconds,
      figures.players_seconds);
  if (settings.watchers > 0)
    std::printf("%d clients that followed the jobs were told %llu times\n", settings.watchers,
                static_cast<unsigned long long>(figures.watchers_heard));
  if (settings.checks > 0)
    std::printf(
        "%d jobs with --parallel auto were checked; the longest answer to another request "
        "took %.1f ms meanwhile\n",
        settings.checks, 1e3 * figures.longest_answer);
  if (settings.lose > 0)
    std::printf("%d hosts vanished: %d jobs were told within %.2f s and ran again within %.2f s\n",
                settings.lose, figures.jobs_lost, figures.noticed_seconds, figures.placed_seconds);
  return late ? 1 : 0;
}

int run(const Settings& settings) {
  if (settings.hosts > 0) return run_cluster(settings);
  auto rows = nlohmann::json::array();
  for (const auto& shape : shapes()) {
    rows.push_back(row_of(dispatch_alone(shape, settings.task_ms * 1e-3, settings.ends), settings));
    if (!settings.json) print(rows.back());
  }
  if (settings.json) std::cout << rows.dump(1) << std::endl;
  return 0;
}

}  // namespace
}  // namespace troupe::bench

int main(int argc, char** argv) {
  using namespace troupe::bench;
  Settings settings;
  // The controller starts this program as its own host's actor.
  if (argc > 1 && std::string(argv[1]) == "--control") return play_local_actor(argc, argv);
  PlayedHostOptions played;
  PlayedWatchersOptions watching;
  CLI::App app{"Ends of tasks per second that the dispatcher carries", "dispatch"};
  app.add_option("--task-ms", settings.task_ms, "Milliseconds that a task takes")
      ->check(number_above(0, 10'000))
      ->capture_default_str();
  app.add_option("--ends", settings.ends,
                 "Of tasks in a row, at least; of its plays the quickest counts")
      ->check(whole(1000, 100'000'000))
      ->capture_default_str();
  app.add_option("--hosts", settings.hosts,
                 "Through the real controller, with so many hosts of eight actors that take the "
                 "time and compute nothing")
      ->check(whole(1, 128));
  app.add_option("--jobs", settings.jobs, "With --hosts: of eight actors; else one for each host")
      ->check(whole(1, 128));
  app.add_option("--steps", settings.steps, "With --hosts: of a job")
      ->check(whole(2, 1000))
      ->capture_default_str();
  app.add_option("--lose", settings.lose, "With --hosts: so many vanish once all jobs have begun")
      ->check(whole(1, 64));
  app.add_option("--watchers", settings.watchers,
                 "With --hosts: so many clients with a link each, who follow the jobs")
      ->check(whole(1, 2000));
  app.add_option("--checks", settings.checks,
                 "With --hosts: checks of jobs with --parallel auto before the others, while a "
                 "client asks for the list of jobs")
      ->check(whole(1, 1000));
  app.add_option("--within", settings.within,
                 "With --lose: fail unless their jobs run again within so many seconds")
      ->check(number_above(0, 1000));
  app.add_option("--play-host", played.name)->group("");
  app.add_option("--play-watchers", watching.watchers)->group("");
  app.add_option("--endpoint", played.endpoint)->group("");
  app.add_flag("--json", settings.json, "Print one JSON document");
  return run_program(app, argc, argv, [&] {
    if (watching.watchers > 0) {
      watching.endpoint = played.endpoint;
      watching.jobs = settings.jobs;
      play_watchers(watching);
      return 0;
    }
    if (played.name.empty()) return run(settings);
    played.task_seconds = settings.task_ms * 1e-3;
    play_host(played);
    return 0;
  });
}
