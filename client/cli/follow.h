#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/options.h"
#include "client/cli/signals.h"
#include "troupe/client.h"

namespace troupe::cli {

/// Text on standard output: the files' names, or the report, indented or on one line.
enum class Report { text, json, json_line };

/// Options for a job's result: shared by run, submit and wait.
struct ResultOptions {
  std::string output = "out.png";        // "-" = standard output
  std::optional<int> frames_per_second;  // frames per second of videos
  bool makes_video = false;              // it is known that the job makes a video
  std::string save_latents;              // "" = not
  std::string preview;                   // "" = none
  int preview_every = 1;
  double timeout_seconds = 24 * 3600;
  bool quiet = false;
  bool show = false;         // the picture in the terminal, too
  std::string show_as;       // name of a PictureProtocol; "" = the terminal's
  bool cancels = true;       // cancels the job at the deadline or a signal; else leaves it alone
  bool owns_actors = false;  // the actors end with the command, whatever they are doing
};

void add_result_options(Options& app, ResultOptions& options);
/// `--preview FILE --preview-every K`: for verbs that hand the job in themselves.
void add_preview_options(Options& app, ResultOptions& options);

/// `--output F.safetensors` asks for latents alone, and `--output-type latent` for a file of that
/// kind. Throws UsageError where the two contradict each other. Before check_outputs.
void settle_output(const Options& app, ImageRequest& request, ResultOptions& options);

/// Throws UsageError when a preview or latents could not have that file name.
void check_names(const ResultOptions& options);

/// Throws UsageError for options that contradict each other, and for names that no file of so many
/// pictures could have. `wanted` has standard output for itself unless it is text.
void check_results(const Options& app, const ResultOptions& options, int pictures, Report wanted);

/// Throws unless every file can be written. After check_results.
void check_outputs(const ResultOptions& options, int pictures);

/// Throws UsageError for the first of these options that is given: "--fps does not go with --all,
/// which …".
void refuse_beside(const Options& app, const std::string& other,
                   const std::vector<std::string>& names, const std::string& why);

/// Returns the given option that is for videos alone: `--fps`, or `--output` of a video file. "" if
/// none is given.
std::string video_option(const ResultOptions& options);

/// Throws CommandError where there is such an option, and the folder `model` can be read here and
/// makes pictures. Where it cannot be read, the result will tell.
void check_video(ResultOptions& options, const std::string& model);

/// Hands a job in that nobody follows: warnings about it, as it is accepted, go to standard error.
/// Answers with its number. Throws CommandError.
std::uint64_t hand_in(Client& client, const Submission& submission);

/// Puts into the request what the result options need of it.
void ask_for_results(const ResultOptions& options, ImageRequest& request);

/// Shows progress on standard error until the job ends, then writes the files and prints their
/// names, or the report. `begin` is given the progress callback and answers with the job's
/// id. Throws CommandError.
using BeginJob = std::function<std::uint64_t(Client::OnProgress)>;
int follow_job(Client& client, const BeginJob& begin, const ResultOptions& options, Report wanted,
               const SignalWatch& signals);

/// Shows progress on standard error until the job ends, and says that it has succeeded; its
/// pictures stay with the controller. Throws CommandError, also after a signal or --timeout, which
/// leave the job alone.
int show_progress(Client& client, std::uint64_t job, const ResultOptions& options, Report wanted,
                  const SignalWatch& signals);

}  // namespace troupe::cli
