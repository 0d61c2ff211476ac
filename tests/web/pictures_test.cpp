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
