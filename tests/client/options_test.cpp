#include <filesystem>
#include <fstream>

#include "base/text.h"
#include "client/cli/actor_options.h"
#include "client/cli/files.h"
#include "client/cli/request_options.h"
#include "client/cli/terminal.h"
#include "client/cli/verb.h"
#include "client/convert.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"
#include "transport/wire/codec.h"

using namespace troupe;
using namespace troupe::cli;
using testing::message_of;

namespace {

RequestOptions parse(std::vector<std::string> arguments) {
  Options app;
  RequestOptions options;
  add_request_options(app, options);
  add_degree_options(app, options);
  app.parse(std::move(arguments));
  REQUIRE(app.remaining().empty());
  settle(options);
  options.model_option = options.steps_option = nullptr;  // they go with the command line
  return options;
}

}  // namespace

TEST_CASE("the request options fill the request") {
  const auto options = parse({"--model",
                              "/m",
                              "--prompt",
                              "a, b",
                              "--prompt",
                              "-c",
                              "--negative-prompt",
                              "ugly",
                              "--n",
                              "3",
                              "--height",
                              "64",
                              "--width",
                              "96",
                              "--steps",
                              "7",
                              "--guidance",
                              "2.5",
                              "--seed",
                              "18446744073709551615",
                              "--sampler",
                              "ddim",
                              "--dp",
                              "2",
                              "--cfg",
                              "2",
                              "--pp",
                              "3",
                              "--patches",
                              "4",
                              "--warmup",
                              "0",
                              "--dtype",
                              "bf16",
                              "--noise-dtype",
                              "model",
                              "--max-sequence-length",
                              "77",
                              "--clean-caption"});
  const ImageRequest& request = options.request;
  CHECK(options.model == "/m");
  CHECK(request.prompts == std::vector<std::string>{"a, b", "-c"});
  CHECK(request.negative_prompt == "ugly");
  CHECK(request.images_per_prompt == 3);
  CHECK(picture_count(options) == 6);
  CHECK(request.height == 64);
  CHECK(request.width == 96);
  CHECK(request.steps == 7);
  CHECK(request.guidance_scale == 2.5);
  CHECK(request.seed == 18446744073709551615u);
  CHECK(request.sampler == "ddim");
  CHECK(request.num_pipeline_patch == 4);
  CHECK(request.warmup_steps == 0);
  CHECK(request.dtype == "bfloat16");
  CHECK(request.noise_dtype == "model");
  CHECK(request.max_sequence_length == 77);
  CHECK(request.clean_caption);
  CHECK_FALSE(request.resolution_binning);
  CHECK(options.parallelism.dp == 2);
  CHECK(options.parallelism.cfg == 2);
  CHECK(options.parallelism.pp == 3);
}

TEST_CASE("more than one patch means pipefusion, unless that is denied") {
  CHECK(parse({}).request.method == "exact");
  CHECK(parse({"--pp", "4"}).request.method == "exact");
  CHECK(parse({"--patches", "4"}).request.method == "pipefusion");
  CHECK(parse({"--method", "pipefusion"}).request.method == "pipefusion");
  CHECK_THROWS_AS(parse({"--method", "exact", "--patches", "4"}), UsageError);
}

TEST_CASE("options that contradict each other or make no sense are refused by name") {
  CHECK(message_of([] {
          parse({"--cfg", "2", "--guidance", "0"});
        }).find("--cfg is 2") != std::string::npos);
  CHECK(message_of([] { parse({"--guidance", "nan"}); }) == "--guidance: \"nan\" is not a number");
  CHECK_NOTHROW(parse({"--pp", "2", "--stages", "2, 3"}));
  CHECK_NOTHROW(parse({"--cfg", "2"}));
  for (const auto& bad : std::vector<std::vector<std::string>>{{"--steps", "0"},
                                                               {"--steps", "abc"},
                                                               {"--cfg", "3"},
                                                               {"--pp", "0"},
                                                               {"--dp", "-1"},
                                                               {"--patches", "0"},
                                                               {"--warmup", "-1"},
                                                               {"--seed", "-1"},
                                                               {"--seed", "18446744073709551616"},
                                                               {"--n", "0"},
                                                               {"--height", "0"},
                                                               {"--method", "magic"},
                                                               {"--dtype", "float8"}}) {
    CHECK_MESSAGE(message_of([&] { parse(bad); }).find(bad[0]) != std::string::npos, bad[0], " ",
                  bad[1]);
  }
}

TEST_CASE("an empty prompt is a prompt") {
  CHECK(parse({"--prompt", ""}).request.prompts == std::vector<std::string>{""});
}

