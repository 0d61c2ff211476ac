#include <filesystem>

#include "client/cli/request_options.h"
#include "client/cli/verb.h"
#include "client/convert.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"
#include "transport/wire/request_rules.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

Submission parse_submission(std::vector<std::string> words) {
  cli::RequestOptions options;
  cli::Options app;
  cli::add_request_options(app, options);
  cli::add_degree_options(app, options);
  words.insert(words.end(), {"--prompt", "a cat"});
  app.parse(std::move(words));
  REQUIRE(app.remaining().empty());
  cli::settle(options);
  return cli::make_submission(options);
}

// One pixel.
const std::string kPng(
    "\x89\x50\x4e\x47\x0d\x0a\x1a\x0a\x00\x00\x00\x0d\x49\x48\x44\x52\x00\x00\x00\x01"
    "\x00\x00\x00\x01\x08\x02\x00\x00\x00\x90\x77\x53\xde\x00\x00\x00\x0c\x49\x44\x41"
    "\x54\x78\x9c\x63\x10\x50\x30\x00\x00\x00\xa4\x00\x61\x34\x66\x7d\x72\x00\x00\x00"
    "\x00\x49\x45\x4e\x44\xae\x42\x60\x82",
    69);

}  // namespace

TEST_CASE("LoRAs come with their scales, in order, by whole paths") {
  const auto loras =
      parse_submission({"--lora", "/a/b.safetensors", "--lora", "/a:b/c.safetensors:-0.5", "--lora",
                        "x.safetensors:2", "--lora-2", "/low.safetensors:0.5", "--lora", "/a/d:e"})
          .request.loras;
  REQUIRE(loras.size() == 5);
  CHECK(loras[0].path == "/a/b.safetensors");
  CHECK(loras[0].scale == 1);
  CHECK(loras[1].path == "/a:b/c.safetensors");
  CHECK(loras[1].scale == -0.5);
  CHECK(std::filesystem::path(loras[2].path).is_absolute());
  CHECK(loras[2].scale == 2);
  CHECK(loras[3].path == "/a/d:e");
  CHECK_FALSE(loras[3].of_second);
  CHECK(loras[4].path == "/low.safetensors");
  CHECK(loras[4].scale == 0.5);
  CHECK(loras[4].of_second);
  // What follows the colon was meant to be a scale where only what precedes it is a file.
  const Scratch folder;
  const auto file = folder.file("a", "").string();
  CHECK(has(message_of([&] { parse_submission({"--lora-2", file + ":abc"}); }), "--lora-2 "));
  CHECK(has(message_of([&] {
              parse_submission({"--lora", file + ":abc"});
            }),
            "the scale is no number"));
  CHECK(has(message_of([&] { parse_submission({"--lora", file + ":"}); }), "there is no scale"));
  CHECK(has(message_of([&] {
              parse_submission({"--lora", file + ":1e9"});
            }),
            "from -1000 to 1000"));
  const auto odd = folder.file("a:b", "").string();
  CHECK(parse_submission({"--lora", odd}).request.loras[0].path == odd);
  CHECK(parse_submission({"--lora", odd + ":2"}).request.loras[0].scale == 2);
  Submission submission;
  submission.request.loras = loras;
  const auto wire = client::to_wire(submission).value().request.loras;
  REQUIRE(wire.size() == 5);
  CHECK(wire[4].of_second);
  CHECK(wire[1].path == "/a:b/c.safetensors");
  CHECK(wire[1].scale == -0.5);
}

TEST_CASE("embeddings come with their words, by whole paths") {
  const auto embeddings = parse_submission({"--embedding", "/a/b.safetensors", "--embedding",
                                            "x.safetensors:<a:b>", "--embedding", "/a:b/c.pt:d"})
                              .request.embeddings;
  REQUIRE(embeddings.size() == 3);
  CHECK(embeddings[0].path == "/a/b.safetensors");
  CHECK(embeddings[0].token == "");
  CHECK(std::filesystem::path(embeddings[1].path).is_absolute());
  CHECK(embeddings[1].path.ends_with("/x.safetensors"));
  CHECK(embeddings[1].token == "<a:b>");
  CHECK(embeddings[2].path == "/a:b/c.pt:d");
  Submission submission;
  submission.request.embeddings = embeddings;
  const auto wire = client::to_wire(submission).value().request.embeddings;
  REQUIRE(wire.size() == 3);
  CHECK(wire[1].path == embeddings[1].path);
  CHECK(wire[1].token == "<a:b>");
}

