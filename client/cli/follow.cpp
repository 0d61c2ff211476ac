#include "client/cli/follow.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <mutex>
#include <optional>

#include "base/choices.h"
#include "base/format.h"
#include "base/text.h"
#include "client/cli/checks.h"
#include "client/cli/files.h"
#include "client/cli/frames_folder.h"
#include "client/cli/json.h"
#include "client/cli/latents_file.h"
#include "client/cli/progress.h"
#include "client/cli/request_options.h"
#include "client/cli/verb.h"
#include "models/image/frames.h"
#include "models/spec/model_spec.h"

namespace troupe::cli {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kDefaultOutput = "out.png";
constexpr const char* kDefaultLatents = "out.safetensors";
constexpr milliseconds kSlice{200};
constexpr auto kCancelGrace = std::chrono::seconds(15);
/// Where the actors end with the command anyway.
constexpr auto kOwnGrace = std::chrono::seconds(3);

[[noreturn]] void give_up(const std::string& code, const std::string& what,
                          int exit_code = kFailed) {
  throw CommandError(Error{code, what}, exit_code);
}

/// Why a job is to stop, and what is said of it.
struct Stopping {
  bool timed_out = false;
  Clock::time_point give_up_at;
  int signals = 0;  // that had come by then
};

/// What a command ends with whose job was to stop and may not have.
[[noreturn]] void leave(const Stopping& stopping, const std::string& name, const std::string& how,
                        const ResultOptions& options, const SignalWatch& signals) {
  if (stopping.timed_out)
    give_up("timeout", name + " " + how + ": not done within the --timeout of " +
                           seconds_text(options.timeout_seconds));
  give_up("interrupted", "interrupted: " + name + " " + how, signals.exit_code());
}

/// The job's end; a signal or the deadline cancels it first, which `say` tells of.
JobResult await(Client& client, std::uint64_t job, const ResultOptions& options,
                Client::OnProgress on_progress, const SignalWatch& signals,
                const std::function<void(const std::string&)>& say) {
  const std::string name = fmt::format("job {}", job);
  const auto deadline = Clock::now() + std::chrono::duration_cast<milliseconds>(
                                           std::chrono::duration<double>(options.timeout_seconds));
  std::optional<Stopping> stopping;
  for (;;) {
    auto result = client.wait(job, kSlice, std::exchange(on_progress, nullptr));
    if (result) return std::move(result.value());
    const Error& error = result.error();
    if (error.code != "timeout") {
      if (stopping && error.code == "cancelled")
        leave(*stopping, name, "was cancelled", options, signals);
      throw CommandError(error, signals.caught() ? signals.exit_code() : kFailed);
    }
    const auto now = Clock::now();
    if (stopping) {
      const bool at_once = signals.count() > stopping->signals;
      if (at_once || now >= stopping->give_up_at) {
        leave(*stopping, name,
              options.owns_actors ? "was left, and its actors are ended"
              : at_once           ? "was told to stop, and nobody waited for it"
                                  : "was told to stop and has not said that it did",
              options, signals);
      }
      continue;
    }
    const bool timed_out = now >= deadline && !signals.caught();
    if (!timed_out && !signals.caught()) continue;
    if (!options.cancels) {
      if (signals.caught())
        give_up("interrupted", "stopped waiting for " + name + ", which goes on",
                signals.exit_code());
      give_up("timeout", name + " is not done within the --timeout of " +
                             seconds_text(options.timeout_seconds) + "; it goes on");
    }
    if (auto asked = client.cancel(job); !asked)
      throw CommandError(asked.error(), signals.caught() ? signals.exit_code() : kFailed);
    stopping = {timed_out, now + (options.owns_actors ? kOwnGrace : kCancelGrace), signals.count()};
    say(timed_out ? "not done within the --timeout of " + seconds_text(options.timeout_seconds) +
                        ": cancelling… (Ctrl-C: at once)"
                  : "cancelling… (Ctrl-C again: at once)");
  }
}

/// Whether one of the pictures is an animation.
bool has_frames(const JobResult& result) {
  return std::any_of(result.pictures.begin(), result.pictures.end(), [](const auto& picture) {
    return models::split_frames(picture.png).size() > 1;
  });
}

std::vector<std::string> write_pictures(const JobResult& result, const ResultOptions& options) {
  const std::string name = fmt::format("job {}", result.job);
  if (result.pictures.empty() && !result.latents)
    give_up("failed", name + " came without pictures");
  if (is_latents_name(options.output) || result.pictures.empty()) {
    const std::string again = fmt::format("`troupe wait {} --output ", result.job);
    if (!result.latents)
      give_up("failed", name + " came without latents: " + again + "FILE.png` writes its pictures");
    const bool named = options.output != kDefaultOutput;
    if (named && !is_latents_name(options.output))
      give_up("bad_request",
              name + " came with its latents alone: " + again + "FILE.safetensors` writes them");
    const std::string path = named ? options.output : kDefaultLatents;
    write_file(path, latents_file_bytes(*result.latents));
    return {path};
  }
  if (options.frames_per_second && !options.makes_video && !has_frames(result)) {
    give_up("bad_request",
            fmt::format(
                "--fps is for videos, and {} made {}; `troupe wait {}` without it writes the file",
                name, result.pictures.size() == 1 ? "a picture" : "pictures", result.job));
  }
  if (is_folder_name(options.output)) {
    std::vector<std::vector<std::string>> frames;
    for (const auto& picture : result.pictures)
      frames.push_back(models::split_frames(picture.png));
    return write_frames(options.output, frames);
  }
  const auto paths = picture_paths(options.output, static_cast<int>(result.pictures.size()));
  const int speed = options.frames_per_second.value_or(models::kFramesPerSecond);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::string& png = result.pictures[i].png;
    write_file(paths[i], speed == models::kFramesPerSecond ? png : models::at_speed(png, speed));
  }
  return paths;
}

