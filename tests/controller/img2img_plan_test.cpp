#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>

#include "controller/deployments/memory_room.h"
#include "controller/plan/plan.h"
#include "controller/plan/request_defaults.h"
#include "controller/plan/shape.h"
#include "controller/plan/traffic.h"
#include "controller/service/model_reader.h"
#include "models/spec/lora_spec.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

const std::string kFixtures = TROUPE_SOURCE_DIR "/tests/fixtures/";

wire::ImageRequest request_of(double strength, int steps) {
  wire::ImageRequest request;
  request.prompts = {"a cat"};
  request.init_image_bytes = 100;
  request.strength = strength;
  request.steps = steps;
  request.max_sequence_length = 0;
  return request;
}

service::ModelReading read(const std::string& folder, const std::vector<wire::Lora>& loras,
                           AllowedFolders allowed,
                           const std::vector<wire::Embedding>& embeddings = {},
                           const std::string& prompt = "") {
  boost::asio::io_context io;
  service::ModelReader reader(io, {}, std::move(allowed));
  const auto work = boost::asio::make_work_guard(io);
  service::ModelReading found;
  wire::ImageRequest request;
  request.loras = loras;
  request.embeddings = embeddings;
  request.prompts = {prompt};
  reader.read(folder, request, std::chrono::seconds(60), [&](const service::ModelReading& reading) {
    found = reading;
    io.stop();
  });
  io.run_for(std::chrono::seconds(20));
  return found;
}

}  // namespace

TEST_CASE("strength leaves out what diffusers' pipelines leave out") {
  // init = min(N · S, N), start = int(N − init); others round N · S down first.
  CHECK(plan::skipped_steps(10, 0.75, true) == 2);
  CHECK(plan::skipped_steps(10, 0.75, false) == 3);
  CHECK(plan::skipped_steps(6, 0.6, true) == 2);
  CHECK(plan::skipped_steps(6, 0.6, false) == 3);
  for (const bool flow : {true, false}) {
    CHECK(plan::skipped_steps(20, 1, flow) == 0);
    CHECK(plan::skipped_steps(20, 0, flow) == 20);
  }
}

TEST_CASE("what a request leaves to the model is filled in, by what it begins with") {
  const auto filled = [](const std::string& folder, bool picture, bool mask) {
    const auto model = spec::read_model_spec(kFixtures + folder);
    wire::ImageRequest request;
    request.prompts = {"a cat"};
    request.init_image_bytes = picture ? 100 : 0;
    request.mask_image_bytes = mask ? 100 : 0;
    const auto plan = plan::make_plan(model, request, {});
    CHECK(plan.warnings.empty());
    return std::tuple(plan.sampler_steps, plan.request.guidance_scale.value(),
                      plan.request.strength.value(), plan.request.steps);
  };
  CHECK(filled("tiny-pixart", false, false) == std::tuple(20, 4.5, 0.8, 20));
  CHECK(filled("tiny-sdxl", false, false) == std::tuple(50, 5, 0.8, 50));
  CHECK(filled("tiny-sdxl", true, false) == std::tuple(50, 5, 0.3, 15));
  CHECK(filled("tiny-sdxl", true, true) == std::tuple(50, 7.5, 0.9999, 49));
  CHECK(filled("tiny-sd3", false, false) == std::tuple(28, 7, 0.8, 28));
  CHECK(filled("tiny-sd3", true, false) == std::tuple(50, 7, 0.6, 30));
  CHECK(filled("tiny-flux", false, false) == std::tuple(28, 3.5, 0.8, 28));
}

