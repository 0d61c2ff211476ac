#include <ATen/ATen.h>

#include <filesystem>
#include <string>
#include <vector>

#include "kernels/linear.h"
#include "kernels/simd/isa.h"
#include "models/safetensors.h"
#include "models/spec/model_spec.h"
#include "tests/models/fixtures.h"
#include "tests/support/doctest.h"
#include "tests/support/made.h"
#include "tests/support/scratch.h"

using namespace troupe;
using models::WeightStore;
using models::testing::kFixtures;
using testing::kMade;
using testing::lacks_made_fixtures;

namespace {

/// Folders and files that tests/reference/original_files.py has made.
const std::filesystem::path kFiles = kMade / "original-files";

/// Checks that two components have the same tensors, bit for bit.
void require_same(const spec::WeightIndex& ours, const spec::WeightIndex& theirs) {
  CAPTURE(theirs.label().string());
  REQUIRE(ours.tensors().size() > 0);
  const WeightStore expected(ours), made(theirs);
  for (const spec::TensorEntry& entry : ours.tensors()) {
    CAPTURE(entry.name);
    if (entry.name.ends_with("position_ids")) continue;  // not in OpenCLIP's files
    REQUIRE(theirs.contains(entry.name));
    REQUIRE(theirs.at(entry.name).shape == entry.shape);
    CHECK(at::equal(made.get(entry.name).to(at::kFloat), expected.get(entry.name).to(at::kFloat)));
  }
}

void require_same(const spec::ModelSpec& ours, const spec::ModelSpec& theirs) {
  require_same(ours.transformer_weights, theirs.transformer_weights);
  require_same(ours.vae_weights, theirs.vae_weights);
  for (std::size_t i = 0; i < ours.text_encoders.size(); ++i) {
    if (!ours.text_encoders[i].absent)
      require_same(ours.text_encoders[i].weights, theirs.text_encoders[i].weights);
  }
}

}  // namespace

TEST_CASE("files with their authors' names hold the folder's tensors") {
  if (lacks_made_fixtures()) return;
  for (const char* name :
       {"tiny-flux", "tiny-sd3", "tiny-sd35", "tiny-sd15", "tiny-sdxl", "tiny-wan"}) {
    CAPTURE(name);
    const auto ours = spec::read_model_spec(kFixtures / name);
    const auto theirs = spec::read_model_spec(kFiles / name);
    require_same(ours, theirs);
    CHECK(weight_bytes(theirs) == weight_bytes(ours));
  }
  for (const char* name : {"tiny-zimage", "tiny-chroma", "tiny-flux2"}) {
    CAPTURE(name);
    require_same(spec::read_model_spec(kMade / name), spec::read_model_spec(kFiles / name));
  }
}

TEST_CASE("a file's parts are found by its tensors, also for a folder without weights") {
  if (lacks_made_fixtures()) return;
  using Parts = std::vector<std::string>;
  const auto parts = [](const char* name, const std::filesystem::path& folder) {
    const auto made = spec::read_model_spec(kFiles / name);
    return components_of(spec::WeightIndex::read_file(made.transformer_weights.files().front()),
                         folder);
  };
  CHECK(parts("tiny-sd15", kFixtures / "tiny-sd15") == Parts{"unet", "text_encoder", "vae"});
  CHECK(parts("tiny-sdxl", kFixtures / "tiny-sdxl") ==
        Parts{"unet", "text_encoder", "text_encoder_2", "vae"});
  CHECK(parts("tiny-flux", kFixtures / "tiny-flux") == Parts{"transformer"});
  CHECK(parts("tiny-flux", kFixtures / "tiny-sd15").empty());
  const testing::Scratch scratch;
  std::filesystem::copy(kFixtures / "tiny-flux", scratch.path / "base",
                        std::filesystem::copy_options::recursive);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(scratch.path / "base"))
    if (entry.path().extension() == ".safetensors") std::filesystem::remove(entry.path());
  CHECK(parts("tiny-flux", scratch.path / "base") == Parts{"transformer"});
}

