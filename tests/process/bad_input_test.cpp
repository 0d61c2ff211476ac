#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "tests/client/run_command.h"
#include "tests/process/support/damage.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/models.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

const std::string kTiny = checkpoint("tiny-pixart");
const std::string kTransformer = "transformer/diffusion_pytorch_model.safetensors";
const std::string kVae = "vae/diffusion_pytorch_model.safetensors";
const std::string kText = "text_encoder/model.safetensors";

void check_words(const std::string& text, const Words& words) {
  INFO(text);
  CHECK(std::count(text.begin(), text.end(), '\n') == 0);
  CHECK(text.size() < 600);
  for (const auto& word : words) {
    INFO(word);
    CHECK(has(text, word));
  }
}

/// `troupe ARGUMENTS` fails with one line that holds these words and leaves no file.
void check_refused(const std::string& arguments, int exit_code, const Words& words) {
  const Scratch place;
  const std::string before = "cd " + place.path.string() + "; TMPDIR=" + place.path.string() +
                             " XDG_RUNTIME_DIR=" + place.path.string();
  const auto result = testing::troupe(arguments + " -q", before);
  INFO("troupe " << arguments << ": " << result.err);
  CHECK(result.exit_code == exit_code);
  CHECK(result.out.empty());
  CHECK(result.err.starts_with("troupe: "));
  REQUIRE(result.err.ends_with("\n"));
  check_words(result.err.substr(0, result.err.size() - 1), words);
  CHECK(fs::is_empty(place.path));
}

FaultCluster& bad_input_cluster() {
  static FaultCluster shared(actors(2));
  return shared;
}

std::string error_of(const Submission& submission) {
  const auto job = bad_input_cluster().client().submit(submission);
  if (!job) return job.error().what;
  const auto result = bad_input_cluster().client().wait(job.value(), 600s);
  REQUIRE(!result);
  return result.error().what;
}

struct Spoilt {
  const char* what;
  std::function<void(const fs::path&)> damage;
  Words words;
};

std::vector<Spoilt> spoilt_folders() {
  const std::string proj = "pos_embed.proj.weight";
  return {
      {"a truncated transformer",
       [](const auto& model) { truncate_file(model / kTransformer, 0.7); },
       {kTransformer, "bytes"}},
      {"a truncated VAE", [](const auto& model) { truncate_file(model / kVae, 0.5); }, {kVae}},
      {"a truncated text encoder",
       [](const auto& model) { truncate_file(model / kText, 0.5); },
       {kText}},
      {"an empty transformer",
       [](const auto& model) { truncate_file(model / kTransformer, 0); },
       {kTransformer}},
      {"no transformer",
       [](const auto& model) { fs::remove(model / kTransformer); },
       {"transformer"}},
      {"no VAE folder", [](const auto& model) { fs::remove_all(model / "vae"); }, {"vae"}},
      {"no tokenizer",
       [](const auto& model) { fs::remove_all(model / "tokenizer"); },
       {"tokenizer"}},
      {"a NaN in the transformer",
       [=](const auto& model) { put_nan(model / kTransformer, proj); },
       {kTransformer, proj, "finite"}},
      {"a NaN in the VAE",
       [](const auto& model) { put_nan(model / kVae, "decoder.conv_in.weight"); },
       {kVae, "decoder.conv_in.weight", "finite"}},
      {"a NaN in the text encoder",
       [](const auto& model) {
         put_nan(model / kText, "encoder.block.0.layer.0.SelfAttention.k.weight");
       },
       {kText, "encoder.block.0.layer.0.SelfAttention.k.weight", "finite"}},
      {"a tensor of another shape",
       [](const auto& model) {
         edit_header(model / kTransformer, [](auto& header) {
           header["caption_projection.linear_1.weight"]["shape"] = {24, 32};
         });
       },
       {kTransformer, "caption_projection.linear_1.weight", "24", "32"}},
      {"a tensor that is missing",
       [=](const auto& model) {
         edit_header(model / kTransformer, [&](auto& header) {
           header["something.else"] = header[proj];
           header.erase(proj);
         });
       },
       {proj}},
      {"another pipeline",
       [](const auto& model) {
         edit_json(model / "model_index.json",
                   [](auto& index) { index["_class_name"] = "KandinskyPipeline"; });
       },
       {"model_index.json", "KandinskyPipeline"}},
      {"a scheduler key that nobody knows",
       [](const auto& model) {
         edit_json(model / "scheduler/scheduler_config.json",
                   [](auto& config) { config["frobnicate"] = 1; });
       },
       {"scheduler_config.json", "frobnicate"}},
      {"a scheduler option that is not supported",
       [](const auto& model) {
         edit_json(model / "scheduler/scheduler_config.json",
                   [](auto& config) { config["algorithm_type"] = "frobnicate"; });
       },
       {"scheduler_config.json", "algorithm_type", "frobnicate"}},
      {"a transformer option that is not supported",
       [](const auto& model) {
         edit_json(model / "transformer/config.json",
                   [](auto& config) { config["norm_type"] = "layer_norm"; });
       },
       {"transformer/config.json", "norm_type", "layer_norm"}},
      {"a config that is no JSON",
       [](const auto& model) { truncate_file(model / "transformer/config.json", 0.5); },
       {"transformer/config.json"}},
  };
}

}  // namespace

