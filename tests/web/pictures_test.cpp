#include "web/pictures.h"

#include "models/image/png_bytes.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

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

TEST_CASE("a JPEG or a WebP becomes a PNG") {
  const std::string png = troupe::testing::read_all(TROUPE_SOURCE_DIR "/docs/demo.png");
  CHECK(to_png(png) == png);
  const auto size = troupe::models::png_size(png);
  for (const auto format : {PictureFormat::jpeg, PictureFormat::webp}) {
    const std::string file = picture_file(png, {format, 90});
    const std::string back = to_png(file);
    CHECK(troupe::models::png_size(back).width == size.width);
    CHECK(troupe::models::png_size(back).height == size.height);
    CHECK_THROWS_AS(to_png(file.substr(0, 100)), std::runtime_error);
  }
  // Without loss there is nothing that could differ.
  const std::string lossless = picture_file(png, {PictureFormat::webp, 100});
  CHECK(picture_file(to_png(lossless), {PictureFormat::webp, 100}) == lossless);
  CHECK_THROWS_AS(to_png("GIF89a"), std::runtime_error);
}