nlohmann::json report_of(const JobResult& result) {
  auto report = nlohmann::json::parse(result.report, nullptr, false);
  if (!report.is_object()) return nlohmann::json::object();
  return report;
}

}  // namespace

void add_result_options(CLI::App& app, ResultOptions& options) {
  const std::string group = "Result";
  app.add_option("--output", options.output,
                 "Picture file, replaced if it is there; a video becomes an animated PNG. Several "
                 "pictures become "
                 "NAME-0.png, NAME-1.png, …, or the number stands where the name has {}. With "
                 "DIR/ a folder, made if need be: 0000.png of a picture, of a video a PNG a frame. "
                 "F.safetensors: the final latents instead, and nothing is decoded")
      ->type_name("FILE.png")
      ->capture_default_str()
      ->group(group);
  app.add_option("--fps", options.frames_per_second,
                 "Of a video: frames a second that it is shown at")
      ->check(whole(1, 1000))
      ->type_name("N")
      ->default_str(std::to_string(models::kFramesPerSecond))
      ->group(group);
  app.add_option("--save-latents", options.save_latents,
                 "Write the final latents, before the VAE, too")
      ->check(not_empty())
      ->type_name("F.safetensors")
      ->group(group);
  app.add_option("--timeout", options.timeout_seconds, "Give up when the job takes longer")
      ->check(number(0.001, 1e9))
      ->type_name("SECONDS")
      ->capture_default_str()
      ->group(group);
  app.add_flag("--quiet,-q", options.quiet, "No progress")->group(group);
}

void add_preview_options(CLI::App& app, ResultOptions& options) {
  app.add_option("--preview", options.preview,
                 "Write a rough picture of the job under way to this file")
      ->check(not_empty())
      ->type_name("FILE.png")
      ->group("Result");
  app.add_option("--preview-every", options.preview_every, "Steps between previews")
      ->check(whole(1, 1 << 20))
      ->type_name("K")
      ->capture_default_str()
      ->group("Result");
}

void check_preview_options(const CLI::App& app) {
  if (app.count("--preview-every") > 0 && app.count("--preview") == 0)
    throw UsageError("--preview-every needs --preview");
}

void check_names(const ResultOptions& options) {
  check_extension("--save-latents", options.save_latents, ".safetensors");
  check_extension("--preview", options.preview, ".png");
}

void check_outputs(const ResultOptions& options, int pictures) {
  check_names(options);
  if (is_latents_name(options.output)) {
    if (options.frames_per_second)
      throw UsageError("--fps does not go with --output " + options.output +
                       ": latents have no speed");
    if (!options.save_latents.empty())
      throw UsageError("--save-latents does not go with --output " + options.output +
                       ", which has the latents already");
    check_writable("--output", options.output);
  } else if (is_folder_name(options.output)) {
    if (options.frames_per_second)
      throw UsageError("--fps does not go with --output " + options.output +
                       ": a folder's frames have no speed");
    check_frames_folder(options.output);
  } else {
    for (const std::string& path : picture_paths(options.output, pictures))
      check_writable("--output", path);
  }
  if (!options.save_latents.empty()) check_writable("--save-latents", options.save_latents);
  if (options.preview.empty()) return;
  if (options.preview == options.output)
    throw UsageError("--preview and --output are both " + options.output);
  check_writable("--preview", options.preview);
}