TEST_CASE("initial latents are read into the submission; a model's folder becomes absolute") {
  const testing::Scratch scratch;
  write_file(scratch / "l.safetensors", latents_file_bytes({{1, 1, 1, 2}, {3, 4}}));
  auto options = parse(
      {"--prompt", "x", "--model", "some/../folder", "--init-latents", scratch / "l.safetensors"});
  const Submission submission = make_submission(options);
  REQUIRE(submission.request.init_latents);
  CHECK(submission.request.init_latents->data == std::vector<float>{3, 4});
  CHECK(submission.model == (std::filesystem::current_path() / "folder").string());
}

TEST_CASE("lists: an empty place is refused by its number, and given twice a list goes on") {
  const auto wrong = [](const std::string& option, const std::string& list) {
    return message_of([&] { parse({"--prompt", "x", option, list}); });
  };
  CHECK(wrong("--timesteps", "900,,3") == "--timesteps: place 2 of the list \"900,,3\" is empty");
  CHECK(wrong("--sigmas", "3, ") == "--sigmas: place 2 of the list \"3, \" is empty");
  CHECK(wrong("--refill-steps", ",3") == "--refill-steps: place 1 of the list \",3\" is empty");
  CHECK(wrong("--stages", "") == "--stages: place 1 of the list \"\" is empty");
  CHECK(wrong("--stages", "2,x") == "--stages: \"x\" is not a number");
  CHECK(wrong("--stages", "2,0") ==
        "--stages: 0 is out of bounds: a whole number from 1 to 1048576 is needed");
  const auto twice = parse({"--pp", "3", "--stages", "2,+3", "--stages", " 4"});
  CHECK(twice.parallelism.stages == std::vector<int>{2, 3, 4});
}

TEST_CASE("settings of single pictures: once is everybody's, else one each") {
  const auto once = parse({"--prompt", "a", "--prompt", "b", "--seed", "7", "--negative-prompt",
                           "c", "--timesteps", "900, 20.5,3"});
  CHECK(once.request.seed == 7);
  CHECK(once.request.picture_seeds.empty());
  CHECK(once.request.negative_prompt == "c");
  CHECK(once.request.negative_prompts.empty());
  CHECK(once.request.timesteps == std::vector<double>{900, 20.5, 3});
  CHECK(once.request.steps == 3);
  const auto each = parse({"--prompt", "a", "--prompt", "b", "--n", "2", "--seed", "7", "--seed",
                           "8", "--seed", "9", "--seed", "18446744073709551615",
                           "--negative-prompt", "", "--negative-prompt", "c"});
  CHECK(each.request.picture_seeds == std::vector<std::uint64_t>{7, 8, 9, 18446744073709551615u});
  CHECK(each.request.negative_prompts == std::vector<std::string>{"", "c"});
  CHECK_FALSE(each.request.negative_prompt);
  CHECK_FALSE(parse({"--prompt", "a"}).request.negative_prompt);
  CHECK(parse({"--prompt", "a", "--negative-prompt", ""}).request.negative_prompt == "");
}

TEST_CASE("prompt embeds of any type are read as float32, and stand for prompts") {
  const testing::Scratch scratch;
  const std::string header =
      R"({"prompt_embeds":{"dtype":"F16","shape":[2,1,2],"data_offsets":[0,8]},)"
      R"("negative_prompt_embeds":{"dtype":"BF16","shape":[2,1,2],"data_offsets":[8,16]},)"
      R"("prompt_attention_mask":{"dtype":"I64","shape":[2,1],"data_offsets":[16,32]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  bytes[1] = static_cast<char>(header.size() >> 8);
  bytes += header;
  // 1, -2.5, 2^-24, 65504; 1, -2.5, 0, 3e38
  for (const int half : {0x3c00, 0xc100, 0x0001, 0x7bff, 0x3f80, 0xc020, 0x0000, 0x7f62})
    bytes += {static_cast<char>(half), static_cast<char>(half >> 8)};
  for (const char one : {1, 0})
    bytes += std::string{one} + std::string(7, '\0');
  write_file(scratch / "e.safetensors", bytes);
  RequestOptions options;
  options.prompt_embeds_path = scratch / "e.safetensors";
  take_prompts(options, "run");
  CHECK(options.request.prompts.size() == 2);
  auto& embeds = options.request.prompt_embeds;
  CHECK(embeds["prompt_embeds"].data == std::vector<float>{1, -2.5F, 0x1p-24F, 65504});
  CHECK(embeds["negative_prompt_embeds"].data == std::vector<float>{1, -2.5F, 0, 0x1.c4p127F});
  CHECK(embeds["prompt_attention_mask"].data == std::vector<float>{1, 0});
  CHECK(embeds["prompt_attention_mask"].shape == std::vector<std::int64_t>{2, 1});

  options.request.prompts = {"a"};
  CHECK(message_of([&] { take_prompts(options, "run"); }) ==
        "--prompt and --prompt-embeds do not go together");
  options.request.prompts.clear();
  options.prompt_embeds_path.clear();
  CHECK(message_of([&] { take_prompts(options, "run"); }) ==
        "run needs --prompt or --prompt-embeds");
  options.bare_words = {""};
  take_prompts(options, "run");
  CHECK(options.request.prompts == std::vector<std::string>{""});
  options.request.prompts.clear();
  options.bare_words = {"sdxl", "a lighthouse"};
  take_prompts(options, "run");
  CHECK(options.model == "sdxl");
  CHECK(options.request.prompts == std::vector<std::string>{"a lighthouse"});
}

