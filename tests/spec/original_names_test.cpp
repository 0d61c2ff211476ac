#include "models/spec/original_names.h"

#include <string>
#include <vector>

#include "tests/spec/model_folder.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;
using spec::WeightIndex;

namespace {

struct Stored {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t bytes;
};

WeightIndex index_of(const std::vector<Stored>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::uint64_t at = 0;
  for (const auto& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {at, at + tensor.bytes}}};
    at += tensor.bytes;
  }
  const auto head = header.dump();
  return WeightIndex::of_bytes(with_prefix(head) + std::string(at, '\0'), "x.safetensors",
                               head.size());
}

const std::vector<spec::ExpectedTensor> kWeight = {{"a.weight", {4, 2}}};

const auto kNoSpellings = [] { return std::vector<spec::Spelling>(); };

std::string refusal(const std::vector<Stored>& tensors) {
  return error_of([&] { with_diffusers_names(index_of(tensors), kWeight, kNoSpellings); });
}

}  // namespace

TEST_CASE("weights in 8-bit floats take the scale beside them, in either spelling") {
  for (const char* name : {"a.scale_weight", "a.weight_scale"}) {
    const auto file = index_of({{"a.weight", "F8_E4M3", {4, 2}, 8}, {name, "F32", {1}, 4}});
    const auto made = with_diffusers_names(file, kWeight, kNoSpellings);
    REQUIRE(made.tensors().size() == 1);
    CHECK(made.at("a.weight").scale_at == file.at(name).begin);
  }
  const auto bare = index_of({{"a.weight", "F8_E5M2", {4, 2}, 8}});
  CHECK(!with_diffusers_names(bare, kWeight, kNoSpellings).at("a.weight").scale_at);
}

TEST_CASE("scales that are not read are refused by name") {
  CHECK(contains(refusal({{"a.weight", "F8_E4M3", {4, 2}, 8}, {"a.scale_weight", "F32", {4}, 16}}),
                 "tensor \"a.scale_weight\" [4] of float32 is no single float32"));
  CHECK(contains(refusal({{"a.weight", "F8_E4M3", {4, 2}, 8}, {"a.weight_scale", "BF16", {1}, 2}}),
                 "tensor \"a.weight_scale\" [1] of bfloat16 is no single float32"));
  CHECK(contains(refusal({{"a.weight", "BF16", {4, 2}, 16}, {"a.scale_weight", "F32", {1}, 4}}),
                 "is a scale of weights in bfloat16; scales are read of 8-bit floats only"));
}

TEST_CASE("a product of several that has other rows than they is refused") {
  const std::vector<spec::ExpectedTensor> three = {
      {"to_q.weight", {2, 2}}, {"to_k.weight", {2, 2}}, {"to_v.weight", {2, 2}}};
  const std::vector<spec::Spelling> made_of = {{"",
                                                {{"to_q.weight", {"qkv.weight", 0, 6}},
                                                 {"to_k.weight", {"qkv.weight", 2, 6}},
                                                 {"to_v.weight", {"qkv.weight", 4, 6}}}}};
  const auto spellings = [&] { return made_of; };
  const auto whole = index_of({{"qkv.weight", "F32", {6, 2}, 48}});
  const auto made = with_diffusers_names(whole, three, spellings);
  CHECK(made.at("to_k.weight").begin == whole.at("qkv.weight").begin + 16);
  CHECK(made.at("to_v.weight").end == whole.at("qkv.weight").end);
  for (const std::int64_t rows : {2, 4, 7}) {
    const auto bytes = static_cast<std::uint64_t>(rows) * 8;
    const auto other = index_of({{"qkv.weight", "F32", {rows, 2}, bytes}});
    CHECK(contains(error_of([&] { with_diffusers_names(other, three, spellings); }),
                   "the config calls for 6 rows"));
  }
}

TEST_CASE("LoRAs may name the products of Wan, Z-Image and FLUX.2 as their authors do") {
  const auto parts_of = [](const spec::TransformerSpec& family, const std::string& name) {
    for (const auto& product : original_names(family)) {
      if (product.name == name) return product.parts;
    }
    return std::vector<spec::LoraPart>();
  };
  const spec::ZImageSpec zimage;
  const std::string block = "layers.0.attention.";
  const auto qkv = parts_of(zimage, block + "qkv");
  REQUIRE(qkv.size() == 3);
  CHECK(qkv[0] == spec::LoraPart{block + "to_q.weight", 0, 0, zimage.dim});
  CHECK(qkv[2] == spec::LoraPart{block + "to_v.weight", 2 * zimage.dim, 0, zimage.dim});
  CHECK(parts_of(zimage, block + "out").at(0).tensor == block + "to_out.0.weight");
  const spec::WanSpec wan;
  CHECK(parts_of(wan, "blocks.0.cross_attn.k").at(0).tensor == "blocks.0.attn2.to_k.weight");
  const spec::Flux2Spec flux2;
  const std::int64_t width = flux2.inner_dim();
  const auto text = parts_of(flux2, "double_blocks.1.txt_attn.qkv");
  REQUIRE(text.size() == 3);
  CHECK(text[1] == spec::LoraPart{"transformer_blocks.1.attn.add_k_proj.weight", width, 0, width});
  CHECK(parts_of(flux2, "single_blocks.2.linear1").at(0).tensor ==
        "single_transformer_blocks.2.attn.to_qkv_mlp_proj.weight");
  const auto swapped = parts_of(flux2, "final_layer.adaLN_modulation.1");
  REQUIRE(swapped.size() == 2);
  CHECK(swapped[0] == spec::LoraPart{"norm_out.linear.weight", width, 0, width});
  CHECK(swapped[1] == spec::LoraPart{"norm_out.linear.weight", 0, width, width});
}