TEST_CASE("sizes, frames and tokens that a request leaves open are those of diffusers' pipelines") {
  const auto book = nlohmann::json::parse(read_all(kFixtures + "expected/pipelines.json"));
  CHECK(book["beginnings"].size() > 40);
  for (const auto& item : book["beginnings"]) {
    CAPTURE(item.dump());
    const auto model = spec::read_model_spec(kFixtures + item["folder"].get<std::string>());
    wire::ImageRequest request;
    request.prompts = {"a"};
    request.height = item["asked"].value("height", 0);
    request.width = item["asked"].value("width", 0);
    if (item["task"] != "generation") {
      request.init_image_bytes = 100;
      request.init_image_height = 53;
      request.init_image_width = 70;
    }
    if (item["task"] == "inpainting") request.mask_image_bytes = 100;
    const auto plan = plan::make_plan(model, request, {});
    // There one of the two sizes without the other is ignored; here each counts for itself.
    const bool ignored = model.pipeline_class == "StableDiffusionPipeline" &&
                         item["task"] == "generation" && item["asked"].size() == 1;
    CHECK(plan.request.height == (ignored ? 80 : item["size"][0].get<int>()));
    CHECK(plan.request.width == item["size"][1]);
    if (item.contains("frames")) CHECK(plan.request.num_frames == item["frames"]);
    for (const auto& encoder : model.text_encoders) {
      if (!item["tokens"].contains(encoder.component)) continue;
      const auto shape = spec::output_shape(encoder, plan.request.max_sequence_length);
      if (shape.tokens > 0) CHECK(shape.tokens == item["tokens"][encoder.component]);
    }
  }
}

TEST_CASE(
    "what a request says itself is not the model's, and what it leaves open contradicts nothing") {
  const auto plan_of = [](const std::string& folder, const auto& change,
                          const wire::Parallelism& degrees = {}) {
    wire::ImageRequest request;
    request.prompts = {"a cat"};
    change(request);
    return plan::make_plan(spec::read_model_spec(kFixtures + folder), request, degrees);
  };
  const auto own = plan_of("tiny-sdxl", [](auto& request) {
    request.steps = 3;
    request.guidance_scale = 0;
    request.init_image_bytes = 100;
    request.strength = 1;
  });
  CHECK(own.sampler_steps == 3);
  CHECK(own.request.guidance_scale == 0);
  CHECK(own.skipped_steps == 0);
  CHECK_FALSE(own.guidance);
  const auto nothing = [](auto&) {};
  CHECK(plan_of("tiny-sd3", nothing, {.cfg = 2}).guidance);
  // The warm-up is longer than 20 steps, and shorter than the model's own 50.
  const auto patched = [](auto& request) {
    request.method = Method::distrifusion;
    request.num_pipeline_patch = 2;
    request.warmup_steps = 30;
  };
  CHECK(plan_of("tiny-sd15", patched).synchronous_steps == 30);
  CHECK(has(message_of([&] { plan_of("tiny-sd3", patched); }),
            "`warmup_steps` is 30, but there are only 28 steps"));
}

TEST_CASE("interim content that is to come so many times comes at even intervals") {
  const auto interval = [](const auto& change) {
    wire::ImageRequest request;
    request.prompts = {"a cat"};
    request.progress_count = 2;
    change(request);
    return plan::make_plan(spec::read_model_spec(kFixtures + "tiny-sdxl"), request, {})
        .request.progress_interval;
  };
  CHECK(interval([](auto&) {}) == 16);
  CHECK(interval([](auto& request) { request.steps = 9; }) == 3);
  CHECK(interval([](auto& request) { request.steps = 2; }) == 1);
  CHECK(interval([](auto& request) { request.init_image_bytes = 100; }) == 5);
  CHECK(interval([](auto& request) {
          request.sigmas = {6, 5, 4, 3, 2, 1, 0};
          request.sampler = "euler";
        }) == 2);
  CHECK(interval([](auto& request) { request.progress_interval = 7; }) == 7);
}

TEST_CASE("a plan computes the steps that are left, and its patches follow them") {
  const auto model = spec::read_model_spec(kFixtures + "tiny-sd3");
  auto request = request_of(0.6, 6);
  request.method = Method::pipefusion;
  request.num_pipeline_patch = 2;
  request.warmup_steps = 4;
  const auto plan = plan::make_plan(model, request, {.pp = 2});
  CHECK(plan.skipped_steps == 2);
  CHECK(plan.request.steps == 4);
  CHECK(plan.synchronous_steps == 4);
  CHECK(plan::shape_of(plan).encodes);
  request.warmup_steps = 5;
  CHECK(has(message_of([&] { plan::make_plan(model, request, {}); }), "only 4 steps"));
  CHECK(plan::make_plan(model, request_of(0.1, 6), {}).request.steps == 1);
  CHECK(has(message_of([&] { plan::make_plan(model, request_of(0, 6), {}); }), "none is left"));
  auto both = request_of(0.6, 6);
  both.init_latents_blob = 3;
  CHECK(has(message_of([&] { plan::make_plan(model, both, {}); }), "do not go together"));
  auto rescaled = request_of(1, 3);
  rescaled.guidance_rescale = 0.5;
  CHECK(has(message_of([&] { plan::make_plan(model, rescaled, {}); }),
            "StableDiffusion3Pipeline has none"));
}

