#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/spec/config.h"
#include "models/spec/model_plugin.h"
#include "models/spec/transformer_spec.h"
#include "tests/process/support/compare.h"
#include "tests/process/support/foreseen.h"
#include "tests/process/support/models.h"
#include "tests/process/support/processes.h"
#include "tests/process/support/random_weights.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

// A model and a sampler in shared libraries of a user's own: examples/model_plugin.

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

const std::string kLibraries = TROUPE_BINARY_DIR "/lib/";
const std::string kPlainDit = kLibraries + "libplain_dit.so";

/// The example's model with random weights, and all else of tiny-pixart.
class PlainModel {
 public:
  PlainModel() {
    spec::open_model_plugin(kPlainDit);
    const fs::path from = checkpoint("tiny-pixart");
    for (const char* part : {"tokenizer", "text_encoder", "vae", "scheduler"})
      fs::create_symlink(from / part, scratch_.path / part);
    auto index = json::parse(std::ifstream(from / "model_index.json"));
    index["_class_name"] = "PlainDiTPipeline";
    index["transformer"] = {"plain", "PlainDiT"};
    std::ofstream(scratch_.path / "model_index.json") << index.dump(1);
    const auto text = json::parse(std::ifstream(from / "text_encoder/config.json"));
    const json config = {{"_class_name", "PlainDiT"}, {"num_attention_heads", 5},
                         {"attention_head_dim", 8},   {"num_layers", 6},
                         {"sample_size", 8},          {"text_width", text.at("d_model")}};
    fs::create_directory(scratch_.path / "transformer");
    std::ofstream(config_file()) << config.dump(1);
    const auto read =
        spec::read_transformer_spec(spec::ConfigReader::read(config_file()), "PlainDiT");
    RandomValues values;
    write_random_weights(scratch_.path / "transformer/diffusion_pytorch_model.safetensors",
                         spec::expected_tensors(read), spec::Dtype::float32, values);
  }
  std::string folder() const { return scratch_.path.string(); }
  fs::path config_file() const { return scratch_.path / "transformer/config.json"; }

 private:
  Scratch scratch_;
};

Submission plain_job(const PlainModel& model, const Parallelism& degrees = {}) {
  Submission submission;
  submission.model = model.folder();
  submission.parallelism = degrees;
  auto& request = submission.request;
  request.prompts = {"a red circle", "a tree"};
  request.negative_prompt = "a blue square";
  request.height = 80;
  request.width = 48;
  request.steps = 4;
  request.max_sequence_length = 12;
  request.want_latents = true;
  return submission;
}

std::string why_not(const std::string& file) {
  return message_of([&] { spec::open_model_plugin(file); });
}

}  // namespace

TEST_CASE("a plugin that does not fit is refused with the file and why") {
  CHECK(why_not(kLibraries + "libnobody.so") ==
        "[model plugin] " + kLibraries + "libnobody.so: there is no such file");
  CHECK(has(why_not(kLibraries + "libtroupe_example_actors.so"),
            "libtroupe_example_actors.so: has no entry point troupe_model_plugin: is "
            "TROUPE_MODEL_PLUGIN(...) in one of its files?"));
  CHECK(has(why_not(kLibraries + "libtroupe_test_other_version.so"),
            "was built for version 99 of what models are told in, this troupe has version " +
                std::to_string(troupe::spec::plugin::kModelAbi) + ":"));
  CHECK(has(why_not(kLibraries + "libtroupe_test_missing_symbol.so"), "of_another_troupe"));
  const Scratch scratch;
  const auto halved = scratch / "libplain_dit.so";
  fs::copy_file(kPlainDit, halved);
  CHECK(has(why_not(halved),
            "its other half, " + (scratch / "libplain_dit_network.so") + ", is missing"));
  const auto taken = scratch / "libtaken.so";
  fs::copy_file(kLibraries + "libtroupe_test_taken_name.so", taken);
  fs::copy_file(kLibraries + "libplain_dit_network.so", scratch / "libtaken_network.so");
  CHECK(has(why_not(taken), "brings the sampler \"ddim\", which Troupe has itself"));
  spec::open_model_plugin(kPlainDit);
  CHECK(why_not(kPlainDit) == "");  // it is open
  const auto twice = scratch / "libtwice.so";
  fs::copy_file(kPlainDit, twice);
  fs::copy_file(kLibraries + "libplain_dit_network.so", scratch / "libtwice_network.so");
  CHECK(has(why_not(twice), "brings the transformer class \"PlainDiT\", which " + kPlainDit +
                                " has brought already"));
  // Of the open one's name, though it brings something else.
  fs::remove(halved);
  fs::copy_file(kLibraries + "libtroupe_test_other_names.so", halved);
  fs::copy_file(kLibraries + "libplain_dit_network.so", scratch / "libplain_dit_network.so");
  CHECK(has(why_not(halved),
            halved + ": has the name of " + fs::canonical(kPlainDit).string() + ", which is open"));
}