TEST_CASE(
    "a spoilt model folder: one line that says what is wrong with it, and the cluster goes on") {
  const Scratch place;
  const auto good = bad_input_cluster().run(tiny_job());
  for (const auto& spoilt : spoilt_folders()) {
    INFO(std::string(spoilt.what));
    const auto model = copy_of("tiny-pixart", place.path);
    spoilt.damage(model);
    auto job = tiny_job();
    job.model = model.string();
    check_words(error_of(job), spoilt.words);
    job.parallelism.pp = 2;
    check_words(error_of(job), spoilt.words);
  }
  CHECK(bad_input_cluster().run(tiny_job()).pictures[0].png == good.pictures[0].png);
  CHECK(bad_input_cluster().restarts() == 0);
}

TEST_CASE("the same by command, which leaves nothing behind") {
  const Scratch place;
  for (const auto& spoilt : spoilt_folders()) {
    INFO(std::string(spoilt.what));
    const std::string what = spoilt.what;
    if (what != "a truncated transformer" && what != "a NaN in the VAE" && what != "no tokenizer")
      continue;
    const auto model = copy_of("tiny-pixart", place.path);
    spoilt.damage(model);
    check_refused("run --prompt x --model " + model.string(), 1, spoilt.words);
  }
  CHECK(actors_of(getpid()).size() <= 2);
  CHECK(left_in_memory() == "");
}

TEST_CASE("requests that do not fit are refused with the field, before anything starts") {
  const std::string run = "run --model " + kTiny + " --prompt x ";
  check_refused("run --model /nonexistent/model --prompt x", 1, {"/nonexistent/model", "no such"});
  check_refused("run --prompt x", 2, {"--model"});
  check_refused("run --model " + kTiny, 2, {"--prompt"});
  check_refused(run + "--pp 6", 1, {"pp", "6", "5 blocks"});
  check_refused(run + "--cfg 2 --guidance 0", 2, {"--cfg is 2", "--guidance is 0"});
  check_refused(run + "--dp 3", 2, {"--dp is 3", "1 picture "});
  check_refused(run + "--patches 9", 1, {"patches", "9", "8 token rows"});
  check_refused(run + "--patches 2 --warmup 5 --steps 4", 2, {"--warmup is 5", "--steps is 4"});
  check_refused(run + "--height 100", 1, {"height", "100", "16"});
  check_refused(run + "--width 100000", 2, {"width", "100000"});
  check_refused(run + "--sampler frob", 2, {"sampler", "frob", "ddim", "euler"});
  check_refused(run + "--guidance nan", 2, {"guidance"});
  check_refused(run + "--output /nonexistent/o.png", 1, {"--output", "/nonexistent"});
  check_refused(run + "--output /proc/o.png", 1, {"--output", "/proc"});
  check_refused(run + "--save-latents /nonexistent/l.safetensors", 1, {"--save-latents"});
  check_refused("plan --model " + kTiny + " --pp 6", 2, {"-q"});
}

TEST_CASE("a job that does not fit leaves a running cluster as it is") {
  auto job = tiny_job();
  job.parallelism = {.dp = 1, .cfg = 2, .pp = 2};
  check_words(error_of(job), {"4 actors", "has 2"});
  job = tiny_job();
  job.model = "/nonexistent/model";
  check_words(error_of(job), {"/nonexistent/model"});
  job.model = "";
  check_words(error_of(job), {"model"});
  job = tiny_job();
  job.request.sampler = "frob";
  check_words(error_of(job), {"frob"});
  job.request = tiny_job().request;
  job.request.steps = -1;
  check_words(error_of(job), {"steps"});
  job.request.steps = 4;
  job.request.prompts = {};
  check_words(error_of(job), {"prompt"});
  bad_input_cluster().run(tiny_job());
  CHECK(bad_input_cluster().restarts() == 0);
}

TEST_CASE("prompts: an empty one is a prompt, of a long one is said what was cut") {
  auto job = tiny_job();
  job.request.prompts = {""};
  bad_input_cluster().run(job);
  std::string words;
  for (int i = 0; i < 200; ++i)
    words += "word ";
  job.request.prompts = {"start " + words + "the end"};
  std::vector<std::string> warnings;
  const auto id = bad_input_cluster().submit(job, [&](const Progress& progress) {
    warnings.insert(warnings.end(), progress.warnings.begin(), progress.warnings.end());
  });
  REQUIRE(bad_input_cluster().client().wait(id, 600s));
  REQUIRE(warnings.size() == 1);
  CHECK(has(warnings[0], "prompt 0 has more than"));
  CHECK(has(warnings[0], "120 tokens"));
  CHECK(has(warnings[0], "the end"));
}

TEST_CASE("init latents that do not fit") {
  const Scratch place;
  const fs::path file = place.path / "l.safetensors";
  const std::string run =
      "run --model " + kTiny + " --prompt x --init-latents " + file.string() + " ";
  write_tensor(file, "latents", {1, 4, 16, 8});
  check_refused(run + "--width 128", 1, {"latents", "[1, 4, 16, 8]", "[1, 4, 16, 16]"});
  write_tensor(file, "latents", {1, 3, 16, 16});
  check_refused(run, 1, {"latents"});
  write_tensor(file, "latents", {2, 4, 16, 16});
  check_refused(run, 1, {"latents", "[2, 4, 16, 16]"});
  write_tensor(file, "latents", {1, 4, 16, 16}, "I16");
  check_refused(run, 1, {file.string(), "I16"});
  write_tensor(file, "noise", {1, 4, 16, 16});
  check_refused(run, 1, {file.string(), "latents"});
  write_tensor(file, "latents", {1, 4, 16, 16});
  truncate_file(file, 0.5);
  check_refused(run, 1, {file.string()});
  truncate_file(file, 0);
  check_refused(run, 1, {file.string()});
  fs::remove(file);
  check_refused(run, 1, {file.string()});
}
