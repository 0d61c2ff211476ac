// What the command reads from files: pictures' text, latents, keys; and endpoints as typed.
#include "client/cli/files.h"
#include "models/image/clip_file.h"
#include "models/image/clip_text.h"
#include "models/image/frames.h"
#include "models/image/png_text.h"
#include "models/spec/prompt_embeds.h"
#include "tests/fuzz/targets/all.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"
#include "transport/control/endpoint.h"
#include "transport/control/keys.h"

namespace troupe::fuzz {

void run_png(std::string_view bytes) {
  refusable([&] { models::read_png_size(bytes); });
  refusable([&] { models::read_png_text(bytes); });
  refusable([&] {
    const auto frames = models::split_frames(bytes);
    for (const auto& frame : frames)
      models::read_png_size(frame);
    if (frames.size() > 1) models::split_frames(models::join_frames(frames, {}, 16));
  });
  refusable([&] {
    const std::string slow = models::at_speed(bytes, 8);
    require(models::at_speed(slow, 8) == slow, "the same speed changes nothing");
  });
  refusable([&] {
    const models::PngText more{{"parameters", "{\"a\": 1}"}, {"other", "\xc3\xa4"}};
    const std::string with = models::add_png_text(bytes, more);
    const auto texts = models::read_png_text(with);
    require(texts.size() >= 2, "what was added is read");
  });
  // As the writer's own input: a keyword and a text.
  static const std::string picture = testing::read_all(fixtures() / "expected" / "demo_small.png");
  const std::size_t cut = std::min<std::size_t>(bytes.size(), bytes.empty() ? 0 : bytes[0] & 31);
  refusable([&] {
    const models::PngText own{{std::string(bytes.substr(0, cut)), std::string(bytes.substr(cut))}};
    const auto back = models::read_png_text(models::add_png_text(picture, own));
    require(std::find(back.begin(), back.end(), own[0]) != back.end(), "a text is read as written");
  });
}

std::vector<std::string> seeds_png() {
  const std::string picture =
      testing::read_all(fixtures() / "expected" / "demo_small.png").substr(0, 3000);
  const std::string begin("\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\1\0\0\0\1\x08\2\0\0\0\x90wS\xde",
                          33);
  const std::string end("\0\0\0\0IEND\xae\x42\x60\x82", 12);
  const std::string plain = begin + end;
  const std::string still = begin + std::string("\0\0\0\1IDATx", 9) + "\1\2\3\4" + end;
  return {picture, plain, models::join_frames({still, still, still}, {{"k", "text"}}, 16),
          models::add_png_text(plain, {{"k", "text"}, {"u", "\xc3\xa4"}})};
}

void run_clip(std::string_view bytes) {
  refusable([&] {
    const auto texts = models::read_file_text(bytes);
    std::size_t size = 0;
    for (const auto& [keyword, text] : texts)
      size += text.size();
    require(size <= models::kMostTextBytes, "texts within their bound");
    if (!models::is_video_file(bytes)) return;
    require(size <= bytes.size(), "nothing is made up");
    for (const auto& [keyword, text] : texts)
      require(keyword == "parameters" || keyword == "troupe" || keyword == "comment",
              "a keyword of ours");
  });
}

std::vector<std::string> seeds_clip() {
  const std::string picture = testing::read_all(fixtures() / "expected" / "demo_small.png");
  const std::string told = models::add_png_text(
      picture, {{"parameters", "a cat \xc3\xa4"}, {"troupe", R"({"prompt": "a cat"})"}});
  const auto as = [](const std::string& png, models::ClipFormat format) {
    return models::clip_file(png, format, 1);
  };
  return {as(told, models::ClipFormat::mp4), as(told, models::ClipFormat::webm),
          as(picture, models::ClipFormat::mp4), as(picture, models::ClipFormat::webm)};
}

void run_latents(std::string_view bytes) {
  static const testing::Scratch scratch;
  const auto file = scratch.file("l.safetensors", bytes);
  refusable([&] {
    const Latents latents = cli::read_latents(file.string());
    require(latents.shape.size() == 4, "four extents");
    std::size_t elements = 1;
    for (const auto extent : latents.shape)
      elements *= static_cast<std::size_t>(extent);
    require(elements == latents.data.size(), "as many numbers as the shape says");
  });
  refusable([&] {
    const auto embeds = spec::parse_prompt_embeds(bytes, "e.safetensors", 1 << 20, 16);
    require(embeds.prompts >= 1 && embeds.prompts <= 16, "as many prompts as are taken");
    for (const auto& [name, tensor] : embeds.tensors) {
      std::size_t elements = 1;
      for (const auto extent : tensor.shape)
        elements *= static_cast<std::size_t>(extent);
      require(elements == tensor.data.size(), "as many numbers as the shape says");
    }
  });
}

std::vector<std::string> seeds_latents() {
  const std::string header =
      R"({"prompt_embeds":{"dtype":"F16","shape":[1,2,1],"data_offsets":[0,4]}})";
  const std::string size{static_cast<char>(header.size()), 0, 0, 0, 0, 0, 0, 0};
  return {cli::latents_file_bytes({{1, 4, 2, 2}, std::vector<float>(16, 0.5f)}),
          cli::latents_file_bytes({{1, 1, 1, 1}, {1}}), size + header + "<\x3c<\x3c"};
}

void run_keys(std::string_view bytes) {
  refusable([&] {
    const auto pair = control::parse_key_file(bytes);
    require(control::key_file_text(pair).size() <= bytes.size() + 1, "nothing is made up");
  });
  refusable([&] { require(control::is_key(control::parse_public_file(bytes)), "a key"); });
  refusable([&] {
    const auto clients = control::parse_allow_list(bytes);
    require(control::parse_allow_list(control::allow_list_text(clients)) == clients,
            "a list is read as written");
  });
  refusable([&] { control::client_keys_from(bytes, "here"); });
  if (control::is_key(bytes)) require(bytes.size() == 40, "40 characters");
}

std::vector<std::string> seeds_keys() {
  const std::string key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
  const std::string other = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs";
  return {control::key_file_text({key, other}), control::public_file_text(key),
          control::allow_list_text({{"default", key}, {"laptop", other}}),
          control::to_text({key, {key, other}, ""})};
}

void run_endpoint(std::string_view bytes) {
  refusable([&] {
    const auto endpoint = control::parse_endpoint(std::string(bytes));
    if (!endpoint.ipc && endpoint.loopback()) {
      require(endpoint.host.find_first_not_of("0123456789.:[]abcdefABCDEF") == std::string::npos,
              "loopback is a number");
      require(endpoint.host.find(';') == std::string::npos, "of one address");
    }
    control::parse_endpoint(endpoint.text);
  });
}

std::vector<std::string> seeds_endpoint() {
  return {"tcp://127.0.0.1:7400", "tcp://[::1]:7400",        "tcp://localhost:1",
          "tcp://*:65535",        "ipc:///tmp/control.sock", "tcp://127.0.0.1;0.0.0.0:1"};
}

}  // namespace troupe::fuzz
