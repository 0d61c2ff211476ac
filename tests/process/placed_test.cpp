#include <fstream>
#include <nlohmann/json.hpp>

#include "models/spec/t5_spec.h"
#include "models/spec/vae_spec.h"
#include "tests/process/support/img2img.h"
#include "tests/process/support/models.h"
#include "tests/process/support/random_weights.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

// Text encoder, picture encoder and decoder are read by those who run them, and by nobody else.

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

/// Bytes by which processes differ that hold the same, and that allocators keep of an encoder's
/// work.
constexpr double kNothing = 4 * 1e6;
constexpr double kSlack = 16 * 1e6;

json config_of(const fs::path& file) {
  return json::parse(std::ifstream(file));
}

/// tiny-pixart with a text encoder and an autoencoder far larger than its transformer.
class TopHeavyModel {
 public:
  TopHeavyModel() {
    const fs::path from = checkpoint("tiny-pixart");
    for (const char* part : {"tokenizer", "transformer", "scheduler", "model_index.json"})
      fs::create_symlink(from / part, scratch_.path / part);
    auto text_config = config_of(from / "text_encoder/config.json");
    text_config["d_ff"] = 128 * 1024;
    text_config["num_layers"] = 1;
    const auto text_spec = spec::read_t5_spec(
        spec::ConfigReader(text_config.dump(), write("text_encoder", text_config)));
    text = weights("text_encoder/model.safetensors", spec::expected_tensors(text_spec));
    auto vae_config = config_of(from / "vae/config.json");
    vae_config["block_out_channels"] = {8, 8, 16, 384};
    const auto vae_spec =
        spec::read_vae_spec(spec::ConfigReader(vae_config.dump(), write("vae", vae_config)));
    auto both = spec::expected_tensors(vae_spec, spec::VaeHalf::decoder);
    for (const auto& tensor : both)
      decoder += 4.0 * static_cast<double>(elements(tensor));
    for (auto& tensor : spec::expected_tensors(vae_spec, spec::VaeHalf::encoder))
      both.push_back(std::move(tensor));
    encoder = weights("vae/diffusion_pytorch_model.safetensors", both) - decoder;
  }
  std::string folder() const { return scratch_.path.string(); }

  double text = 0, decoder = 0, encoder = 0;  // bytes

 private:
  fs::path write(const char* part, const json& config) {
    fs::create_directory(scratch_.path / part);
    auto file = scratch_.path / part / "config.json";
    std::ofstream(file) << config.dump(1);
    return file;
  }
  double weights(const char* file, const std::vector<spec::ExpectedTensor>& tensors) {
    return static_cast<double>(
        write_random_weights(scratch_.path / file, tensors, spec::Dtype::float32, values_));
  }

  Scratch scratch_;
  RandomValues values_;
};

Submission placed_job(const std::string& model, const Parallelism& degrees) {
  Submission submission;
  submission.model = model;
  submission.parallelism = degrees;
  auto& request = submission.request;
  request.prompts = {"a red circle"};
  request.max_sequence_length = 12;
  request.height = request.width = 64;
  request.steps = 2;
  return submission;
}

struct Held {
  double kept = 0;  // private memory after the job above that before it
  double peak = 0;  // highest resident set while the job ran
};

std::vector<Held> held_by_rank(SharedCluster& cluster, const Submission& submission) {
  const auto before = private_memory(cluster);
  const auto report = json::parse(cluster.run(submission).report);
  auto after = private_memory(cluster);
  std::vector<Held> held;
  for (const auto& actor : report.at("actors")) {
    const auto id = actor.at("actor").get<std::uint32_t>();
    held.push_back({after.at(id) - before.at(id), actor.at("peak_memory_bytes").get<double>()});
  }
  return held;
}

}  // namespace

TEST_CASE("who neither encodes nor decodes holds nothing of the encoders and the decoder") {
  const TopHeavyModel model;
  REQUIRE(model.text > 30 * 1e6);
  REQUIRE(model.decoder > 40 * 1e6);
  REQUIRE(model.encoder > 20 * 1e6);
  for (const int decoders : {1, 2}) {
    CAPTURE(decoders);
    SharedCluster fresh(4);
    fresh.run(placed_job(checkpoint("tiny-pixart"), {.pp = 4, .vae = 4}));  // what any job costs
    auto submission = placed_job(model.folder(), {.pp = 4, .vae = decoders});
    submission.request.init_image = read_all(kFixtures + "init/picture.png");
    submission.request.strength = 1;
    const auto held = held_by_rank(fresh, submission);
    REQUIRE(held.size() == 4);
    const Held& idle = held[1];
    for (int rank = 0; rank < 4; ++rank) {
      CAPTURE(rank);
      MESSAGE("rank " << rank << " keeps " << held[rank].kept / 1e6 << " MB, peak "
                      << held[rank].peak / 1e6 << " MB");
      const bool decodes = rank >= 4 - decoders;
      // The decoder stays, where one decodes; encoders are gone.
      CHECK(held[rank].kept < (decodes ? 1.1 * model.decoder : 0) + kSlack);
      if (decodes) CHECK(held[rank].kept > 0.9 * model.decoder);
      if (decodes) CHECK(held[rank].peak > idle.peak + 0.9 * model.decoder - kSlack);
      if (rank == 0) CHECK(held[rank].peak > idle.peak + 0.9 * model.text - kSlack);
      if (rank == 0 || decodes) continue;
      CHECK(held[rank].kept < kNothing);
      CHECK(held[rank].peak < idle.peak + kNothing);
    }
  }
}