TEST_CASE("a picture to begin with is read into the submission: PNG, JPEG or WebP") {
  const Scratch folder;
  const auto file = folder.file("a.png", kPng).string();
  auto submission =
      parse_submission({"--init-image", file, "--strength", "0.3", "--guidance-rescale", "0.7"});
  CHECK(submission.request.init_image == kPng);
  CHECK(!client::check_pictures(submission.request));
  const auto wire = client::to_wire(submission).value().request;
  CHECK(wire.init_image_bytes == kPng.size());
  CHECK(wire.init_image_blob == 0);
  CHECK(wire.init_image_width > 0);
  CHECK(wire.init_image_height > 0);
  CHECK(wire.strength == 0.3);
  CHECK(wire.guidance_rescale == 0.7);
  for (const char* name : {"exif6.jpg", "exif6.webp", "exif6.png"}) {
    CAPTURE(name);
    const std::string picture = TROUPE_SOURCE_DIR "/tests/fixtures/pictures/" + std::string(name);
    const auto turned = parse_submission({"--init-image", picture, "--mask", picture});
    CHECK(turned.request.init_image == read_all(picture));
    CHECK(turned.request.mask_image == read_all(picture));
    const auto sent = client::to_wire(turned).value().request;
    CHECK(sent.init_image_width == 5);  // coded as 7 x 5, and lies on its side
    CHECK(sent.init_image_height == 7);
    CHECK(sent.mask_image_width == 5);
  }
  const auto jpeg = read_all(TROUPE_SOURCE_DIR "/tests/fixtures/pictures/420.jpg");
  const auto damaged = folder.file("cut.jpg", jpeg.substr(0, jpeg.size() - 9)).string();
  CHECK(has(message_of([&] {
              parse_submission({"--init-image", damaged});
            }),
            "--init-image " + damaged + ": is damaged: the JPEG cannot be read"));
  for (const auto& [bytes, name] :
       {std::pair<std::string, std::string>{"\xff\xd8\xff\xe1", "a damaged JPEG"},
        {"GIF89a", "a GIF: PNG, JPEG and WebP are taken"},
        {"RIFFxxxxWEBP", "a damaged WebP"},
        {"hello", "no PNG, JPEG or WebP"}}) {
    submission.request.init_image = bytes;
    const auto error = client::check_pictures(submission.request);
    REQUIRE(error);
    CHECK(error->code == ErrorCode::bad_request);
    CHECK(has(error->what, name));
  }
  // Cut off anywhere, or changed where its checksums look, it is refused before anything is sent.
  for (std::size_t size = 8; size < kPng.size(); ++size) {
    CAPTURE(size);
    submission.request.init_image = kPng.substr(0, size);
    const auto error = client::check_pictures(submission.request);
    REQUIRE(error);
    CHECK(has(error->what, "is cut off"));
  }
  for (std::size_t byte = 8; byte < kPng.size(); ++byte) {
    CAPTURE(byte);
    submission.request.init_image = kPng;
    submission.request.init_image[byte] ^= '\x10';
    CHECK(client::check_pictures(submission.request));
  }
  submission.request.init_image = kPng + "whatever follows";
  CHECK(!client::check_pictures(submission.request));
  const auto cut = folder.file("cut.png", kPng.substr(0, kPng.size() - 6)).string();
  const auto message = message_of([&] { parse_submission({"--init-image", cut}); });
  CHECK(has(message, "cut.png: init_image is cut off"));
  submission.request.init_image = kPng;
  submission.request.init_latents = Latents{{1, 4, 1, 1}, {1, 2, 3, 4}};
  CHECK(has(message_of([&] { wire::check_submission(client::to_wire(submission).value()); }),
            "`init_image` and `init_latents` do not go together"));
  CHECK_THROWS_AS(parse_submission({"--init-image", file, "--init-latents", "x.safetensors"}),
                  cli::UsageError);
  CHECK_THROWS_AS(parse_submission({"--strength", "1.5"}), cli::UsageError);
  CHECK_THROWS_AS(parse_submission({"--strength", "0.3"}), cli::UsageError);
  CHECK_THROWS_AS(parse_submission({"--strength", "0.8"}),
                  cli::UsageError);  // the default, and yet ignored
  CHECK(has(message_of([&] {
              parse_submission({"--init-image", folder.file("empty.png", "").string()});
            }),
            "is empty"));
  CHECK_THROWS_AS(parse_submission({"--init-image", ""}), cli::UsageError);
  CHECK_THROWS_AS(parse_submission({"--lora", ""}), cli::UsageError);
  CHECK_THROWS_AS(parse_submission({"--step-cache", "teacache", "--step-cache-threshold", "0"}),
                  cli::UsageError);
  CHECK_THROWS_AS(parse_submission({"--guidance-rescale", "-1"}), cli::UsageError);
  CHECK_THROWS_AS(parse_submission({"--init-image", folder / "none.png"}), std::runtime_error);
}