TEST_CASE("endpoints as people write them") {
  CHECK(checked_endpoint("ipc:///a/b") == "ipc:///a/b");
  CHECK(checked_endpoint("tcp://h:1") == "tcp://h:1");
  CHECK(checked_endpoint("127.0.0.1:7400") == "tcp://127.0.0.1:7400");
  CHECK(checked_endpoint("") == client::default_endpoint());
  CHECK_THROWS_AS(checked_endpoint("http://x"), UsageError);
  CHECK_THROWS_AS(checked_endpoint("somewhere"), UsageError);
  CHECK_THROWS_AS(checked_endpoint("ipc://"), UsageError);
}

TEST_CASE("tables line up, also with letters of several bytes") {
  CHECK(table({"A", "LONG"}, {{"é", "x"}, {"bcd", ""}}) == "A    LONG\né    x\nbcd\n");
  CHECK(shorten("one\ntwo", 20) == "one two");
  CHECK(shorten("ééééé", 3) == "éé…");
  CHECK(bytes_cell(0) == "-");
  CHECK(bytes_cell(812'000'000) == "812 MB");
  CHECK(bytes_cell(1'400'000'000) == "1.4 GB");
  CHECK(duration_text(3.21) == "3.2 s");
  CHECK(duration_text(125) == "2 min 5 s");
  CHECK(duration_text(3720) == "1 h 2 min");
}

TEST_CASE("a step cache goes from the options to the wire, and a threshold needs one") {
  const auto options = parse({"--step-cache", "teacache", "--step-cache-threshold", "0.3"});
  const auto wire = client::to_wire(make_submission(options)).value();
  CHECK(wire.request.step_cache == StepCacheRule::teacache);
  CHECK(wire.request.step_cache_threshold == 0.3);
  CHECK(client::to_wire(make_submission(parse({}))).value().request.step_cache ==
        StepCacheRule::none);
  CHECK(testing::has(message_of([] {
                       parse({"--step-cache-threshold", "0.3"});
                     }),
                     "needs --step-cache"));
  CHECK_THROWS_AS(parse({"--step-cache", "second-block"}), UsageError);
  CHECK_THROWS_AS(parse({"--step-cache", "teacache", "--step-cache-threshold", "-1"}), UsageError);
}

TEST_CASE("a U-Net's choices go from the options to the wire, and no further than their names") {
  auto options = parse({"--model", "/m", "--prompt", "a", "--method", "distrifusion", "--patches",
                        "4", "--group-norm", "separate", "--exchange", "none"});
  auto request = client::to_wire(make_submission(options)).value().request;
  CHECK(request.group_norm == GroupNormMoments::separate);
  CHECK(request.exchange == PatchExchange::none);
  request =
      client::to_wire(make_submission(parse({"--model", "/m", "--prompt", "a"}))).value().request;
  CHECK(request.group_norm == GroupNormMoments::corrected);
  CHECK(request.exchange == PatchExchange::stale);
  CHECK_THROWS(parse({"--model", "/m", "--prompt", "a", "--group-norm", "none"}));
  CHECK_THROWS(parse({"--model", "/m", "--prompt", "a", "--exchange", "some"}));
}

TEST_CASE("a C++ program's choices are refused with those that there are") {
  const auto why = [](std::string ImageRequest::*field) {
    Submission submission;
    submission.request.*field = "magic";
    const auto spec = client::to_wire(submission);
    REQUIRE(!spec);
    CHECK(spec.error().code == ErrorCode::bad_request);
    return spec.error().what;
  };
  CHECK(why(&ImageRequest::method) ==
        "[plan] `method` is \"magic\": exact, pipefusion or distrifusion");
  CHECK(why(&ImageRequest::kv) == "[plan] `kv` is \"magic\": stale or predict");
  CHECK(why(&ImageRequest::dtype) == "[plan] `dtype` is \"magic\": float32, bfloat16 or float16");
  CHECK(why(&ImageRequest::weight_dtype) == "[plan] `weight_dtype` is \"magic\": int8 or fp8");
  CHECK(why(&ImageRequest::noise_dtype) == "[plan] `noise_dtype` is \"magic\": float32 or model");
  CHECK(why(&ImageRequest::group_norm) ==
        "[plan] `group_norm` is \"magic\": corrected, stale, synchronous or separate");
  CHECK(why(&ImageRequest::exchange) ==
        "[plan] `exchange` is \"magic\": stale, none, all or naive");
  CHECK(why(&ImageRequest::step_cache) ==
        "[plan] `step_cache` is \"magic\": first-block or teacache");
  CHECK(why(&ImageRequest::progress_content) ==
        "[plan] `progress_content` is \"magic\": latents or preview");
}

TEST_CASE("a request that nobody touched is the same in C++ and on the wire") {
  CHECK(wire::encode(client::to_wire({}).value().request) == wire::encode(wire::ImageRequest{}));
}

TEST_CASE("a --model that is no folder: a file, or a short name mistyped") {
  const testing::Scratch scratch;
  const auto here = std::filesystem::current_path();
  CHECK(model_hint((here / "sdxll").string()) == "; did you mean sdxl?");
  for (const char* typed : {"model", "a/b/c", "../some-org/model", ".hidden/model", "an org/model"})
    CHECK(model_hint((here / typed).string()) == "");
  for (const char* name : {"model.safetensors", "model.gguf", "model.ckpt"})
    std::ofstream(scratch / name) << "x";
  for (const char* name : {"model.safetensors", "model.gguf", "model.ckpt"})
    CHECK(model_hint(scratch / name).find("docs/files.md") != std::string::npos);
  CHECK(model_hint(scratch.path.string()) == "");
}

TEST_CASE("short options, and a prompt without --prompt") {
  const auto options = parse({"-m", "/m", "-H", "64", "-W", "96", "-s", "7", "a red circle"});
  CHECK(options.model == "/m");
  CHECK(options.request.height == 64);
  CHECK(options.request.width == 96);
  CHECK(options.request.seed == 7);
  auto bare = options;
  take_prompts(bare, "run");
  CHECK(bare.request.prompts == std::vector<std::string>{"a red circle"});
  // A word too many is more likely a prompt without quotes than a second picture.
  auto both = parse({"-p", "a", "cat"});
  CHECK(message_of([&] { take_prompts(both, "run"); }) ==
        "unexpected argument \"cat\"; a prompt of several words stands in quotes");
  CHECK_NOTHROW(parse({"--timesteps", "900,500", "a cat"}));
}

TEST_CASE("--seed random picks one, another each time") {
  const auto seed = [] { return parse({"--prompt", "x", "--seed", "random"}).request.seed; };
  const auto first = seed();
  CHECK((seed() != first || seed() != first));
  CHECK(message_of([] {
          parse({"--seed", "-1"});
        }).find("; random picks one") != std::string::npos);
}

TEST_CASE("samplers go by the names of diffusers, A1111 and stable-diffusion.cpp, too") {
  for (const auto& [theirs, ours] :
       std::vector<std::pair<std::string, std::string>>{{"Euler a", "euler-ancestral"},
                                                        {"euler_a", "euler-ancestral"},
                                                        {"DPM++ 2M", "dpmsolver++"},
                                                        {"dpmpp_2m_sde", "sde-dpmsolver++"},
                                                        {"dpm++2m", "dpmsolver++"},
                                                        {"PLMS", "pndm"},
                                                        {"UniPC", "unipc"},
                                                        {"ddim", "ddim"},
                                                        {"DDIMScheduler", "DDIMScheduler"}}) {
    CHECK(parse({"--sampler", theirs}).request.sampler == ours);
  }
  CHECK(parse({"--sampler", "DPM++ 2M Karras"}).request.sampler == "dpmsolver++-karras");
  CHECK(parse({"--sampler", "euler-beta"}).request.sampler == "euler-beta");
  CHECK(message_of([] {
          parse({"--sampler", "DPM++ SDE Karras"});
        }).find("did you mean") == std::string::npos);
  CHECK_THROWS(parse({"--sampler", "DDIM Karras"}));
}