TEST_CASE("Wan's VAE as its authors keep it has the folder's tensors") {
  if (lacks_made_fixtures()) return;
  const auto ours = spec::read_model_spec(kFiles / "wan-vae-values/tiny-wan");
  const auto theirs = spec::read_model_spec(kFiles / "wan-vae/tiny-wan");
  const WeightStore expected(ours.vae_weights), made(theirs.vae_weights);
  for (const auto& tensor : expected_tensors(*ours.video_vae)) {
    CAPTURE(tensor.name);
    CHECK(at::equal(made.get(tensor.name, tensor.shape), expected.get(tensor.name, tensor.shape)));
  }
}

TEST_CASE("blocks of every type of GGUF are unpacked as gguf-py does") {
  if (lacks_made_fixtures()) return;
  const WeightStore packed(spec::WeightIndex::read_file(kFiles / "types.gguf"));
  const WeightStore values(spec::WeightIndex::read_file(kFiles / "types.safetensors"));
  REQUIRE(values.index().tensors().size() == 12);
  require_same(values.index(), packed.index());
  const auto ids = at::tensor({4, 0, 4}, at::kLong);
  for (const auto& entry : values.index().tensors()) {
    CAPTURE(entry.name);
    if (entry.shape[0] == 6)
      CHECK(at::equal(packed.rows(entry.name, ids), values.get(entry.name).index_select(0, ids)));
  }
}

TEST_CASE("matrices that stay packed have the values of the unpacked ones, in parts and products") {
  if (lacks_made_fixtures()) return;
  const WeightStore packed(spec::WeightIndex::read_file(kFiles / "types.gguf"));
  const WeightStore values(spec::WeightIndex::read_file(kFiles / "types.safetensors"));
  int types = 0;
  at::manual_seed(3);
  for (const auto& entry : values.index().tensors()) {
    CAPTURE(entry.name);
    const auto matrix = packed.packed(entry.name);
    CHECK(matrix.has_value() == spec::is_packed(packed.index().at(entry.name).dtype));
    if (!matrix) continue;
    ++types;
    const at::Tensor all = values.get(entry.name);
    // What GPUs unpack with.
    CHECK(at::equal(models::unpack_by_library(matrix->dtype, matrix->bytes.contiguous()),
                    all.view({-1})));
    const std::int64_t width = entry.shape[1];
    for (const auto& [first, last] : {std::pair<std::int64_t, std::int64_t>{0, width},
                                      {1, width / 2},
                                      {width / 2, width},
                                      {width / 2 - 3, width - 7}}) {
      CAPTURE(first);
      const auto part = matrix->part(1, 5, first, last);
      const at::Tensor own = all.slice(0, 1, 5).slice(1, first, last);
      CHECK(at::equal(part.unpacker(at::kFloat)(part.bytes), own));
      CHECK(at::equal(part.unpacker(at::kBFloat16)(part.bytes), own.to(at::kBFloat16)));
      const kernels::Linear kept({{part.bytes, part.unpacker(at::kFloat)}}, last - first, {});
      const at::Tensor x = at::randn({7, last - first});
      if (kernels::simd::table().beats_library) CHECK(at::equal(kept(x), kernels::Linear(own)(x)));
      // Terms of both signs cancel: rounding is that of their sizes' sum.
      const at::Tensor sizes = at::linear(x.abs(), own.abs());
      CHECK(((kept(x) - at::linear(x, own)).abs() <= 1e-5 * sizes).all().item<bool>());
      CHECK(kept.bytes() < 4 * own.numel());
    }
  }
  CHECK(types == 10);
}

TEST_CASE("transformers in GGUF and in scaled 8-bit floats have their files' values") {
  if (lacks_made_fixtures()) return;
  for (const std::string kind : {"gguf", "fp8"}) {
    CAPTURE(kind);
    require_same(spec::read_model_spec(kFiles / (kind + "-values") / "tiny-flux"),
                 spec::read_model_spec(kFiles / kind / "tiny-flux"));
  }
}