TEST_CASE("a picture to begin with gives its size where the family's pipeline keeps it") {
  const auto planned = [](const std::string& folder, const auto& change) {
    const auto model = spec::read_model_spec(kFixtures + folder);
    auto request = request_of(0.6, 6);
    request.init_image_height = 53;
    request.init_image_width = 87;
    change(request);
    const auto plan = plan::make_plan(model, request, {});
    CHECK(plan.request.output_height == plan.request.height);
    return std::pair(plan.request.width, plan.request.height);
  };
  const auto as_it_is = [](auto&) {};
  const auto masked = [](auto& request) { request.mask_image_bytes = 100; };
  for (const std::string folder : {"tiny-sd15", "tiny-sdxl"}) {
    CAPTURE(folder);
    CHECK(planned(folder, as_it_is) == std::pair(80, 48));  // what is beyond a latent is left out
    CHECK(planned(folder, [](auto& request) { request.width = 64; }) == std::pair(64, 48));
    CHECK(planned(folder, masked) == std::pair(64, 64));
  }
  for (const std::string folder : {"tiny-sd3", "tiny-pixart"}) {
    CAPTURE(folder);
    const auto own = planned(folder, [](auto& request) { request.init_image_bytes = 0; });
    CHECK(planned(folder, as_it_is) == own);
    CHECK(planned(folder, masked) == own);
  }
  CHECK(has(message_of([&] {
              planned("tiny-sd15", [](auto& request) { request.init_image_height = 7; });
            }),
            "`height` is that of `init_image` where none is given, 7: this model takes 8 to"));
}

TEST_CASE(
    "PNDM calls the model more often than there are steps, and all that follows counts calls") {
  const auto model = spec::read_model_spec(kFixtures + "tiny-sd15");
  auto request = request_of(1, 20);
  request.init_image_bytes = 0;
  request.sampler = "pndm";
  auto plan = plan::make_plan(model, request, {});
  CHECK(plan.sampler_steps == 20);
  CHECK(plan.request.steps == 29);  // the folder's file is DDIM's: nothing skips the rounds
  CHECK(plan.synchronous_steps == 29);
  auto skipping = model;
  skipping.scheduler.config = R"({"skip_prk_steps": true, "steps_offset": 1})";
  plan = plan::make_plan(skipping, request, {});
  CHECK(plan.request.steps == 21);
  CHECK(plan.sampler_steps == 20);
  CHECK(plan.skipped_steps == 0);
  request.init_image_bytes = 100;
  request.strength = 0.75;
  plan = plan::make_plan(skipping, request, {});
  CHECK(plan.skipped_steps == 5);
  CHECK(plan.request.steps == 16);
  CHECK(has(plan::to_text(plan), "steps 20, calls of the model 16, the last of 21"));
  request.steps = 3;
  CHECK(has(message_of([&] { plan::make_plan(model, request, {}); }), "ask for 4 or more"));
  request.steps = 1;
  request.strength = 1;
  CHECK(plan::make_plan(skipping, request, {}).request.steps == 1);
  request.sampler = "ddim";
  request.steps = 9;
  CHECK(plan::make_plan(skipping, request, {}).request.steps == 9);
}

TEST_CASE("a picture to begin with is in the memory of the actor that encodes it") {
  const auto model = spec::read_model_spec(kFixtures + "tiny-sd3");
  auto request = request_of(0.5, 4);
  request.height = request.width = 192;
  const auto with = plan::make_plan(model, request, {.pp = 2}).memory;
  request.init_image_bytes = 0;
  const auto without = plan::make_plan(model, request, {.pp = 2}).memory;
  CHECK(with[0].text == without[0].text);
  CHECK(with[0].picture == 0);
  CHECK(without[1].picture == 0);
  // Three maps of its first level, and its weights.
  const std::uint64_t map = 192 * 192 * 4 * model.vae.block_out_channels.front();
  const std::uint64_t floats = 192 * 192 * 3 * 4;
  CHECK(with[1].picture > 3 * map + floats);
  CHECK(with[1].peak() >= with[1].weights + with[1].picture);
  request = request_of(0.5, 4);
  request.height = request.width = 96;
  const auto smaller = plan::make_plan(model, request, {.pp = 2}).memory;
  CHECK(with[1].picture - smaller[1].picture == (3 * map + floats) * 3 / 4);
}

