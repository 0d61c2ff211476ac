#include <ATen/ATen.h>

#include "models/safetensors.h"
#include "models/spec/original_names.h"
#include "models/text/textual_inversion.h"
#include "tests/support/doctest.h"
#include "tests/support/made.h"

using namespace troupe;
using namespace troupe::testing;
using models::WeightStore;

namespace {

const std::filesystem::path kFiles = kMade / "torch-files";
const std::filesystem::path kFixtures = TROUPE_SOURCE_DIR "/tests/fixtures";

void require_same(const spec::WeightIndex& made, const spec::WeightIndex& wanted) {
  REQUIRE(made.tensors().size() == wanted.tensors().size());
  const WeightStore ours(made), theirs(wanted);
  for (const auto& entry : wanted.tensors()) {
    CAPTURE(entry.name);
    CHECK(made.at(entry.name).dtype == entry.dtype);
    CHECK(at::equal(ours.get(entry.name, entry.shape).to(at::kDouble),
                    theirs.get(entry.name, entry.shape).to(at::kDouble)));
  }
}

}  // namespace

TEST_CASE("files of torch.save have torch.load's tensors, in both of their forms") {
  if (lacks_made_fixtures()) return;
  for (const char* name : {"zip.pt", "before_zip.pt", "nested.ckpt"}) {
    CAPTURE(name);
    auto values = kFiles / name;
    require_same(spec::WeightIndex::read_file(kFiles / name),
                 spec::WeightIndex::read_file(values.replace_extension(".safetensors")));
  }
}

TEST_CASE("folders with .bin files, whole and in shards, have the weights of safetensors") {
  if (lacks_made_fixtures()) return;
  const auto made = spec::read_model_spec(kFiles / "tiny-sd15");
  const auto wanted = spec::read_model_spec(kFixtures / "tiny-sd15");
  require_same(made.transformer_weights, wanted.transformer_weights);
  require_same(made.vae_weights, wanted.vae_weights);
  require_same(made.text_encoders[0].weights, wanted.text_encoders[0].weights);
  using Parts = std::vector<std::string>;
  CHECK(spec::components_of(spec::WeightIndex::read_file(kFiles / "whole.ckpt"),
                            kFixtures / "tiny-sd15") == Parts{"unet", "text_encoder", "vae"});
}

TEST_CASE("learned words of torch.save are those of safetensors") {
  if (lacks_made_fixtures()) return;
  const auto model = spec::read_model_spec(kFixtures / "tiny-sd15");
  const auto wanted = models::read_textual_inversion({kFiles / "cat.safetensors", ""}, model);
  for (const char* name : {"cat.pt", "cat.bin"}) {
    CAPTURE(name);
    const auto made = models::read_textual_inversion({kFiles / name, ""}, model);
    CHECK(made.of_encoder[0].values == wanted.of_encoder[0].values);
    CHECK(made.token == (std::string(name) == "cat.pt" ? "cat" : "<cat>"));
  }
}
