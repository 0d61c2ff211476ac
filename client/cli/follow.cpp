#include "client/cli/follow.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <iostream>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "base/choices.h"
#include "base/format.h"
#include "base/text.h"
#include "client/cli/files.h"
#include "client/cli/json.h"
#include "client/cli/options.h"
#include "client/cli/progress.h"
#include "client/cli/request_options.h"
#include "client/cli/show_picture.h"
#include "client/cli/terminal.h"
#include "client/cli/verb.h"
#include "models/image/clip_file.h"
#include "models/image/frames.h"
#include "models/spec/hub.h"
#include "models/spec/model_spec.h"

namespace troupe::cli {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kDefaultOutput = "out.png";
constexpr const char* kDefaultLatents = "out.safetensors";
constexpr const char* kStandardOutput = "-";
namespace fs = std::filesystem;
constexpr milliseconds kSlice{200};
constexpr auto kCancelGrace = std::chrono::seconds(15);
/// Grace where the actors end with the command anyway.
constexpr auto kOwnGrace = std::chrono::seconds(3);

[[noreturn]] void give_up(ErrorCode code, const std::string& what, int exit_code = kFailed) {
  throw CommandError(Error{code, what}, exit_code);
}

/// Reason why a job is to stop, and when the command no longer waits for that.
struct Stopping {
  bool timed_out = false;
  Clock::time_point give_up_at;
  int signals = 0;  // that had come by then
};

/// Ends a command whose job was to stop and may not have stopped: throws CommandError.
[[noreturn]] void leave(const Stopping& stopping, const std::string& name, const std::string& how,
                        const ResultOptions& options, const SignalWatch& signals) {
  if (stopping.timed_out)
    give_up(ErrorCode::timeout, name + " " + how + ": not done within the --timeout of " +
                                    seconds_text(options.timeout_seconds));
  give_up(ErrorCode::interrupted, "interrupted: " + name + " " + how, signals.exit_code());
}

/// Waits for the job's end. A signal or the deadline cancels the job first; `say` is told of that.
JobResult await(Client& client, std::uint64_t job, const ResultOptions& options,
                Client::OnProgress on_progress, const SignalWatch& signals,
                const std::function<void()>& tick,
                const std::function<void(const std::string&)>& say) {
  const std::string name = fmt::format("job {}", job);
  const auto deadline = Clock::now() + std::chrono::duration_cast<milliseconds>(
                                           std::chrono::duration<double>(options.timeout_seconds));
  std::optional<Stopping> stopping;
  for (;;) {
    auto result = client.wait(job, kSlice, std::exchange(on_progress, nullptr));
    if (result) return std::move(result.value());
    const Error& error = result.error();
    if (error.code != ErrorCode::timeout) {
      if (error.code == ErrorCode::interrupted && !options.cancels)
        give_up(ErrorCode::interrupted, "stopped waiting for " + name + ", which goes on",
                signals.exit_code());
      if (stopping && error.code == ErrorCode::cancelled)
        leave(*stopping, name, "was cancelled", options, signals);
      throw CommandError(error, signals.caught() ? signals.exit_code() : kFailed);
    }
    tick();
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
        give_up(ErrorCode::interrupted, "stopped waiting for " + name + ", which goes on",
                signals.exit_code());
      give_up(ErrorCode::timeout, name + " is not done within the --timeout of " +
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

/// Returns whether one of the pictures is an animation.
bool has_frames(const JobResult& result) {
  return std::any_of(result.pictures.begin(), result.pictures.end(), [](const auto& picture) {
    return models::split_frames(picture.png).size() > 1;
  });
}

/// Encodes a clip; nothing if a signal comes before the file is made. An encoder cannot be stopped
/// within a frame, and at the end of a WebM within many: it is left alone then, and ends by itself
/// or with the process.
std::optional<std::string> encoded_clip(std::string png, models::ClipFormat format,
                                        const std::stop_token& stop) {
  constexpr milliseconds kLook{50};
  std::packaged_task<std::string()> encode([png = std::move(png), format, stop] {
    return models::clip_file(png, format, models::kClipQuality, stop);
  });
  auto file = encode.get_future();
  std::thread(std::move(encode)).detach();
  while (file.wait_for(kLook) != std::future_status::ready)
    if (stop.stop_requested()) return std::nullopt;
  return file.get();
}

/// Writes a job's files. Where one cannot be written and the job's cluster ends with the command,
/// it goes to another folder instead of being lost.
class ResultFiles {
 public:
  ResultFiles(std::uint64_t job, const ResultOptions& options, const SignalWatch& signals)
      : job_(job), options_(options), signals_(signals) {}

  /// Writes a file and returns the path where it lies now.
  std::string write(const std::string& path, std::string_view bytes) {
    if (path == kStandardOutput) {
      std::cout.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush();
      if (std::cout.good()) return path;
      note("standard output cannot be written", keep(path, bytes));
      std::cout.clear();
      return path;
    }
    try {
      write_file(path, bytes);
    } catch (const CommandError&) {
      throw;
    } catch (const std::runtime_error& error) {
      return note(error.what(), keep(path, bytes));
    }
    return path;
  }
  /// `png` as what the name says; as it is to standard output.
  std::string write_clip(const std::string& path, const std::string& png) {
    const auto format = clip_format(path).value_or(models::ClipFormat::apng);
    if (format == models::ClipFormat::apng) return write(path, png);
    std::optional<std::string> clip;
    std::string why = "the encoding was stopped";
    try {
      clip = encoded_clip(png, format, signals_.token());
    } catch (const std::runtime_error& error) {
      why = error.what();
    }
    if (clip) return write(path, *clip);
    interrupted_ = interrupted_ || signals_.caught() != 0;
    return note(path + ": " + why, keep("clip.apng", png));
  }
  std::vector<std::string> write_folder(const std::string& folder,
                                        const std::vector<std::vector<std::string>>& pictures) {
    try {
      return write_frames(folder, pictures);
    } catch (const CommandError&) {
      throw;
    } catch (const std::runtime_error& error) {
      std::string kept;
      for (const auto& frames : pictures)
        for (const auto& frame : frames)
          if (const auto at = keep("0000.png", frame); !at.empty() && kept.empty()) kept = at;
      note(error.what(), kept);
      return {};
    }
  }
  /// Throws where a file is not where it was asked for.
  void check() const {
    if (interrupted_)
      give_up(ErrorCode::interrupted, "interrupted: " + trouble_, signals_.exit_code());
    if (!trouble_.empty()) give_up(ErrorCode::failed, trouble_);
  }

 private:
  /// Keeps a file in the first folder that takes it, and returns its path; "" if no folder does, or
  /// if somebody else keeps the result.
  std::string keep(const std::string& path, std::string_view bytes) const {
    if (!options_.owns_actors) return "";
    const std::string ending = path == kStandardOutput ? ".png" : fs::path(path).extension();
    for (const char* variable : {"TMPDIR", "HOME", "", "XDG_RUNTIME_DIR"}) {
      const char* folder = *variable == '\0' ? "/tmp" : std::getenv(variable);
      if (folder == nullptr || *folder == '\0') continue;
      for (int i = 0; i < kMostKept; ++i) {
        const auto other = fmt::format("{}/troupe-{}-{}{}", folder, getpid(), i, ending);
        std::error_code ignored;
        if (fs::exists(other, ignored)) continue;
        try {
          write_file(other, bytes);
          return other;
        } catch (const std::runtime_error&) {
          break;
        }
      }
    }
    return "";
  }
  std::string note(const std::string& what, const std::string& kept) {
    if (!trouble_.empty()) return kept;
    trouble_ = what;
    if (!kept.empty())
      trouble_ += "; what should be there is in " + kept;
    else if (!options_.owns_actors)
      trouble_ += fmt::format(
          "; the cluster still has it: `troupe wait {} --output FILE` writes it "
          "elsewhere",
          job_);
    return kept;
  }

  static constexpr int kMostKept = 10000;
  std::uint64_t job_;
  const ResultOptions& options_;
  const SignalWatch& signals_;
  std::string trouble_;
  bool interrupted_ = false;
};

std::vector<std::string> write_pictures(const JobResult& result, const ResultOptions& options,
                                        ResultFiles& files) {
  const std::string name = fmt::format("job {}", result.job);
  if (result.pictures.empty() && !result.latents)
    give_up(ErrorCode::failed, name + " came without pictures");
  if (is_latents_name(options.output) || result.pictures.empty()) {
    const std::string again = fmt::format("`troupe wait {} --output ", result.job);
    if (!result.latents)
      give_up(ErrorCode::failed,
              name + " came without latents: " + again + "FILE.png` writes its pictures");
    const bool named = options.output != kDefaultOutput;
    if (named && !is_latents_name(options.output))
      give_up(ErrorCode::bad_request,
              name + " came with its latents alone: " + again + "FILE.safetensors` writes them");
    const std::string path = named ? options.output : kDefaultLatents;
    return {files.write(path, latents_file_bytes(*result.latents))};
  }
  if (const auto option = video_option(options);
      !option.empty() && !options.makes_video && !has_frames(result)) {
    give_up(ErrorCode::bad_request,
            fmt::format(
                "{} is for videos, and {} made {}; `troupe wait {}` without it writes the file",
                option, name, result.pictures.size() == 1 ? "a picture" : "pictures", result.job));
  }
  if (is_folder_name(options.output)) {
    std::vector<std::vector<std::string>> frames;
    for (const auto& picture : result.pictures)
      frames.push_back(models::split_frames(picture.png));
    return files.write_folder(options.output, frames);
  }
  auto paths = std::vector{options.output};
  if (options.output != kStandardOutput)
    paths = picture_paths(options.output, static_cast<int>(result.pictures.size()));
  else if (result.pictures.size() > 1)
    give_up(ErrorCode::bad_request,
            fmt::format("{} has {} pictures, and standard output takes one: `troupe wait {} "
                        "--output NAME.png` writes them",
                        name, result.pictures.size(), result.job));
  const int speed = options.frames_per_second.value_or(models::kFramesPerSecond);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::string& png = result.pictures[i].png;
    paths[i] = files.write_clip(
        paths[i], speed == models::kFramesPerSecond ? png : models::at_speed(png, speed));
  }
  return paths;
}

nlohmann::json report_of(const JobResult& result) {
  auto report = nlohmann::json::parse(result.report, nullptr, false);
  if (!report.is_object()) return nlohmann::json::object();
  return report;
}

std::string seeds_text(const nlohmann::json& request) {
  const auto seeds = request.value("seeds", std::vector<std::uint64_t>{});
  if (seeds.empty()) return fmt::format("seed {}", request.value("seed", std::uint64_t{0}));
  if (seeds.size() > 4) return counted(seeds.size(), "seed");
  std::string text;
  for (const auto seed : seeds)
    text += fmt::format("{}{}", text.empty() ? "seeds " : ", ", seed);
  return text;
}

/// "256 × 256, seed 0, 20 steps, 1.8 s (65 ms/step), cfg 2 × pp 2", as far as the report says so.
std::string closing_text(const nlohmann::json& report) {
  const auto part = [&](const char* key) { return report.value(key, nlohmann::json::object()); };
  const auto request = part("request"), seconds = part("seconds"), plan = part("plan");
  if (request.empty()) return "";
  auto text = fmt::format("{} × {}", request.value("width", 0), request.value("height", 0));
  if (const int frames = request.value("frames", 1); frames > 1)
    text += ", " + counted(frames, "frame");
  text += ", " + seeds_text(request) + ", " + counted(request.value("steps", 0), "step");
  if (seconds.contains("total")) {
    text += ", " + seconds_text(seconds["total"].get<double>());
    if (const double step = seconds.value("per_step", 0.0); step > 0)
      text += " (" + seconds_text(step) + "/step)";
  }
  const auto mesh = plan.value("mesh", nlohmann::json::object());
  std::string degrees;
  for (const char* axis : {"dp", "cfg", "pp", "ring", "ulysses", "tp"}) {
    const int degree = mesh.value(axis, 1);
    if (degree > 1) degrees += fmt::format("{}{} {}", degrees.empty() ? ", " : " × ", axis, degree);
  }
  text += degrees.empty() ? ", one actor" : degrees;
  if (const int losses =
          static_cast<int>(report.value("recoveries", nlohmann::json::array()).size()))
    text += fmt::format(", went on after {}",
                        losses == 1 ? "a loss" : std::to_string(losses) + " losses");
  return text;
}

/// Returns the terminal on which pictures are shown. What else is on standard output must not have
/// pictures in it.
int shown_on() {
  return isatty(STDOUT_FILENO) == 1 ? STDOUT_FILENO : STDERR_FILENO;
}

void show_first(const JobResult& result, const std::string& as) {
  if (result.pictures.empty()) return;
  const int terminal = shown_on();
  const auto columns = terminal_columns(terminal), rows = terminal_rows(terminal);
  constexpr std::size_t kColumns = 80, kRows = 24, kBelow = 2;
  (terminal == STDOUT_FILENO ? std::cout : std::cerr)
      << terminal_picture(result.pictures.front().png, parse_choice<PictureProtocol>(as).value(),
                          columns == 0 ? kColumns : columns - 1,
                          std::max(rows == 0 ? kRows : rows, kBelow + 2) - kBelow)
      << std::flush;
}

/// The files' names on standard output, and what they are: beside the name on a terminal, on
/// standard error where only names should come.
void tell_files(const std::vector<std::string>& paths, const nlohmann::json& report, bool quiet) {
  const std::string closing = quiet ? "" : closing_text(report);
  if (paths != std::vector<std::string>{kStandardOutput}) {
    const bool beside = paths.size() == 1 && !closing.empty() && isatty(STDOUT_FILENO) == 1;
    for (const std::string& path : paths)
      std::cout << path << (beside ? "  " + coloured(closing, Colour::dim, STDOUT_FILENO) : "")
                << "\n";
    std::cout.flush();
    if (beside) return;
  }
  if (!closing.empty()) std::cerr << coloured(closing, Colour::dim, STDERR_FILENO) << std::endl;
}

/// Tells what a job in the queue waits for, as soon as nothing is heard of it for a moment, and
/// again from time to time.
class QueueWatch {
 public:
  QueueWatch(Client& client, std::uint64_t job) : client_(client), job_(job) {}
  /// Returns the cause ("" where nobody says), nothing if it is too soon to ask again or the job
  /// does not wait.
  std::optional<std::string> cause() {
    if (Clock::now() < asked_ + kAgain) return std::nullopt;
    asked_ = Clock::now();
    const auto page = client_.jobs(JobQuery{.job = job_});
    if (!page) return std::nullopt;
    const auto& jobs = page.value().jobs;
    const auto found = std::ranges::find(jobs, job_, &JobInfo::id);
    if (found == jobs.end() || found->state != JobState::queued) return std::nullopt;
    return found->cause;
  }

 private:
  static constexpr std::chrono::seconds kAgain{2};
  Client& client_;
  std::uint64_t job_;
  Clock::time_point asked_ = Clock::now();
};

}  // namespace

void add_result_options(Options& app, ResultOptions& options) {
  const std::string group = "Result";
  app.add_option(
         "-o,--output", options.output,
         "Picture file, replaced if it is there; a video becomes an animated PNG, or "
         "what F.mp4 or F.webm says. Several pictures become NAME-0.png, NAME-1.png, …, or "
         "the number stands where the name has {}. With "
         "DIR/ a folder, made if need be: 0000.png of a picture, of a video a PNG per frame. "
         "F.safetensors: the final latents instead, and nothing is decoded. -: standard "
         "output")
      ->type_name("FILE.png")
      ->capture_default_str()
      ->group(kUsualOptions);
  app.add_option("--fps", options.frames_per_second,
                 "Of a video: frames per second that it is shown at")
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
  app.add_flag("--show", options.show, "Show the first picture in the terminal, too")->group(group);
  app.add_option("--show-as", options.show_as,
                 "With --show: how the terminal shows it, where it does not say so itself: " +
                     choices_text(choice_words<PictureProtocol>()))
      ->check(one_of(choice_words<PictureProtocol>()))
      ->type_name("NAME")
      ->group(group);
  app.add_flag("--quiet,-q", options.quiet, "No progress, and no line about the result")
      ->group(group);
  app.add_rivals({"--output", "--output-type", "--save-latents", "--fps", "--preview", "--json"});
}

void add_preview_options(Options& app, ResultOptions& options) {
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

void check_names(const ResultOptions& options) {
  check_extension("--save-latents", options.save_latents, ".safetensors");
  check_extension("--preview", options.preview, ".png");
}

void check_results(const Options& app, const ResultOptions& options, int pictures, Report wanted) {
  check_names(options);
  if (app.has("--preview-every") && app.count("--preview-every") > 0 && options.preview.empty())
    throw UsageError("--preview-every needs --preview");
  if (app.count("--show-as") > 0 && !options.show) throw UsageError("--show-as needs --show");
  if (options.show && isatty(shown_on()) != 1)
    throw UsageError("--show needs a terminal on standard output or standard error");
  if (options.output == kStandardOutput) {
    if (wanted != Report::text)
      throw UsageError("--output - does not go with --json: standard output is the report's");
    if (pictures != 1)
      throw UsageError(fmt::format(
          "--output - takes one picture, not {}: name files, as in {{}}.png", pictures));
    if (isatty(STDOUT_FILENO) == 1)
      throw UsageError("--output -: standard output is a terminal; name a file, or add > FILE.png");
  } else if (is_latents_name(options.output)) {
    if (options.frames_per_second)
      throw UsageError("--fps does not go with --output " + options.output +
                       ": latents have no speed");
    if (!options.save_latents.empty())
      throw UsageError("--save-latents does not go with --output " + options.output +
                       ", which has the latents already");
  } else if (is_folder_name(options.output)) {
    if (options.frames_per_second)
      throw UsageError("--fps does not go with --output " + options.output +
                       ": a folder's frames have no speed");
  } else {
    picture_paths(options.output, pictures);
  }
  if (!options.preview.empty() && options.preview == options.output)
    throw UsageError("--preview and --output are both " + options.output);
}

void check_outputs(const ResultOptions& options, int pictures) {
  if (is_latents_name(options.output)) {
    check_writable("--output", options.output);
  } else if (is_folder_name(options.output)) {
    check_frames_folder(options.output);
  } else if (options.output != kStandardOutput) {
    for (const std::string& path : picture_paths(options.output, pictures))
      check_writable("--output", path);
  }
  if (!options.save_latents.empty()) check_writable("--save-latents", options.save_latents);
  if (!options.preview.empty()) check_writable("--preview", options.preview);
}

void refuse_beside(const Options& app, const std::string& other,
                   const std::vector<std::string>& names, const std::string& why) {
  for (const std::string& name : names)
    if (app.has(name) && app.count(name) > 0)
      throw UsageError(name + " does not go with " + other + why);
}

std::string video_option(const ResultOptions& options) {
  if (options.frames_per_second) return "--fps";
  const auto format = clip_format(options.output);
  return format && *format != models::ClipFormat::apng ? "--output " + options.output : "";
}

void check_video(ResultOptions& options, const std::string& model) {
  const std::string option = video_option(options);
  if (option.empty() || model.empty()) return;
  try {
    options.makes_video = spec::read_model_spec(spec::model_folder(model)).makes_videos();
  } catch (const std::exception&) {
    return;  // the controller says what is wrong with it, or has another folder of that name
  }
  if (!options.makes_video)
    give_up(ErrorCode::bad_request, option + " is for videos: " + model + " makes pictures");
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
    if (!told->over) ProgressView(std::cerr, ProgressStyle::quiet).show(progress);
  };
  const auto job = client.submit(submission, say);
  std::lock_guard lock(told->mutex);
  told->over = true;
  return accepted(job, submission);
}

void settle_output(const Options& app, ImageRequest& request, ResultOptions& options) {
  const auto latent = to_string(OutputType::latent);
  if (is_latents_name(options.output)) {
    if (app.count("--output-type") > 0 && request.output_type != latent)
      throw UsageError("--output-type " + request.output_type + " does not go with --output " +
                       options.output);
    request.output_type = latent;
  } else if (request.output_type == latent) {
    if (app.get_option("--output")->source() != Source::built_in)
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
    explicit Shown(bool quiet) : view(std::cerr, progress_style(quiet)) {}
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
    QueueWatch queue(client, job);
    const auto tick = [&] {
      std::unique_lock lock(shown->mutex);
      if (shown->view.is_waiting() && !signals.caught()) {
        lock.unlock();
        const auto cause = queue.cause();
        lock.lock();
        if (cause && !shown->over && shown->view.is_waiting()) shown->view.show_waiting(*cause);
      }
      shown->view.tick();
    };
    result = await(client, job, options, on_progress, signals, tick, say);
  } catch (...) {
    take_bar_away();
    throw;
  }
  take_bar_away();

  ResultFiles files(result.job, options, signals);
  const auto paths = write_pictures(result, options, files);
  if (!options.save_latents.empty() && !result.latents) {
    give_up(ErrorCode::failed, fmt::format("job {} came without latents: it was handed in without "
                                           "--save-latents. Its pictures are written",
                                           job));
  }
  if (!options.save_latents.empty())
    files.write(options.save_latents, latents_file_bytes(*result.latents));
  files.check();
  if (options.show) show_first(result, options.show_as);
  if (wanted != Report::text) {
    nlohmann::json report = report_of(result);
    report["job"] = job;
    report["outputs"] = paths;
    if (!options.save_latents.empty()) report["latents"] = options.save_latents;
    wanted == Report::json ? print_json(report) : print_json_line(report);
  } else {
    tell_files(paths, report_of(result), options.quiet);
  }
  if (!shown->preview_error.empty())
    give_up(ErrorCode::failed, "--preview " + shown->preview_error);
  return kOk;
}

int show_progress(Client& client, std::uint64_t job, const ResultOptions& options, Report wanted,
                  const SignalWatch& signals) {
  struct Shown {
    std::mutex mutex;
    bool over = false;
    ProgressView view;
    explicit Shown(bool quiet) : view(std::cerr, progress_style(quiet)) {}
  };
  // Shared with the callback, which may outlive this call by a moment.
  auto shown = std::make_shared<Shown>(options.quiet);
  Client::OnProgress on_progress = [shown](const Progress& progress) {
    std::lock_guard lock(shown->mutex);
    if (!shown->over) shown->view.show(progress);
  };
  const std::string name = fmt::format("job {}", job);
  const auto deadline = Clock::now() + std::chrono::duration_cast<milliseconds>(
                                           std::chrono::duration<double>(options.timeout_seconds));
  std::optional<Error> error;
  for (;;) {
    const auto result = client.wait(job, kSlice, std::exchange(on_progress, nullptr));
    if (!result && result.error().code == ErrorCode::timeout) {
      {
        std::lock_guard lock(shown->mutex);
        shown->view.tick();
      }
      if (signals.caught() == 0 && Clock::now() < deadline) continue;
      error = Error{ErrorCode::interrupted, "stopped following " + name + ", which goes on"};
    } else if (!result) {
      error = result.error();
    }
    break;
  }
  {
    std::lock_guard lock(shown->mutex);
    shown->view.finish();
    shown->over = true;
  }
  if (error) throw CommandError(*error);
  if (wanted == Report::text) {
    std::cout << name << " succeeded\n";
  } else {
    const nlohmann::json document = {{"job", job}, {"state", to_string(JobState::succeeded)}};
    wanted == Report::json ? print_json(document) : print_json_line(document);
  }
  return kOk;
}

}  // namespace troupe::cli
