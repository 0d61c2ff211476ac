#include <ATen/ATen.h>

#include "models/image/frames.h"
#include "models/image/png.h"
#include "tests/support/doctest.h"

using namespace troupe::models;

namespace {

std::vector<at::Tensor> pictures(int count) {
  std::vector<at::Tensor> all;
  for (int i = 0; i < count; ++i)
    all.push_back(at::randint(0, 256, {5, 7, 3}).to(at::kByte));
  return all;
}

std::vector<std::string> encoded(const std::vector<at::Tensor>& all) {
  std::vector<std::string> pngs;
  for (const auto& picture : all)
    pngs.push_back(encode_png(picture, {}));
  return pngs;
}

int count_of(const std::string& bytes, const std::string& what) {
  int count = 0;
  for (auto at = bytes.find(what); at != std::string::npos; at = bytes.find(what, at + 1))
    ++count;
  return count;
}

}  // namespace

TEST_CASE("frames come out of an animation as they went in, with its text") {
  const auto all = pictures(4);
  const auto clip = join_frames(encoded(all), {{"parameters", "a cat"}}, 16);
  // Whoever knows no animations sees the first frame.
  CHECK(at::equal(decode_picture(clip), all[0]));
  CHECK(read_png_text(clip) == PngText{{"parameters", "a cat"}});
  CHECK(count_of(clip, "fcTL") == 4);
  CHECK(count_of(clip, "acTL") == 1);
  const auto frames = split_frames(clip);
  REQUIRE(frames.size() == 4);
  for (int i = 0; i < 4; ++i) {
    CHECK(at::equal(decode_picture(frames[i]), all[i]));
    CHECK(read_png_text(frames[i]) == PngText{{"parameters", "a cat"}});
  }
}

TEST_CASE("a single frame is a plain PNG") {
  const auto all = pictures(1);
  const auto clip = join_frames(encoded(all), {}, 16);
  CHECK(count_of(clip, "acTL") == 0);
  REQUIRE(split_frames(clip).size() == 1);
  CHECK(at::equal(decode_picture(split_frames(clip)[0]), all[0]));
}

TEST_CASE("the speed changes, the frames do not") {
  const auto all = pictures(3);
  const auto clip = join_frames(encoded(all), {}, 16);
  const auto slower = at_speed(clip, 8);
  CHECK(slower != clip);
  CHECK(slower.size() == clip.size());
  CHECK(slower == join_frames(encoded(all), {}, 8));
  CHECK(at_speed(slower, 16) == clip);
  CHECK(at_speed(encoded(all)[0], 8) == encoded(all)[0]);
}

TEST_CASE("frames that do not fit together and files that are damaged are refused") {
  auto all = pictures(2);
  all[1] = at::zeros({5, 6, 3}, at::kByte);
  CHECK_THROWS_AS(join_frames(encoded(all), {}, 16), std::invalid_argument);
  CHECK_THROWS_AS(join_frames({}, {}, 16), std::invalid_argument);
  const auto clip = join_frames(encoded(pictures(2)), {}, 16);
  CHECK_THROWS_AS(split_frames(clip.substr(0, clip.size() - 20)), std::runtime_error);
  CHECK_THROWS_AS(at_speed("no picture", 8), std::runtime_error);
}