void check_speed(ResultOptions& options, const std::string& model) {
  if (!options.frames_per_second || model.empty()) return;
  try {
    options.makes_video = spec::read_model_spec(model).makes_videos();
  } catch (const std::exception&) {
    return;  // the controller says what is wrong with it, or has another folder of that name
  }
  if (!options.makes_video)
    give_up("bad_request", "--fps is for videos: " + model + " makes pictures");
}

std::uint64_t hand_in(Client& client, const Submission& submission) {
  struct Told {
    std::mutex mutex;
    bool over = false;
  };
  auto told = std::make_shared<Told>();
  // Comes with the answer, before it is passed on.
  const Client::OnProgress say = [told](const Progress& progress) {
    std::lock_guard lock(told->mutex);
    if (!told->over) ProgressView(std::cerr, ProgressStyle::quiet, terminal_width()).show(progress);
  };
  const auto job = client.submit(submission, say);
  std::lock_guard lock(told->mutex);
  told->over = true;
  return accepted(job, submission);
}

void settle_output(const CLI::App& app, ImageRequest& request, ResultOptions& options) {
  const auto latent = to_string(OutputType::latent);
  if (is_latents_name(options.output)) {
    if (app.count("--output-type") > 0 && request.output_type != latent)
      throw UsageError("--output-type " + request.output_type + " does not go with --output " +
                       options.output);
    request.output_type = latent;
  } else if (request.output_type == latent) {
    if (app.count("--output") > 0)
      throw UsageError("--output-type latent does not go with --output " + options.output +
                       ": latents are written as .safetensors");
    options.output = kDefaultLatents;
  }
}

void ask_for_results(const ResultOptions& options, ImageRequest& request) {
  request.want_latents = !options.save_latents.empty();
  if (options.preview.empty()) return;
  request.progress_interval = options.preview_every;
  request.progress_content = "preview";
}

int follow_job(Client& client, const BeginJob& begin, const ResultOptions& options, Report wanted,
               const SignalWatch& signals) {
  struct Shown {
    explicit Shown(bool quiet) : view(std::cerr, progress_style(quiet), terminal_width()) {}
    std::mutex mutex;
    bool over = false;  // nobody follows any more
    ProgressView view;
    std::string preview_error;
  };
  // Shared with the callback, which may outlive this call by a moment.
  auto shown = std::make_shared<Shown>(options.quiet);
  const Client::OnProgress on_progress = [shown,
                                          preview = options.preview](const Progress& progress) {
    std::lock_guard lock(shown->mutex);
    if (shown->over) return;
    shown->view.show(progress);
    if (preview.empty() || progress.preview_png.empty() || !shown->preview_error.empty()) return;
    try {
      write_file(preview, progress.preview_png);
    } catch (const std::exception& error) {
      shown->preview_error = error.what();
    }
  };
  const std::uint64_t job = begin(on_progress);

  const auto take_bar_away = [&] {
    std::lock_guard lock(shown->mutex);
    shown->view.finish();
    shown->over = true;
  };
  JobResult result;
  try {
    const auto say = [&](const std::string& what) {
      take_bar_away();
      if (!options.quiet) std::cerr << what << std::endl;
    };
    result = await(client, job, options, on_progress, signals, say);
  } catch (...) {
    take_bar_away();
    throw;
  }
  take_bar_away();

  const auto paths = write_pictures(result, options);
  if (!options.save_latents.empty() && !result.latents) {
    give_up("failed", fmt::format("job {} came without latents: it was handed in without "
                                  "--save-latents. Its pictures are written",
                                  job));
  }
  if (!options.save_latents.empty())
    write_file(options.save_latents, latents_file_bytes(*result.latents));
  if (wanted != Report::text) {
    nlohmann::json report = report_of(result);
    report["job"] = job;
    report["outputs"] = paths;
    if (!options.save_latents.empty()) report["latents"] = options.save_latents;
    wanted == Report::json ? print_json(report) : print_json_line(report);
  } else {
    for (const std::string& path : paths)
      std::cout << path << "\n";
    std::cout.flush();
  }
  if (!shown->preview_error.empty()) give_up("failed", "--preview " + shown->preview_error);
  return kOk;
}

}  // namespace troupe::cli