TEST_CASE(
    "a picture to begin with counts as it is when it is decoded, and what is too large is named") {
  const auto model = spec::read_model_spec(kFixtures + "tiny-sd3");
  auto request = request_of(0.5, 4);
  request.height = request.width = 192;
  request.init_image_bytes = 780'000;
  request.init_image_height = request.init_image_width = 8192;
  const auto plan = plan::make_plan(model, request, {});
  const auto& own = plan.memory[0];
  const std::uint64_t pixels = 8192 * 8192;
  CHECK(own.picture == 780'000 + 12 * pixels + 3 * 192 * (8192 + 192));
  CHECK(own.peak() == own.weights + own.picture);
  CHECK(has(plan::to_text(plan), "picture to begin with: 810.9 MB"));
  const cluster::Shortage lack{.rank = 0, .needs = own.peak(), .limit = 200'000'000};
  CHECK(has(cluster::too_large(plan, lack, "actor 0"), "picture to begin with 810.9 MB"));
  wire::JobSpec job;
  job.request = request;
  const auto fits = [&](const plan::Plan& other) { return other.memory[0].peak() < 200'000'000; };
  CHECK(cluster::memory_remedy(model, job, 4, fits, {}, {}, {})
            .starts_with("an --init-image of 192 x 192 in place of 8192 x 8192 needs "));
  request.mask_image_bytes = 1000;
  request.mask_image_height = request.mask_image_width = 100;
  CHECK(plan::make_plan(model, request, {}).memory[0].picture == own.picture + 1000);
  std::swap(request.mask_image_height, request.init_image_height);
  std::swap(request.mask_image_width, request.init_image_width);
  job.request = request;
  CHECK(plan::make_plan(model, request, {}).memory[0].picture == own.picture - 780'000 + 1000);
  CHECK(cluster::memory_remedy(model, job, 4, fits, {}, {}, {})
            .starts_with("a --mask of 192 x 192 in place of 8192 x 8192 needs "));
  request.mask_image_width = 8193;
  CHECK(has(message_of([&] { plan::make_plan(model, request, {}); }),
            "`mask_image` has 8193 x 8192 pixels: at most 67108864"));
  request.init_image_bytes = 0;
  CHECK(has(message_of([&] { plan::make_plan(model, request, {}); }),
            "`mask_image` needs `init_image`, the picture that it is laid over"));
  request = job.request = plan.request;
  request.init_image_height = 8193;
  CHECK(has(message_of([&] { plan::make_plan(model, request, {}); }),
            "`init_image` has 8192 x 8193 pixels: at most 67108864"));
  request.init_image_height = request.init_image_width = -1;
  CHECK(has(message_of([&] { plan::make_plan(model, request, {}); }),
            "`init_image` has -1 x -1 pixels"));
  request.init_image_height = 0;
  request.init_image_width = std::numeric_limits<std::int32_t>::min();
  CHECK(has(message_of([&] { plan::make_plan(model, request, {}); }),
            "`init_image` has -2147483648 x 0 pixels"));
}

TEST_CASE("an encoder of other shapes than its config's is refused where a picture needs it") {
  auto model = spec::read_model_spec(kFixtures + "tiny-sd15");
  model.vae.in_channels = 5;
  auto request = request_of(0.5, 4);
  const auto why = message_of([&] { plan::make_plan(model, request, {}); });
  CHECK(why.starts_with("[plan] `init_image` is given, but [check_weights] "));
  CHECK(has(why, ": tensor \"encoder.conv_in.weight\" has shape ["));
  CHECK(has(why, "the config calls for ["));
  request.init_image_bytes = 0;
  CHECK(plan::make_plan(model, request, {}).skipped_steps == 0);
}

TEST_CASE("tiles that overlap in parts of latent pixels are refused") {
  auto model = spec::read_model_spec(kFixtures + "tiny-sd15");
  auto request = request_of(0.5, 4);
  request.vae_tiling = true;
  const auto unit = 4 * model.vae.scale_factor();
  model.vae.sample_size = 2 * unit;
  CHECK(plan::make_plan(model, request, {}).request.vae_tiling);
  ++model.vae.sample_size;
  const auto why = message_of([&] { plan::make_plan(model, request, {}); });
  CHECK(has(why, "[plan] `vae_tiling` is on, but sample_size in "));
  CHECK(has(why, "vae/config.json is " + std::to_string(2 * unit + 1) +
                     ": tiles need a multiple of " + std::to_string(unit)));
}

TEST_CASE("those who encode a picture together have their rows of it, and the encoder, each") {
  const auto model = spec::read_model_spec(kFixtures + "tiny-sd3");
  auto request = request_of(0.5, 4);
  request.height = request.width = 192;  // 24 rows of latents
  const auto one = plan::make_plan(model, request, {.pp = 4}).memory;
  const auto three = plan::make_plan(model, request, {.pp = 4, .vae = 3}).memory;
  const std::uint64_t map = 192 * 192 * 4 * model.vae.block_out_channels.front();
  CHECK(one[3].picture - three[3].picture == 3 * (map - map / 3));
  CHECK(three[1].picture == three[3].picture);
  CHECK(three[2].picture == three[3].picture);
  CHECK(one[1].picture == 0);
  CHECK(one[2].picture == 0);
  request.vae_tiling = true;
  const auto tiled = plan::make_plan(model, request, {.pp = 4, .vae = 3}).memory;
  // Of a tile the encoder takes less than the resizing did.
  const std::uint64_t pixels = 192 * 192 * 3;
  CHECK(tiled[3].picture == 100 + pixels + 3 * pixels * sizeof(float));
  CHECK(three[3].picture > tiled[3].picture);
}

TEST_CASE("where latents are what is asked for, nobody keeps a decoder, but for previews") {
  const auto model = spec::read_model_spec(kFixtures + "tiny-sd3");
  auto request = request_of(0.5, 4);
  const auto pictures = plan::make_plan(model, request, {.pp = 2}).memory;
  request.output_type = OutputType::latent;
  const auto latents = plan::make_plan(model, request, {.pp = 2}).memory;
  CHECK(pictures[1].vae > 0);
  CHECK(latents[1].vae == 0);
  CHECK(latents[1].decoder == 0);
  CHECK(latents[1].picture == pictures[1].picture);
  request.progress_interval = 1;
  request.progress_content = ProgressContent::latents;
  CHECK(plan::make_plan(model, request, {.pp = 2}).memory[1].vae == 0);
  request.progress_content = ProgressContent::preview;
  const auto previews = plan::make_plan(model, request, {.pp = 2}).memory;
  CHECK(previews[1].decoder == pictures[1].decoder);
  CHECK(previews[1].vae < pictures[1].vae);
  // Its picture is encoded by both; without one there is nothing to share.
  CHECK_NOTHROW(plan::make_plan(model, request, {.pp = 2, .vae = 2}));
  request.init_image_bytes = 0;
  CHECK_THROWS_WITH_AS(plan::make_plan(model, request, {.pp = 2, .vae = 2}),
                       "[plan] `vae` is 2, but with `output_type` latent nothing is decoded",
                       std::invalid_argument);
}

TEST_CASE("LoRAs are held against the model, in allowed folders alone, and have fingerprints") {
  const std::string model = kFixtures + "tiny-flux", file = kFixtures + "lora/flux.safetensors";
  const auto reading = read(model, {{file, 0.5}}, {});
  REQUIRE(reading.model);
  REQUIRE(reading.loras.size() == 1);
  CHECK(reading.loras[0].scale == 0.5);
  CHECK(reading.lora_fingerprints.at(0) != 0);
  CHECK(has(read(model, {{file, 1}, {kFixtures + "lora/sd3.safetensors", 1}}, {}).error,
            "sd3.safetensors: tensor \""));

  const Scratch folder;
  const auto copy = folder / "x.safetensors";
  std::filesystem::copy_file(file, copy);
  const AllowedFolders own({kFixtures + "tiny-flux"});
  CHECK(read(model, {}, own).model);
  for (const auto& path : {copy, folder / "none.safetensors", std::string("flux.safetensors")}) {
    const auto refused = read(model, {{path, 1}}, own);
    CHECK(!refused.model);
    CHECK(has(refused.error, "may not be named here"));
  }
  const auto first = read(model, {{copy, 1}}, {}).lora_fingerprints;
  std::filesystem::remove(copy);
  std::filesystem::copy_file(kFixtures + "lora/flux_kohya.safetensors", copy);
  const auto replaced = read(model, {{copy, 1}}, {}).lora_fingerprints;
  CHECK(replaced != first);
  folder.file("adapter_config.json", "{}");
  CHECK(read(model, {{copy, 1}}, {}).lora_fingerprints != replaced);
}

TEST_CASE("embeddings are held against the model, in allowed folders alone, by what they hold") {
  const std::string model = kFixtures + "tiny-sd15",
                    file = kFixtures + "embeddings/shiny.safetensors";
  const auto reading = read(model, {}, {}, {{file, ""}, {file, "<two>"}});
  REQUIRE(reading.model);
  REQUIRE(reading.embeddings.size() == 2);
  CHECK(reading.embeddings[0].token == "shiny");
  CHECK(reading.embeddings[1].token == "<two>");
  CHECK(reading.embeddings[0].fingerprint != 0);
  CHECK(reading.embeddings[0].fingerprint == reading.embeddings[1].fingerprint);
  CHECK(has(read(model, {}, {}, {{file, ""}, {file, ""}}).error, "the word \"shiny\" is one of"));

  // A word of three vectors becomes three words. It has two bytes.
  const auto words = [](int count) {
    std::string text;
    for (int i = 0; i < count; ++i)
      text += "ж ";
    return text;
  };
  const auto cat = kFixtures + "embeddings/cat.safetensors";
  CHECK(read(model, {}, {}, {{cat, "ж"}}, words(2500)).model);
  const auto many = read(model, {}, {}, {{cat, "ж"}}, words(5300));
  CHECK(!many.model);
  CHECK(many.field == wire::JobField::prompts);
  CHECK(has(many.error,
            "with all vectors of its learned words a prompt has more than 65536 bytes: "
            "write " +
                spec::in_quotes("ж") + " less often"));

  const Scratch folder;
  const auto copy = folder / "x.safetensors";
  std::filesystem::copy_file(file, copy);
  const AllowedFolders own({model});
  for (const auto& path : {copy, folder / "none.safetensors", std::string("shiny.safetensors")})
    CHECK(has(read(model, {}, own, {{path, ""}}).error, "may not be named here"));
  const auto first = read(model, {}, {}, {{copy, ""}}).embeddings.at(0);
  CHECK(first.path == copy);
  CHECK(first.fingerprint == reading.embeddings[0].fingerprint);
  std::filesystem::remove(copy);
  std::filesystem::copy_file(kFixtures + "embeddings/cat.safetensors", copy);
  CHECK(read(model, {}, {}, {{copy, "shiny"}}).embeddings.at(0).fingerprint != first.fingerprint);
}

TEST_CASE("a model whose files are links out of the allowed folders is refused by the link") {
  const Scratch allowed;
  const auto model = allowed.path / "tiny-flux";
  std::filesystem::copy(kFixtures + "tiny-flux", model, std::filesystem::copy_options::recursive);
  const AllowedFolders own({allowed.path.string()});
  CHECK(read(model.string(), {}, own).model);
  std::filesystem::remove(model / "vae/config.json");
  std::filesystem::create_symlink(kFixtures + "tiny-flux/vae/config.json",
                                  model / "vae/config.json");
  CHECK(has(read(model.string(), {}, own).error,
            "vae/config.json: is a link out of the folders that may be named here"));
  CHECK(read(model.string(), {}, AllowedFolders({model.string()})).model);
}

TEST_CASE("a LoRA that is a link in an allowed folder keeps what lies beside it") {
  const Scratch allowed, elsewhere;
  std::filesystem::create_directories(allowed.path / "blobs");
  std::filesystem::copy_file(kFixtures + "lora/flux.safetensors", allowed / "blobs/f00");
  std::filesystem::copy_file(kFixtures + "lora/flux.safetensors", elsewhere / "f00");
  std::filesystem::create_directories(allowed.path / "peft");
  std::filesystem::create_symlink("../blobs/f00", allowed.path / "peft/a.safetensors");
  std::filesystem::create_symlink(elsewhere / "f00", allowed.path / "peft/b.safetensors");
  const AllowedFolders own({kFixtures + "tiny-flux", allowed.path.string()});
  const auto reading = read(kFixtures + "tiny-flux", {{allowed / "peft/a.safetensors", 1}}, own);
  REQUIRE(reading.model);
  CHECK(reading.loras.at(0).path == allowed / "peft/a.safetensors");
  CHECK(has(read(kFixtures + "tiny-flux", {{allowed / "peft/b.safetensors", 1}}, own).error,
            "may not be named here"));
}

TEST_CASE("pictures beside the text are refused by name where a model takes none") {
  const auto model = spec::read_model_spec(kFixtures + "tiny-sdxl");
  const auto refused = [](const spec::ModelSpec& of, const auto& change) {
    wire::ImageRequest request;
    request.prompts = {"a cat"};
    change(request);
    return message_of([&] { plan::make_plan(of, request, {}); });
  };
  const wire::SentPicture picture{.blob = 7, .bytes = 100, .height = 64, .width = 64};
  CHECK(refused(model, [&](auto& of) { of.images = {picture}; }) ==
        "[plan] `images` has pictures, but StableDiffusionXLPipeline edits none: `init_image` is "
        "what "
        "it begins from");
  CHECK(refused(model, [&](auto& of) {
          of.images = {picture}, of.last_image = picture;
        }).starts_with("[plan] `images` has pictures"));
  CHECK(refused(model, [&](auto& of) { of.guidance_scale_2 = 3; }) ==
        "[plan] `guidance_scale_2` is 3, but StableDiffusionXLPipeline has no second transformer: "
        "`guidance_scale` is for all steps");
  CHECK(refused(spec::read_model_spec(kFixtures + "tiny-wan"), [&](auto& of) {
          of.images = {picture};
        }) == "[plan] `images` has pictures, but WanPipeline takes a text alone");
  auto editing = model;
  editing.inputs = {.images = spec::PictureRole::edited, .most_images = 1, .needs_images = true};
  CHECK(refused(editing, [](auto&) {}) ==
        "[plan] `images` is missing: StableDiffusionXLPipeline edits a picture");
  CHECK(refused(editing, [&](auto& of) {
          of.images = {picture, picture};
        }) == "[plan] `images` has 2: StableDiffusionXLPipeline takes 1 at most");
}

TEST_CASE("control pictures are as many as the model takes") {
  auto model = spec::read_model_spec(kFixtures + "tiny-flux");
  const auto refused = [&](int pictures, const std::vector<std::string>& nets = {}) {
    wire::ImageRequest request;
    request.prompts = {"a cat"};
    request.control_images.assign(pictures, {.blob = 7, .bytes = 100, .height = 64, .width = 64});
    request.controlnets = nets;
    return message_of([&] { plan::make_plan(model, request, {}); });
  };
  CHECK(refused(1) == "[plan] `control_images` has 1 picture, but FluxPipeline takes none");
  CHECK(refused(1, {"/nets/canny"}) ==
        "[plan] `controlnets` names /nets/canny, but FluxPipeline takes no ControlNets");
  model.inputs.control_images = 1;
  CHECK(refused(1) == "");
  CHECK(refused(0) == "[plan] `control_images` is missing: FluxPipeline needs 1 picture");
  CHECK(refused(2) == "[plan] `control_images` has 2, but FluxPipeline takes 1");
  wire::ImageRequest request;
  request.images = {{.blob = 7, .bytes = 100}};
  request.images_as_taken = true;
  plan::settle_images(request, model);
  CHECK(request.control_images.size() == 1);
  CHECK(request.images.empty());
}

TEST_CASE("what diffusers' pipelines call image is what the model takes") {
  auto model = spec::read_model_spec(kFixtures + "tiny-sdxl");
  wire::ImageRequest request;
  request.images = {{.blob = 7, .bytes = 100, .height = 48, .width = 64}};
  request.images_as_taken = true;
  auto begun = request;
  plan::settle_images(begun, model);
  CHECK(begun.images.empty());
  CHECK_FALSE(begun.images_as_taken);
  CHECK(begun.init_image_blob == 7);
  CHECK(begun.init_image_bytes == 100);
  CHECK(begun.init_image_height == 48);
  CHECK(begun.init_image_width == 64);
  auto several = request;
  several.images.push_back(several.images.front());
  CHECK(message_of([&] { plan::settle_images(several, model); }) ==
        "[plan] `images` has 2, but StableDiffusionXLPipeline begins with one picture");
  model.inputs.images = spec::PictureRole::edited;
  plan::settle_images(request, model);
  CHECK(request.images.size() == 1);
  CHECK(request.init_image_bytes == 0);
  request.images_as_taken = true;
  request.strength = 0.75;
  CHECK(message_of([&] { plan::settle_images(request, model); }) ==
        "[plan] `strength` is 0.75: with `images` this model computes all steps, as at 1");
  request.images_as_taken = true;
  request.strength = 1;
  plan::settle_images(request, model);
  CHECK_FALSE(request.strength);
}

TEST_CASE("pictures to edit are brought to the sizes that diffusers' pipelines encode them in") {
  auto model = spec::read_model_spec(kFixtures + "tiny-flux");
  model.inputs = {.images = spec::PictureRole::edited, .most_images = 4};
  const auto check = [&](spec::PixelSize picture, spec::PixelSize resized, spec::PixelSize cut) {
    const auto size = spec::edited_size(model, picture);
    CHECK(size.resized == resized);
    CHECK(size.cut == cut);
  };
  check({80, 70}, {80, 70}, {80, 64});
  check({1024, 1024}, {1024, 1024}, {1024, 1024});
  check({1000, 1200}, {934, 1121}, {928, 1120});
  check({0, 0}, {0, 0}, {0, 0});
  model.inputs.edited = spec::EditedFit::trained;
  check({80, 70}, {1104, 944}, {1104, 944});
  check({64, 200}, {672, 1568}, {672, 1568});
  check({1000, 1000}, {1024, 1024}, {1024, 1024});
}

TEST_CASE("pictures to edit decide the size where none is given, and count in plans") {
  auto model = spec::read_model_spec(kFixtures + "tiny-flux");
  model.from_text_alone = true;
  model.inputs = {.images = spec::PictureRole::edited,
                  .most_images = 4,
                  .sized_by = spec::EditedSides::first,
                  .least_side = 64,
                  .most_ratio = 8};
  const auto plan_of = [&](std::vector<wire::SentPicture> images, int side = 0) {
    wire::ImageRequest request;
    request.prompts = {"a cat"};
    request.height = request.width = side;
    request.images = std::move(images);
    return plan::make_plan(model, request, {.ulysses = 2});
  };
  const wire::SentPicture first{.blob = 7, .bytes = 100, .height = 80, .width = 70};
  const wire::SentPicture second{.blob = 8, .bytes = 100, .height = 128, .width = 128};
  const auto sized = plan_of({first, second});
  CHECK(sized.request.height == 80);
  CHECK(sized.request.width == 64);
  const auto plain = plan_of({}, 64), one = plan_of({first}, 64),
             two = plan_of({first, second}, 64);
  const auto shape = [&](const plan::Plan& of) { return plan::shape_of(model, of.request); };
  CHECK(shape(one).text_tokens == shape(plain).text_tokens + 20);
  CHECK(shape(two).text_tokens == shape(plain).text_tokens + 84);
  CHECK(shape(two).edited_pixels == std::vector<double>{80, 256});
  CHECK(plan::predict_traffic(two, model)[0].total() >
        plan::predict_traffic(one, model)[0].total());
  CHECK(two.memory[0].activations > one.memory[0].activations);
  CHECK(plain.memory[0].picture == 0);
  CHECK(two.memory[0].picture > one.memory[0].picture);
  const auto refused = [&](std::int32_t height, std::int32_t width) {
    return message_of([&] {
      plan_of({first, {.blob = 7, .bytes = 100, .height = height, .width = width}}, 64);
    });
  };
  CHECK(refused(63, 100) ==
        "[plan] `images` number 2 has 100 x 63 pixels, but FluxPipeline takes at least 64 a side");
  CHECK(refused(600, 70) ==
        "[plan] `images` number 2 has 70 x 600 pixels, but FluxPipeline takes a "
        "side at most 8 times as long as the other");
}
