#include "models/image/resize.h"

#include <ATen/ATen.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "models/safetensors.h"
#include "tests/support/doctest.h"

using troupe::models::resize_and_crop;

namespace {

const std::string kExpected = TROUPE_SOURCE_DIR "/tests/fixtures/expected/binning";

}  // namespace

TEST_CASE("pictures are scaled and cropped as diffusers does it") {
  const auto book = nlohmann::json::parse(std::ifstream(kExpected + ".json"));
  const troupe::models::WeightStore tensors(
      troupe::spec::WeightIndex::read_file(kExpected + ".safetensors"));
  int seen = 0;
  for (const auto& of : book.at("cases")) {
    const auto name = of.at("name").get<std::string>();
    if (!name.starts_with("resize/")) continue;
    CAPTURE(name);
    const auto out = resize_and_crop(tensors.get(name + ".in"), of.at("height"), of.at("width"));
    const auto expected = tensors.get(name + ".out");
    REQUIRE(out.sizes() == expected.sizes());
    CHECK((out - expected).abs().max().item<double>() <= 1e-6);
    ++seen;
  }
  CHECK(seen == 8);
}

TEST_CASE("a scaled side is never a pixel short") {
  // 464 × (477 / 464) is a hair under 477 in binary.
  const auto out = resize_and_crop(at::ones({1, 3, 128, 464}), 127, 477);
  CHECK(out.sizes() == at::IntArrayRef({1, 3, 127, 477}));
  CHECK(out.min().item<float>() == doctest::Approx(1));
}

TEST_CASE("the right size is left alone and nonsense refused") {
  const auto picture = at::rand({1, 3, 8, 12});
  CHECK(resize_and_crop(picture, 8, 12).is_same(picture));
  CHECK_THROWS_AS(resize_and_crop(picture, 0, 12), std::invalid_argument);
  CHECK_THROWS_AS(resize_and_crop(picture[0], 8, 12), std::invalid_argument);
  CHECK_THROWS_AS(resize_and_crop(at::ones({1, 3, 8, 12}, at::kByte), 4, 4), std::invalid_argument);
}
