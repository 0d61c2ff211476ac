#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/format.h"
#include "base/numbers.h"
#include "base/text.h"
#include "client/cli/files.h"
#include "client/cli/json.h"
#include "client/cli/progress.h"
#include "client/cli/terminal.h"
#include "client/cli/verb.h"
#include "client/repl/command.h"
#include "client/repl/session.h"

namespace troupe::repl {
namespace {

using cli::CommandError;
using cli::Row;
using cli::take;
using cli::UsageError;

constexpr std::uint32_t kMostSteps = 10'000;
constexpr double kUntilSeconds = 600;
const std::string kNotFinite = "nan";

std::string joined(const nlohmann::json& numbers) {
  std::string text;
  for (const auto& number : numbers)
    text.append(text.empty() ? "" : " ").append(std::to_string(number.get<std::uint64_t>()));
  return text.empty() ? "-" : text;
}

/// Runs of tasks in the same state at the same place take one line.
struct GraphLine {
  std::string first;
  std::string last;
  std::string state;
  std::string actors;
  std::string at;
  int tasks = 0;
  double seconds = 0;
  std::string kind;
};

std::string after_steps_text(int first, int last) {
  const auto one = [](int step) {
    return step < 0 ? std::string("the noise before step 0") : fmt::format("step {}", step);
  };
  if (first == last) return " after " + one(first);
  return ", some rows after " + one(first) + " and some after " + one(last);
}

/// A file was written with what a job has now.
void tell(const Session& session, const std::string& file, std::uint64_t job, const std::string& of,
          int first, int last) {
  if (session.json())
    return cli::print_json_line(
        {{"job", job}, {"output", file}, {"first_step", first}, {"last_step", last}});
  std::cout << file << ": " << of << name_of(job) << after_steps_text(first, last) << "\n";
}

void control(Session& session, const Words& words, JobAction action) {
  const auto job = job_of(words[0]);
  const std::string note = take(session.inspector().control(job, action));
  if (session.json()) return cli::print_json_line({{"job", job}, {"note", note}});
  std::cout << note << "\n";
}

}  // namespace

void graph(Session& session, const Words& words) {
  const auto job = job_of(words[0]);
  const bool all = words.size() > 1;
  if (all && words[1] != "all") throw UsageError("graph takes JOB [all]");
  auto document = nlohmann::json::parse(take(session.inspector().graph(job)));
  if (session.json()) {
    document["job"] = job;
    return cli::print_json_line(document);
  }
  const auto& tasks = document["tasks"];
  if (tasks.empty()) {
    std::cout << name_of(job) << " has no tasks yet: it waits or its model is being loaded\n";
    return;
  }
  std::map<std::string, int> counts;
  std::vector<GraphLine> lines;
  for (const auto& task : tasks) {
    const auto state = task["state"].get<std::string>();
    ++counts[state];
    GraphLine line{task["name"].get<std::string>(),
                   task["name"].get<std::string>(),
                   state,
                   joined(task["actors"]),
                   joined(task["at"]),
                   1,
                   task["seconds"].get<double>(),
                   task["kind"].get<std::string>()};
    const bool same = !all && !lines.empty() && lines.back().state == state && state != "issued" &&
                      lines.back().kind == line.kind;
    if (same) {
      GraphLine& last = lines.back();
      last.last = line.first;
      last.seconds += line.seconds;
      ++last.tasks;
      if (last.actors.find(line.actors) == std::string::npos) last.actors += ", " + line.actors;
    } else {
      lines.push_back(std::move(line));
    }
  }
  // A batch has a name of its own.
  std::cout << cli::on_one_line(document.value("name", name_of(job))) << ": " << tasks.size()
            << " tasks, " << counts["done"] << " done, " << counts["issued"] << " issued, "
            << counts["waiting"] << " waiting; epoch " << document["epoch"].get<std::uint64_t>();
  if (document.value("kept_steps", 0) > 0)
    std::cout << ", " << document["kept_steps"].get<int>() << " steps kept";
  if (document["attempts"] > 1) std::cout << ", attempt " << document["attempts"].get<int>();
  if (document.value("paused", false)) std::cout << ", paused";
  if (const auto met = document.find("not_finite"); met != document.end() && met->is_string())
    std::cout << ": " << cli::on_one_line(met->get<std::string>());
  std::cout << "\n";
  std::vector<Row> rows;
  for (const GraphLine& line : lines) {
    rows.push_back({line.tasks == 1 ? line.first : line.first + " … " + line.last,
                    std::to_string(line.tasks), line.state, line.actors, line.at,
                    line.seconds > 0 ? seconds_text(line.seconds) : "-"});
  }
  std::cout << cli::table({"TASK", "TASKS", "STATE", "ACTORS", "DATA ON", "TOTAL TIME"}, rows,
                          cli::output_width(), cli::Overflow::shorten);
}

void pause(Session& session, const Words& words) {
  control(session, words, JobAction::pause);
}

void step(Session& session, const Words& words) {
  const auto count = words.size() > 1 ? parse_number<std::uint32_t>(words[1]) : 1;
  if (!count || *count < 1 || *count > kMostSteps)
    throw UsageError("step JOB \"" + words[1] +
                     fmt::format("\": how many, a number from 1 to {}", kMostSteps));
  for (std::uint32_t i = 0; i < *count && session.signals().caught() == 0; ++i)
    control(session, words, JobAction::step);
}

/// Waits until the job has computed the step or, if no step is named, has met a value that is not
/// finite.
void until(Session& session, const Words& words) {
  using Clock = std::chrono::steady_clock;
  const auto job = job_of(words[0]);
  const auto step = parse_number<std::int32_t>(words[1]);
  if (!step && words[1] != kNotFinite)
    throw UsageError("until JOB \"" + words[1] + "\": the number of a step, from 0, or nan");
  const double seconds = words.size() > 2 ? seconds_of(words[2]) : kUntilSeconds;
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(seconds));
  const auto action = step ? JobAction::until : JobAction::until_not_finite;
  take(session.inspector().control(job, action, step.value_or(0)));
  const std::string goal =
      step ? fmt::format("the end of step {}", *step) : std::string("what is not finite");
  JobInfo now;
  for (;;) {
    const auto page = take(session.client().jobs(JobQuery{.job = job}));
    const auto found = std::ranges::find(page.jobs, job, &JobInfo::id);
    if (found == page.jobs.end())
      throw CommandError(Error{ErrorCode::not_found, name_of(job) + " is not remembered any more"});
    now = *found;
    const bool paused = now.state == JobState::paused;
    if (step ? !paused : has_ended(now.state)) {
      throw CommandError(
          Error{ErrorCode::bad_request,
                fmt::format("{} is {}, not paused at {}{}", name_of(job), to_string(now.state),
                            goal, now.cause.empty() ? "" : ": " + now.cause)});
    }
    if (step ? now.step > *step : paused && !now.cause.empty()) break;
    const bool interrupted = session.signals().caught() != 0;
    if (interrupted || Clock::now() >= deadline) {
      throw CommandError(
          Error{interrupted ? ErrorCode::interrupted : ErrorCode::timeout,
                fmt::format("{} has not come to {} yet; it goes on to there", name_of(job), goal)});
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  if (session.json()) {
    nlohmann::json document{{"job", job}, {"step", step.value_or(now.step)}};
    if (!step) document["cause"] = now.cause;
    return cli::print_json_line(document);
  }
  std::cout << fmt::format("{} is paused{}\n", name_of(job),
                           step ? " at " + goal : ": " + now.cause);
}

void resume(Session& session, const Words& words) {
  control(session, words, JobAction::resume);
}

void dump(Session& session, const Words& words) {
  const auto job = job_of(words[0]);
  cli::check_extension("dump", words[1], ".safetensors");
  cli::check_writable("dump", words[1]);
  const auto now = take(session.inspector().latents(job));
  cli::write_file(words[1], cli::latents_file_bytes(now.latents));
  tell(session, words[1], job, "latents of ", now.first_step, now.last_step);
}

void preview(Session& session, const Words& words) {
  const auto job = job_of(words[0]);
  cli::check_extension("preview", words[1], ".png");
  cli::check_writable("preview", words[1]);
  const auto now = take(session.inspector().picture(job));
  cli::write_file(words[1], now.png);
  tell(session, words[1], job, "", now.first_step, now.last_step);
}

}  // namespace troupe::repl
