#pragma once
#include <optional>
#include <string>
#include <vector>

#include "client/cli/options.h"
#include "troupe/client.h"

namespace troupe::spec {
struct ModelSpec;
}

namespace troupe::cli {

/// Options that say which pictures and on how many actors: shared by run, submit and plan.
struct RequestOptions {
  std::string model;
  ImageRequest request;
  Parallelism parallelism;
  int priority = 0;
  std::string share;
  bool elastic = false;
  bool may_batch = false;
  std::string parallel;           // "" or "auto"
  std::string method;             // "" = by the number of patches
  std::string init_latents_path;  // "" = noise from the seed
  std::string init_image_path;
  std::string mask_path;
  std::vector<std::string> image_paths;  // pictures to edit, or a video's first frame
  std::string last_image_path;
  std::vector<std::string> control_image_paths;  // one for each ControlNet, or the model's own
  const Option* model_option = nullptr;          // of the command line that they come from
  const Option* steps_option = nullptr;          // likewise
  std::vector<std::string> bare_words;           // a prompt, or a model and one, without options
  std::string prompt_embeds_path;                // "" = the prompts are text
  std::vector<std::uint64_t> seeds;              // one for all pictures, or one each
  std::vector<std::string> negative_prompts;     // one for all, or one for each prompt or picture
  std::vector<std::string> loras;                // FILE[:SCALE]
  std::vector<std::string> second_loras;         // likewise, of a second transformer
  std::vector<std::string> embeddings;           // FILE[:WORD]
};

void add_request_options(Options& app, RequestOptions& options);
void add_degree_options(Options& app, RequestOptions& options);
/// Adds the option of run and submit for the loss of actors.
void add_elastic_option(Options& app, RequestOptions& options);
/// Adds the options of submit that decide how the job stands among others.
void add_queue_options(Options& app, RequestOptions& options);

/// Takes what stands without options, and reads `--prompt-embeds`, which stand for prompts. Throws
/// UsageError where `verb` gets neither these nor a prompt, or both; std::runtime_error naming the
/// option for a file that cannot be read.
void take_prompts(RequestOptions& options, const std::string& verb);

/// Settles the method and refuses options that contradict each other. Throws UsageError naming
/// them.
void settle(RequestOptions& options);

/// The submission, with the initial latents read. The model's folder becomes an absolute path; a
/// name of the hub stays one.
/// Throws std::runtime_error when the latents cannot be read.
Submission make_submission(const RequestOptions& options);

/// The submission's model, and its LoRAs looked at; what of these is not used is added to
/// `warnings`. Throws std::runtime_error naming --model or --lora.
spec::ModelSpec read_model(const Submission& submission, std::vector<std::string>* warnings);

/// The number of a job that was handed in. Throws CommandError; what a cluster finds wrong with a
/// folder or a file that the submission names stands under its option.
std::uint64_t accepted(const Result<std::uint64_t>& job, const Submission& submission);

int picture_count(const RequestOptions& options);

}  // namespace troupe::cli
