#include "models/spec/resolution_bins.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/doctest.h"

using troupe::spec::nearest_bin;
using troupe::spec::nearest_shape;
using troupe::spec::PixelSize;

TEST_CASE("sizes fall into the bins that diffusers puts them in") {
  const auto book = nlohmann::json::parse(
      std::ifstream(TROUPE_SOURCE_DIR "/tests/fixtures/expected/binning.json"));
  int seen = 0;
  for (const auto& of : book.at("cases")) {
    if (!of.contains("width_bin_height_bin_width")) continue;
    for (const auto& row : of.at("width_bin_height_bin_width")) {
      CAPTURE(of.at("name").get<std::string>());
      CAPTURE(row.dump());
      const PixelSize wanted{of.at("height").get<std::int64_t>(), row.at(0).get<std::int64_t>()};
      const PixelSize bin{row.at(1).get<std::int64_t>(), row.at(2).get<std::int64_t>()};
      CHECK(nearest_bin(of.at("sample_size").get<std::int64_t>(), wanted) == bin);
      ++seen;
    }
  }
  CHECK(seen == 4 * 17 * 17);
}

TEST_CASE("sizes fall into the shapes that HunyuanDiT's pipeline puts them in") {
  const auto book = nlohmann::json::parse(
      std::ifstream(TROUPE_SOURCE_DIR "/tests/fixtures/expected/binning.json"));
  int seen = 0;
  for (const auto& of : book.at("cases")) {
    if (!of.contains("width_shape_height_shape_width")) continue;
    for (const auto& row : of.at("width_shape_height_shape_width")) {
      CAPTURE(of.at("name").get<std::string>());
      CAPTURE(row.dump());
      const PixelSize wanted{of.at("height").get<std::int64_t>(), row.at(0).get<std::int64_t>()};
      const PixelSize shape{row.at(1).get<std::int64_t>(), row.at(2).get<std::int64_t>()};
      CHECK(nearest_shape(wanted) == shape);
      CHECK(nearest_shape(shape) == shape);
      ++seen;
    }
  }
  CHECK(seen == 22 * 22);
  CHECK_THROWS_WITH(nearest_shape({64, -1}), "[nearest_shape] 64 x -1 is no size of a picture");
}

TEST_CASE("a bin falls into itself, and bins have about the native number of pixels") {
  for (const std::int64_t sample_size : {32, 64, 128, 256}) {
    const std::int64_t side = 8 * sample_size;
    for (std::int64_t height = 1; height <= 3 * side; height += 7) {
      const auto bin = nearest_bin(sample_size, {height, side});
      CHECK(nearest_bin(sample_size, bin) == bin);
      CHECK(bin.height % (side / 16) == 0);
      CHECK(bin.width % (side / 16) == 0);
      const double share = double(bin.height * bin.width) / double(side * side);
      CHECK(share > 0.9);
      CHECK(share < 1.05);
    }
  }
}

TEST_CASE("sizes without bins are refused by name") {
  CHECK_THROWS_WITH(
      nearest_bin(16, {64, 64}),
      "[nearest_bin] sample_size is 16: there are resolution bins for 32, 64, 128 and 256");
  CHECK_THROWS_WITH(nearest_bin(64, {0, 64}), "[nearest_bin] 0 x 64 is no size of a picture");
}
