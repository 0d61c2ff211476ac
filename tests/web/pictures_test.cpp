#include "web/pictures.h"

#include "models/image/png_text.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::web;

TEST_CASE("a PNG becomes a JPEG, a WebP, or stays as it is") {
  const std::string png = troupe::testing::read_all(TROUPE_SOURCE_DIR "/docs/demo.png");
  CHECK(picture_file(png, {PictureFormat::png, 1}) == png);
  const auto jpeg = picture_file(png, {PictureFormat::jpeg, 90});
  CHECK(jpeg.starts_with("\xff\xd8\xff"));
  CHECK(jpeg.ends_with("\xff\xd9"));
  CHECK(picture_file(png, {PictureFormat::jpeg, 20}).size() < jpeg.size());
  const auto webp = picture_file(png, {PictureFormat::webp, 80});
  CHECK(webp.substr(0, 4) == "RIFF");
  CHECK(webp.substr(8, 4) == "WEBP");
  CHECK(picture_file(png, {PictureFormat::webp, 100}).substr(12, 4) == "VP8L");
  for (const std::string& damaged :
       {std::string(), png.substr(0, 40), png.substr(0, png.size() / 2)})
    CHECK_THROWS_AS(picture_file(damaged, {PictureFormat::jpeg, 90}), std::runtime_error);
}

TEST_CASE("a picture that comes in stays as it is, unless its alpha counts") {
  using models::AlphaUse;
  const auto file_of = [](const std::string& name) {
    return troupe::testing::read_all(TROUPE_SOURCE_DIR "/tests/fixtures/pictures/" + name);
  };
  for (const char* name : {"rgb16.png", "exif6.jpg", "cmyk.jpg", "animated.webp", "rgba8.png"}) {
    CAPTURE(name);
    CHECK(taken_picture(file_of(name)) == file_of(name));
  }
  for (const auto alpha : {AlphaUse::clear_parts, AlphaUse::mask, AlphaUse::over_white}) {
    for (const char* name : {"rgb8.png", "420.jpg", "lossless.webp"})
      CHECK(taken_picture(file_of(name), alpha) == file_of(name));
    for (const char* name : {"rgba8.png", "palette_alpha.png", "alpha.webp"}) {
      CAPTURE(name);
      const auto made = taken_picture(file_of(name), alpha);
      CHECK(made.starts_with(models::kPngSignature));
      CHECK(models::load_picture(made).rgb == models::load_picture(file_of(name), alpha).rgb);
    }
  }
  CHECK_THROWS_WITH(taken_picture("GIF89a"), "is a GIF: PNG, JPEG and WebP are taken");
  const auto jpeg = file_of("420.jpg");
  CHECK_THROWS_AS(taken_picture(jpeg.substr(0, jpeg.size() - 9)), std::runtime_error);
}