TEST_CASE("a mask is read beside the picture that it is laid over") {
  const Scratch folder;
  const auto file = folder.file("a.png", kPng).string();
  auto submission = parse_submission({"--init-image", file, "--mask", file});
  CHECK(submission.request.mask_image == kPng);
  const auto wire = client::to_wire(submission).value().request;
  CHECK(wire.mask_image_bytes == kPng.size());
  CHECK(wire.mask_image_width == 1);
  CHECK(wire.mask_image_height == 1);
  CHECK(client::inputs_of(submission.request).size() == 2);
  CHECK(has(message_of([&] { parse_submission({"--mask", file}); }), "--mask needs --init-image"));
  const auto gif = folder.file("a.gif", "GIF89a").string();
  CHECK(has(message_of([&] {
              parse_submission({"--init-image", file, "--mask", gif});
            }),
            "--mask " + gif + ": mask_image is a GIF: PNG, JPEG and WebP are taken"));
  submission.request.init_image.clear();
  CHECK(has(message_of([&] { wire::check_submission(client::to_wire(submission).value()); }),
            "`mask_image` needs `init_image`"));
}

TEST_CASE("control pictures are read into the submission, with the numbers of their ControlNets") {
  const Scratch scratch;
  const auto pixel = scratch.file("a.png", kPng).string();
  const auto submission =
      parse_submission({"--control-image", pixel, "--control-image", pixel, "--controlnet",
                        scratch.path.string(), "--control-scale", "0.5", "--control-scale", "1.5",
                        "--control-from", "0.25", "--control-until", "0.5,1"});
  const auto& request = submission.request;
  CHECK(request.control_images == std::vector{kPng, kPng});
  CHECK(request.controlnets == std::vector{scratch.path.string()});
  const auto wire = client::to_wire(submission).value().request;
  CHECK(wire.control_images[1].width == 1);
  CHECK(wire.control_scale == std::vector{0.5, 1.5});
  CHECK(wire::control_value(wire.control_from, 1, 0) == 0.25);
  CHECK(wire::control_value(wire.control_until, 0, 1) == 0.5);
  auto sent = wire;
  for (const auto& input : client::inputs_of(request))
    input.fields(sent).blob = input.bytes.size();
  CHECK(sent.control_images[1].blob == kPng.size());
  const auto refused = [&](std::vector<std::string> words, bool with_picture = true) {
    if (with_picture) words.insert(words.end(), {"--control-image", pixel});
    return message_of([&] { parse_submission(std::move(words)); });
  };
  CHECK(has(refused({"--control-scale", "1"}, false), "--control-scale needs --control-image"));
  CHECK(has(refused({"--controlnet", "x/y"}, false), "--controlnet needs --control-image"));
  CHECK(has(refused({"--control-scale", "1,2"}),
            "--control-scale has 2 values, but --control-image has 1 picture"));
  CHECK(has(refused({"--control-from", "0.5", "--control-until", "0.5"}),
            "--control-from is 0.5, but --control-until is 0.5"));
  CHECK(has(refused({"--control-until", "2"}), "--control-until"));
}

TEST_CASE("pictures beside the text are read into the submission, in order, and described") {
  const std::string folder = TROUPE_SOURCE_DIR "/tests/fixtures/pictures/";
  const Scratch scratch;
  const auto pixel = scratch.file("a.png", kPng).string();
  const auto submission = parse_submission({"--image", folder + "exif6.jpg", "--image", pixel,
                                            "--last-image", pixel, "--guidance-2", "2.5"});
  REQUIRE(submission.request.images.size() == 2);
  CHECK(submission.request.images[0] == read_all(folder + "exif6.jpg"));
  CHECK(submission.request.images[1] == kPng);
  CHECK(submission.request.last_image == kPng);
  const auto wire = client::to_wire(submission).value().request;
  CHECK(wire.guidance_scale_2 == 2.5);
  CHECK(wire.images[0].width == 5);  // it lies on its side
  CHECK(wire.images[1].bytes == kPng.size());
  CHECK(wire.last_image.height == 1);
  auto sent = wire;
  for (const auto& input : client::inputs_of(submission.request))
    input.fields(sent).blob = input.bytes.size();
  CHECK(sent.images[0].blob == sent.images[0].bytes);
  CHECK(sent.images[1].blob == kPng.size());
  CHECK(sent.last_image.blob == kPng.size());
  const auto refused = [](std::vector<std::string> words) {
    return message_of([&] { parse_submission(std::move(words)); });
  };
  CHECK(has(refused({"--last-image", pixel}), "--last-image needs --image, the first frame"));
  CHECK(has(refused({"--image", pixel, "--image", pixel, "--image", pixel, "--image", pixel,
                     "--image", pixel}),
            "--image has 5: at most 4 are taken"));
  CHECK(has(refused({"--image", scratch.file("b.png", "hello").string()}),
            "images is no PNG, JPEG or WebP"));
}