TEST_CASE("a model of a plugin makes at all degrees what it makes on one actor") {
  const PlainModel model;
  SharedCluster cluster(4);  // its actors open what this process has open
  const auto latents = [&](const Submission& submission) {
    const auto result = cluster.run(submission);
    const Foreseen foreseen(submission);
    check_sent(json::parse(result.report), foreseen);
    return result.latents.value();
  };
  const auto one = latents(plain_job(model));
  CHECK(one.shape == std::vector<std::int64_t>{2, 4, 10, 6});
  // A batch of one goes through all stages as it is.
  auto single = plain_job(model);
  single.request.prompts = {"a tree"};
  single.request.guidance_scale = 1;
  const auto whole = latents(single);
  for (const int stages : {2, 4}) {
    CAPTURE(stages);
    single.parallelism.pp = stages;
    CHECK(latents(single).data == whole.data);
  }
  for (const Parallelism& mix :
       {Parallelism{.pp = 3}, Parallelism{.cfg = 2, .ulysses = 2}, Parallelism{.ring = 2, .tp = 2},
        Parallelism{.dp = 2, .tp = 2}, Parallelism{.ulysses = 3}}) {
    CAPTURE(name_of(mix));
    CHECK(range_error(latents(plain_job(model, mix)), one) < 1e-5);
  }
  for (const std::string method : {"pipefusion", "distrifusion"}) {
    CAPTURE(method);
    auto job = plain_job(model);
    job.request.method = method;
    job.request.num_pipeline_patch = 3;
    const auto alone = latents(job);
    CHECK(range_error(alone, one) > 1e-5);
    job.parallelism = method == "pipefusion" ? Parallelism{.pp = 3} : Parallelism{.ring = 3};
    CHECK(range_error(latents(job), alone) < 1e-5);
  }
  auto sampled = plain_job(model);
  sampled.request.sampler = "plain-euler";
  const auto euler = latents(sampled);
  CHECK(range_error(euler, one) > 1e-3);
  sampled.parallelism = {.pp = 2};
  CHECK(range_error(latents(sampled), euler) < 1e-5);
}

TEST_CASE("the command line takes plugins, and says which classes there are without them") {
  const PlainModel model;
  const Scratch log;
  const auto plan = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"plan", "--model", model.folder(), "--prompt", "a cat"};
    words.insert(words.end(), more.begin(), more.end());
    Command command(words, log.path.string(), {});
    const int code = command.wait(4 * kPatience);
    return std::to_string(code) + " " + command.out() + command.err();
  };
  CHECK(has(plan({"--model-plugin", kPlainDit, "--sampler", "plain-euler", "--pp", "2"}),
            "stage 1   blocks 3–5"));
  const auto without = plan({});
  CHECK(has(without, "pipeline class \"PlainDiTPipeline\" is not supported"));
  const auto wrong = plan({"--model-plugin", kLibraries + "libtroupe_test_other_version.so"});
  CHECK(wrong.starts_with("2 "));
  CHECK(has(wrong, "was built for version 99"));
}

TEST_CASE("no actor starts with a network half that brings other names than its other half") {
  const Scratch scratch;
  const auto plugin = scratch / "libother.so";
  fs::copy_file(kLibraries + "libtroupe_test_other_names.so", plugin);
  fs::copy_file(kLibraries + "libplain_dit_network.so", scratch / "libother_network.so");
  Command command(
      {"run", "--model-plugin", plugin, "--model", TROUPE_SOURCE_DIR "/examples/demo/model",
       "--prompt", "a cat", "--output", scratch / "cat.png"},
      scratch.path.string(), {});
  CHECK(command.wait(4 * kPatience) > 0);
  CHECK(
      has(command.err(), "libother_network.so: brings the transformer class \"PlainDiT\", which " +
                             plugin + " does not"));
}
