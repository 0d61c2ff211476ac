#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "tests/models/vae_support.h"
#include "tests/support/doctest.h"

using namespace troupe::models;
using namespace troupe::models::testing;

TEST_CASE("tiles give diffusers' tiled pictures and latents") {
  const auto tensors = vae_fixture();
  const AutoencoderKL vae = load_vae(kTinyVae);
  const auto latents = tensors.at("decode_tiled.latents") * vae.spec().scaling_factor;
  const auto& pixels = tensors.at("decode_tiled.pixels");
  const auto found = vae.decode_tiled(latents);
  REQUIRE(found.sizes() == pixels.sizes());
  const double error = relative_error(found, pixels);
  const auto encoded = vae.encode_tiled(pixels);
  const double mean = relative_error(encoded.mean, tensors.at("encode_tiled.mean"));
  const double logvar = relative_error(encoded.logvar, tensors.at("encode_tiled.logvar"));
  MESSAGE("decoded " << error << ", encoded " << mean << ", " << logvar << " of the range");
  CHECK(error < 1e-5);
  CHECK(mean < 1e-5);
  CHECK(logvar < 1e-5);
  // It is not what the whole would give.
  CHECK(relative_error(vae.decode(latents), pixels) > 1e-3);
}

TEST_CASE("tiles cover the picture and overlap by a quarter") {
  troupe::spec::VaeSpec spec;
  spec.block_out_channels = {32, 32, 32, 32};
  spec.sample_size = 512;
  const TileGrid grid = decode_tiles(spec, 100, 64);
  CHECK((grid.rows == std::vector<RowRun>{{0, 64}, {48, 100}, {96, 100}}));
  CHECK((grid.columns == std::vector<RowRun>{{0, 64}, {48, 64}}));
  CHECK(grid.blend == 128);
  CHECK(grid.limit == 384);
  CHECK((encode_tiles(spec, 512, 513).columns == std::vector<RowRun>{{0, 512}, {384, 513}}));
  CHECK(encode_tiles(spec, 512, 513).limit == 48);
  CHECK(decode_tiles(spec, 64, 64).count() == 1);
  spec.sample_size = 100;
  CHECK_THROWS_AS(decode_tiles(spec, 64, 64), std::invalid_argument);
}

TEST_CASE("what fits one tile is coded whole; batches are tiled picture by picture") {
  const AutoencoderKL vae = load_vae(kTinyVae);
  const auto small = at::randn({1, 4, 8, 6});
  CHECK(at::equal(vae.decode_tiled(small), vae.decode(small)));
  const auto two = at::randn({2, 4, 9, 8});
  int count = 0;
  const auto found = vae.decode_tiled(two, [&](int done, int total) {
    CHECK(done == ++count);
    CHECK(total == 2 * 2 * 2 * vae.blocks());
  });
  CHECK(count == 8 * vae.blocks());
  for (int i = 0; i < 2; ++i) {
    CHECK(at::equal(found[i], vae.decode_tiled(two.narrow(0, i, 1))[0]));
  }
  CHECK_THROWS_AS(vae.encode_tiled(at::zeros({1, 3, 12, 80})), std::invalid_argument);
}

TEST_CASE("a constant fades over to itself, whichever tiles it comes in") {
  troupe::spec::VaeSpec spec;
  spec.block_out_channels = {32, 32};
  spec.sample_size = 16;
  const TileGrid grid = decode_tiles(spec, 21, 17);
  TileJoiner joiner(grid);
  CHECK_THROWS_AS(joiner.join(), std::logic_error);
  for (int i = 0; i < grid.count(); ++i) {
    const auto tile = grid.tile(at::ones({1, 1, 21, 17}), i);
    joiner.add(at::ones({1, 1, 2 * tile.size(2), 2 * tile.size(3)}));
  }
  CHECK(at::allclose(joiner.join(), at::ones({1, 1, 42, 34})));
}
