#include "web/calls.h"

#include <algorithm>

#include "client/convert.h"
#include "models/image/png_text.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"
#include "transport/wire/request_rules.h"
#include "web/api.h"
#include "web/api_error.h"
#include "web/encodings.h"
#include "web/pictures.h"

using namespace troupe;
using namespace troupe::web;
using nlohmann::json;

namespace {

/// The field that is named for a body that is wrong.
template <class Parse>
std::string wrong_field(Parse&& parse) {
  try {
    parse();
  } catch (const ApiError& error) {
    CHECK(error.status == 400);
    return error.param;
  }
  return "nothing";
}

}  // namespace

TEST_CASE("the other fields that a job is told to have are read, too") {
  const json fields = job_fields_json();
  for (const char* name : {"prompt", "model", "priority"})
    CHECK(std::ranges::count(fields, name, [](const json& field) { return field["name"]; }) == 1);
  for (const auto& field : fields) {
    const std::string name = field.at("name");
    CAPTURE(name);
    json body = {{"prompt", "a"}};
    body[name] = json::object();
    CHECK(wrong_field([&] { parse_job(body.dump()); }) == name);
    if (!field.contains("most")) continue;
    body[name] = field.at("most").get<int>() + 1;
    CHECK(wrong_field([&] { parse_job(body.dump()); }) == name);
  }
}

TEST_CASE("a file of clips of one frame is refused before it is painted") {
  for (const char* format : {"mp4", "webm"}) {
    json body = {{"prompt", "a"}, {"output_format", format}};
    parse_job(body.dump());  // whether the model makes clips, the cluster knows
    body["num_frames"] = 1;
    CHECK(wrong_field([&] { parse_job(body.dump()); }) == "output_format");
  }
}

TEST_CASE("every field of the table is taken under its own name") {
  json body = {{"prompt", "a"}};
  const json options = options_json();
  for (const auto& field : options.at("fields")) {
    const std::string name = field.at("name");
    if (field.at("type") == "boolean") {
      body[name] = true;
    } else if (field.contains("choices")) {
      body[name] = field.at("choices").back();
    } else if (field.at("type") == "integer" || field.at("type") == "number") {
      body[name] = field.at("most").is_number()
                       ? json(std::min(field.at("most").get<double>(), 1.0))
                       : json(1);
    } else if (name == "loras") {
      body[name] = {{{"path", "/l"}, {"scale", 0.5}}};
    } else if (name == "embeddings") {
      body[name] = {{{"path", "/e"}, {"token", "<cat>"}}, "/f"};
    } else if (field.at("type") == "list") {
      const bool is_share = name == "control_from" || name == "control_until";
      body[name] = field.at("items") == "string" ? json({"b", "c"})
                   : is_share                    ? json({0.25, 0.5})
                                                 : json({2, 3});
    } else {
      body[name] = "text of " + name;
    }
  }
  body.erase("strength");  // needs a picture to begin with
  for (const auto& degree : options.at("degrees"))
    body[degree.at("name").get<std::string>()] = 2;
  const auto call = parse_job(body.dump());
  const ImageRequest& request = call.submission.request;
  CHECK(request.negative_prompt == "text of negative_prompt");
  CHECK(request.method == "distrifusion");
  CHECK(request.step_cache == "teacache");
  CHECK(request.weight_dtype == "fp8");
  CHECK(request.vae_tiling);
  CHECK(request.loras.size() == 1);
  CHECK(request.loras[0].scale == 0.5);
  CHECK_FALSE(request.loras[0].of_second);
  const auto second =
      parse_job(R"({"prompt": "a", "loras": [{"path": "/l", "transformer_2": true}]})");
  CHECK(second.submission.request.loras.at(0).of_second);
  REQUIRE(request.embeddings.size() == 2);
  CHECK(request.embeddings[0].path == "/e");
  CHECK(request.embeddings[0].token == "<cat>");
  CHECK(request.embeddings[1].path == "/f");
  CHECK(request.refill_steps == std::vector<int>{2, 3});
  CHECK(request.picture_seeds == std::vector<std::uint64_t>{2, 3});
  CHECK(request.sigmas == std::vector<double>{2, 3});
  CHECK(request.control_scale == std::vector<double>{2, 3});
  CHECK(request.control_until == std::vector<double>{0.25, 0.5});
  CHECK(request.negative_prompts == std::vector<std::string>{"b", "c"});
  CHECK(call.submission.parallelism.world() == 64);
  CHECK(call.submission.parallelism.vae == 2);
  CHECK(call.submission.parallelism.stages == std::vector<int>{2, 3});
  CHECK(call.submission.detached);
  CHECK(options.at("fields").size() > 20);
}

TEST_CASE("what is left out keeps the client API's defaults") {
  const auto call = parse_job(R"({"prompt": "a", "steps": null})");
  const ImageRequest usual;
  CHECK(call.submission.request.steps == usual.steps);
  CHECK_FALSE(call.submission.request.negative_prompt);
  CHECK(parse_job(R"({"prompt": "a", "negative_prompt": ""})").submission.request.negative_prompt ==
        "");
  CHECK(call.submission.request.guidance_scale == usual.guidance_scale);
  CHECK(call.submission.request.method == usual.method);
  CHECK(
      parse_job(R"({"prompts": ["a", "b"], "num_pipeline_patch": 4})").submission.request.method ==
      "pipefusion");
  CHECK(parse_job(R"({"prompt": "a", "parallel": "auto"})").submission.parallelism.automatic);
  const auto preview = parse_job(R"({"prompt": "a", "preview_every": 3})").submission.request;
  CHECK(preview.progress_interval == 3);
  CHECK(preview.progress_content == "preview");
}

TEST_CASE("what is wrong with a job is said of its field") {
  const std::pair<const char*, const char*> kWrong[] = {
      {R"({"steps": 3})", "prompt"},
      {R"({"prompt": 3})", "prompt"},
      {R"({"prompt": []})", "prompt"},
      {R"({"prompt": "a", "prompts": ["b"]})", "prompts"},
      {R"({"prompt": "a", "steps": 0})", "steps"},
      {R"({"prompt": "a", "steps": "3"})", "steps"},
      {R"({"prompt": "a", "steps": 2.5})", "steps"},
      {R"({"prompt": "a", "steps": 1e30})", "steps"},
      {R"({"prompt": "a", "seed": -1})", "seed"},
      {R"({"prompt": "a", "seed": 18446744073709551616})", "seed"},
      {R"({"prompt": "a", "seed": 1.5})", "seed"},
      {R"({"prompt": "a", "seed": 1e19})", "seed"},
      {R"({"prompt": "a", "seed": "1"})", "seed"},
      {R"({"prompt": "a", "picture_seeds": [18446744073709551616]})", "picture_seeds"},
      {R"({"prompt": "a", "stages": [2, 0]})", "stages"},
      {R"({"prompt": "a", "stages": 2})", "stages"},
      {R"({"prompt": "a", "guidance_scale": -1})", "guidance_scale"},
      {R"({"prompt": "a", "vae_tiling": 1})", "vae_tiling"},
      {R"({"prompt": "a", "dtype": "int4"})", "dtype"},
      {R"({"prompt": "a", "sampler": "x"})", "sampler"},
      {R"({"prompt": "a", "loras": [{"scale": 1}]})", "loras"},
      {R"({"prompt": "a", "loras": [{"path": "a", "weight": 1}]})", "loras"},
      {R"({"prompt": "a", "loras": [{"path": "a", "transformer_2": 1}]})", "loras"},
      {R"({"prompt": "a", "embeddings": [{"token": "a"}]})", "embeddings"},
      {R"({"prompt": "a", "embedding": {"path": "a", "scale": 1}})", "embedding"},
      {R"({"prompt": "a", "embeddings": [{"path": "a", "token": 1}]})", "embeddings"},
      {R"({"prompt": "a", "refill_steps": [1, "2"]})", "refill_steps"},
      {R"({"prompt": "a", "cfg": 3})", "cfg"},
      {R"({"prompt": "a", "parallel": "all"})", "parallel"},
      {R"({"prompt": "a", "priority": 101})", "priority"},
      {R"({"prompt": "a", "init_image": "?"})", "init_image"},
      {R"({"prompt": "a", "images": ["?"]})", "images"},
      {R"({"prompt": "a", "image": "?"})", "image"},
      {R"({"prompt": "a", "image": ["", "", "", "", ""]})", "image"},
      {R"({"prompt": "a", "last_image": "?"})", "last_image"},
      {R"({"prompt": "a", "guidance_scale_2": -1})", "guidance_scale_2"},
      {R"({"prompt": "a", "output_format": "gif"})", "output_format"},
      {R"({"prompt": "a", "num_steps": 4})", "num_steps"},
      {R"([])", ""},
      {R"({"prompt": "a")", ""},
      {"{\"prompt\": \"\xff\"}", ""}};
  for (const auto& [body, field] : kWrong) {
    CAPTURE(body);
    CHECK(wrong_field([&] { parse_job(body); }) == field);
  }
}

TEST_CASE("a seed has 64 bits, also in the body that a picture's parameters are") {
  const auto seed = [](const json& value) {
    return parse_job(json{{"prompt", "a"}, {"seed", value}}.dump()).submission.request.seed;
  };
  CHECK(seed(0) == 0);
  CHECK(seed(std::uint64_t{1} << 63) == std::uint64_t{1} << 63);
  CHECK(seed(UINT64_MAX) == UINT64_MAX);
  Fields form(json{{"seed", "18446744073709551615"}}, {}, true);
  CHECK(form.natural("seed") == UINT64_MAX);
  for (const char* wrong : {"18446744073709551616", "-1", "1.5", "1e3", " 1"}) {
    CAPTURE(wrong);
    Fields fields(json{{"seed", wrong}}, {}, true);
    CHECK(wrong_field([&] { fields.natural("seed"); }) == "seed");
  }
  const auto plain = models::write_png(
      models::load_picture(testing::read_all(TROUPE_SOURCE_DIR "/docs/demo.png")));
  const auto png =
      models::add_png_text(plain, {{"troupe", json{{"prompt", "a"}, {"seed", UINT64_MAX}}.dump()}});
  CHECK(parse_job(parameters_of(png).dump()).submission.request.seed == UINT64_MAX);
}

TEST_CASE("OpenAI's images, with other servers' extra fields") {
  const auto parse = [](const char* body) {
    return parse_images(Fields::parse(body, other_names()), false, 77);
  };
  const auto call =
      parse(R"({"prompt": "a", "n": 3, "size": "640x384", "num_inference_steps": 9, "stream": true,
    "partial_images": 2, "quality": "auto", "user": "me", "response_format": "url", "output_format": "webp",
    "output_compression": 70, "lora": "/l.safetensors"})");
  const ImageRequest& request = call.submission.request;
  CHECK(request.images_per_prompt == 3);
  CHECK(request.width == 640);
  CHECK(request.height == 384);
  CHECK(request.steps == 9);
  CHECK(request.seed == 77);
  CHECK(request.progress_count == 2);
  CHECK(request.loras.at(0).path == "/l.safetensors");
  CHECK(call.stream);
  CHECK(call.url);
  CHECK(call.kind.format == PictureFormat::webp);
  CHECK(call.kind.quality == 70);
  CHECK_FALSE(call.submission.detached);
  CHECK(parse(R"({"prompt": "a", "seed": 5, "size": "auto"})").submission.request.seed == 5);
  const std::pair<const char*, const char*> kWrong[] = {
      {R"({"prompt": ["a", "b"]})", "prompt"},
      {R"({"prompt": "a", "n": 11})", "n"},
      {R"({"prompt": "a", "size": "1024"})", "size"},
      {R"({"prompt": "a", "size": "0x64"})", "size"},
      {R"({"prompt": "a", "size": "64x64", "width": 64})", "size"},
      {R"({"prompt": "a", "partial_images": 4, "stream": true})", "partial_images"},
      {R"({"prompt": "a", "partial_images": 1})", "partial_images"},
      {R"({"prompt": "a", "steps": 3, "num_inference_steps": 4})", "num_inference_steps"},
      {R"({"prompt": "a", "stepps": 4})", "stepps"}};
  for (const auto& [body, field] : kWrong) {
    CAPTURE(body);
    CHECK(wrong_field([&] { parse(body); }) == field);
  }
}

TEST_CASE("other servers' names in a job, and what was meant by those that are not taken") {
  const auto request =
      parse_job(R"({"prompt": "a", "num_inference_steps": 9, "n": 2, "patches": 2, "warmup": 3})")
          .submission.request;
  CHECK(request.steps == 9);
  CHECK(request.images_per_prompt == 2);
  CHECK(request.num_pipeline_patch == 2);
  CHECK(request.warmup_steps == 3);
  const std::pair<const char*, const char*> kMeant[] = {
      {R"({"promt": "a"})", "did you mean prompt?"},
      {R"({"prompt": "a", "cfg_scale": 4})", "did you mean guidance_scale?"},
      {R"({"prompt": "a", "sampler_name": "euler"})", "did you mean sampler?"},
      {R"({"prompt": "a", "ulysses_degree": 2})", "did you mean ulysses?"},
      {R"({"prompt": "a", "vae_parallel": 2})", "did you mean vae?"},
      {"{}", "prompt: is missing"}};
  for (const auto& [body, words] : kMeant) {
    CAPTURE(body);
    std::string what;
    try {
      parse_job(body);
    } catch (const ApiError& error) {
      what = error.what();
    }
    CAPTURE(what);
    CHECK(what.find(words) != std::string::npos);
  }
}

TEST_CASE("latents alone are refused where the answer is pictures") {
  const std::string body = R"({"prompt": "a", "output_type": "latent"})";
  const auto fields = [&] { return Fields::parse(body, other_names()); };
  CHECK(wrong_field([&] { parse_images(fields(), false, 1); }) == "output_type");
  const Fields clip(json{{"prompt", "a"}, {"num_frames", 5}});
  CHECK(wrong_field([&] { parse_images(clip, false, 1); }) == "num_frames");
  CHECK(parse_images(Fields(json{{"prompt", "a"}}), false, 1).submission.request.num_frames == 1);
  CHECK(wrong_field([&] { parse_video(fields(), 1); }) == "output_type");
  CHECK(parse_job(body).submission.request.output_type == "latent");
}

TEST_CASE("a body is bounded in depth and in values, and what is said of it in length") {
  const auto said = [](const std::string& body) {
    try {
      parse_job(body);
    } catch (const ApiError& error) {
      CHECK(error.status == 400);
      CHECK(error.param.size() < 100);
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  const std::string big(2'000'000, '[');
  CHECK(said(R"({"prompt": )" + big).find("deeper than 64") != std::string::npos);
  std::string zeros = R"({"prompt": [0)";
  for (int i = 0; i < 200'000; ++i)
    zeros += ",0";
  CHECK(said(zeros + "]}").find("more than 100000 values") != std::string::npos);
  const std::string word(2'000'000, 'a');
  for (const std::string& body :
       {R"({"prompt": "a", ")" + word + R"(": 1})", R"({"prompt": "a", "steps": ")" + word + "\"}",
        R"({"prompt": [3, ")" + word + "\"]}", R"({"prompt": ")" + word,
        R"({"prompt": {")" + word + "\": 1}}"}) {
    const std::string what = said(body);
    CAPTURE(what.substr(0, 500));
    CHECK(what != "nothing");
    CHECK(what.size() < 500);
  }
}

TEST_CASE("base64: with or without padding, also of a data URL") {
  CHECK(base64("ab\xff") == "YWL/");
  CHECK(base64("") == "");
  CHECK(from_base64("YWL/") == "ab\xff");
  CHECK(from_base64("YQ==") == "a");
  CHECK(from_base64("YQ") == "a");
  CHECK(from_base64("data:image/png;base64,YQ==") == "a");
  CHECK(from_base64("YW\nL/") == "ab\xff");
  for (const char* wrong : {"Y", "Y?==", "data:image/png,YQ==", "YQ==YQ=="})
    CHECK_FALSE(from_base64(wrong));
}

TEST_CASE("noise to begin with is a .npy file; what is none is refused by name") {
  const auto npy = [](const std::string& header, std::size_t values) {
    std::string bytes = "\x93NUMPY";
    bytes += {'\x01', '\0', static_cast<char>(header.size()), '\0'};
    bytes += header;
    const std::vector<float> data(values, 0.5F);
    bytes.append(reinterpret_cast<const char*>(data.data()), values * sizeof(float));
    return bytes;
  };
  const auto job = [](const std::string& bytes) {
    return parse_job(json{{"prompt", "a"}, {"init_latents", base64(bytes)}}.dump());
  };
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4, 2, 3), }\n";
  const auto request = job(npy(good, 24)).submission.request;
  REQUIRE(request.init_latents);
  CHECK(request.init_latents->shape == std::vector<std::int64_t>{1, 4, 2, 3});
  CHECK(request.init_latents->data == std::vector<float>(24, 0.5F));
  const auto changed = [&](const std::string& old, const std::string& other) {
    std::string header = good;
    return header.replace(header.find(old), old.size(), other);
  };
  std::string nan = npy(good, 24);
  nan.replace(nan.size() - 2, 2, "\xc0\x7f");
  for (const std::string& bad :
       {std::string(), std::string("PNG"), npy(good, 23), npy(good, 25),
        npy(good, 24).substr(0, 20), npy(changed("<f4", "<f8"), 24),
        npy(changed("False", "True"), 24), npy(changed("(1, 4, 2, 3)", "(8, 3)"), 24),
        npy(changed("(1, 4", "(0, 4"), 0),
        npy(changed("(1, 4, 2", "(4294967296, 4294967296, 2"), 24), nan})
    CHECK(wrong_field([&] { job(bad); }) == "init_latents");
}

TEST_CASE("prompt embeds are a safetensors file in the prompts' place") {
  const auto file = [](const std::string& header, std::size_t data, char value = '\0') {
    std::string bytes(8, '\0');
    for (std::size_t i = 0; i < 3; ++i)
      bytes[i] = static_cast<char>(header.size() >> 8 * i);
    return bytes + header + std::string(data, value);
  };
  const auto with = [](const std::string& bytes, json body = json::object()) {
    body["prompt_embeds"] = base64(bytes);
    return body;
  };
  const auto job = [&](const std::string& bytes, const json& body = json::object()) {
    return parse_job(with(bytes, body).dump());
  };
  const std::string embeds =
      R"("prompt_embeds":{"dtype":"F32","shape":[2,1,3],"data_offsets":[0,24]})";
  const std::string mask =
      R"("prompt_attention_mask":{"dtype":"I64","shape":[2,1],"data_offsets":[24,40]})";
  const std::string good = file("{" + embeds + "," + mask + "}", 40);
  const auto request = job(good, {{"negative_prompt", ""}}).submission.request;
  CHECK(request.prompts == std::vector<std::string>{"", ""});
  REQUIRE(request.prompt_embeds.size() == 2);
  CHECK(request.prompt_embeds.at("prompt_embeds").shape == std::vector<std::int64_t>{2, 1, 3});
  CHECK(request.prompt_embeds.at("prompt_attention_mask").data == std::vector<float>{0, 0});
  // A text that is there, but says nothing: clients of OpenAI's send one always.
  CHECK(job(good, {{"prompt", ""}}).submission.request.prompts.size() == 2);
  for (const auto& texts : {json{{"prompt", "a"}}, json{{"prompts", {"", "b"}}}}) {
    const auto spec = client::to_wire(job(good, texts).submission);
    REQUIRE(spec);
    CHECK(testing::message_of([&] { wire::check_submission(spec.value()); }) ==
          "`prompts` and `prompt_embeds` do not go together");
  }

  const auto image = [&](const std::string& bytes) {
    return parse_images(Fields(with(bytes, {{"prompt", ""}}), other_names()), false, 1);
  };
  const std::string one =
      file(R"({"prompt_embeds":{"dtype":"BF16","shape":[1,1,3],"data_offsets":[0,6]}})", 6, '\x3f');
  CHECK(image(one).submission.request.prompts == std::vector<std::string>{""});
  CHECK(image(one).submission.request.prompt_embeds.at("prompt_embeds").data[0] == 0.74609375F);
  CHECK(wrong_field([&] { image(good); }) == "prompt_embeds");
  CHECK(parse_video(Fields(with(one)), 1).submission.request.prompt_embeds.size() == 1);

  const auto of_shape = [](const std::string& shape, const std::string& end) {
    return R"({"prompt_embeds":{"dtype":"F32","shape":[)" + shape + R"(],"data_offsets":[0,)" +
           end + "]}}";
  };
  std::string many = "{" + embeds;
  for (int i = 0; i < 30'000; ++i)
    many += ",\"" + std::to_string(i) + R"(":{"dtype":"F32","shape":[0],"data_offsets":[24,24]})";
  const std::string bad[] = {
      "",
      "PNG",
      std::string(8, '\xff'),
      good.substr(0, good.size() - 1),
      good + "x",
      file("{" + embeds + "," + mask + "}", 40, '\xff'),
      file("{}", 0),
      file("{" + embeds, 24),
      file(std::string(5000, '['), 0),
      file(R"({"latents":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4),
      file(of_shape("", "4"), 4),
      file(of_shape("0,4", "0"), 0),
      file(of_shape("9223372036854775807,0", "0"), 0),
      file(of_shape("4097,1", "16388"), 16388),
      file(of_shape("4294967296,4294967296,4", "64"), 64),
      file(many + "}", 24)};
  for (const std::string& bytes : bad) {
    CAPTURE(bytes.substr(0, 100));
    CHECK(wrong_field([&] { job(bytes); }) == "prompt_embeds");
  }
  // A quarter of the bytes that it would become.
  const std::size_t most = std::size_t{1} << 25;
  const auto bytes_of = [&](std::size_t size) {
    const std::string count = std::to_string(size);
    return file(R"({"prompt_embeds":{"dtype":"U8","shape":[1,)" + count +
                    R"(],"data_offsets":[0,)" + count + "]}}",
                size);
  };
  CHECK(wrong_field([&] { job(bytes_of(most)); }) == "nothing");
  CHECK(wrong_field([&] { job(bytes_of(most + 1)); }) == "prompt_embeds");
  CHECK(wrong_field([] { parse_job(R"({"prompt_embeds": "?"})"); }) == "prompt_embeds");
  CHECK(wrong_field([] { parse_job(R"({"prompt_embeds": [1]})"); }) == "prompt_embeds");
}

TEST_CASE("a form: fields and files, by its boundary") {
  const std::string type = "multipart/form-data; charset=x; boundary=\"b d\"";
  const std::string body =
      "before\r\n--b d\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\na\r\nb\r\n--b "
      "d\r\n"
      "Content-Type: image/png\r\ncontent-disposition: form-data; filename=\"x\\\"y\"; "
      "name=image\r\n\r\n"
      "\x89\r\n--b\r\n--b d--after";
  const auto parts = parse_multipart(type, body);
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].name == "prompt");
  CHECK(parts[0].bytes == "a\r\nb");
  CHECK(parts[1].name == "image");
  CHECK(parts[1].file == "x\"y");
  CHECK(parts[1].bytes == "\x89\r\n--b");
  for (std::size_t size = 0; size < body.find("--b d--"); ++size) {
    CAPTURE(size);
    CHECK_THROWS_AS(parse_multipart(type, body.substr(0, size)), ApiError);
  }
  CHECK_THROWS_AS(parse_multipart("multipart/form-data", body), ApiError);
  CHECK_THROWS_AS(parse_multipart("application/json; boundary=b", body), ApiError);
}

TEST_CASE("control pictures and the numbers of ControlNets, under their names and diffusers'") {
  const std::string pixel =
      "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNoAAAAggCB2kUIOwAAAABJRU5ErkJggg="
      "=";
  const auto parsed = [](const json& fields) {
    auto body = fields;
    body["prompt"] = "a";
    return parse_job(body.dump()).submission.request;
  };
  const auto own = parsed({{"control_images", {pixel, pixel}},
                           {"controlnets", {"org/canny"}},
                           {"control_scale", 0.5},
                           {"control_from", {0, 0.5}},
                           {"control_until", 0.75}});
  CHECK(own.control_images.size() == 2);
  CHECK(own.controlnets == std::vector<std::string>{"org/canny"});
  CHECK(own.control_scale == std::vector{0.5});
  CHECK(own.control_from == std::vector{0.0, 0.5});
  const auto theirs = parsed({{"control_image", pixel},
                              {"controlnet", "org/canny"},
                              {"controlnet_conditioning_scale", 0.5},
                              {"control_guidance_start", 0},
                              {"control_guidance_end", 0.75}});
  CHECK(theirs.control_images.size() == 1);
  CHECK(theirs.control_scale == own.control_scale);
  CHECK(theirs.control_until == own.control_until);
  CHECK(testing::has(testing::message_of([&] {
                       parsed({{"control_image", pixel}, {"guess_mode", true}});
                     }),
                     "guess_mode"));
}

TEST_CASE("a form's pictures are several, and of one meaning under each of their names") {
  const std::string png = from_base64(
                              "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNoAAAAggCB"
                              "2kUIOwAAAABJRU5ErkJggg==")
                              .value();
  const auto edit = [&](const std::vector<std::string>& names) {
    std::string body;
    for (const auto& name : names)
      body += "--b\r\nContent-Disposition: form-data; name=\"" + name +
              "\"; filename=\"a\"\r\n\r\n" + png + "\r\n";
    body += "--b\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\na\r\n--b--";
    return parse_images(edit_fields("multipart/form-data; boundary=b", body), true, 7)
        .submission.request;
  };
  for (const auto& names : {std::vector<std::string>{"image"}, {"image[]", "image[]"}}) {
    const auto request = edit(names);
    CHECK(request.images.size() == names.size());
    CHECK(request.images_as_taken);
    CHECK(request.init_image.empty());
  }
  const auto job = parse_job(json{{"prompt", "a"}, {"images", {base64(png)}}}.dump()).submission;
  CHECK(job.request.images == std::vector{png});
  CHECK_FALSE(job.request.images_as_taken);
}

TEST_CASE("what a picture was made with, but does not hold, is to be brought along") {
  const std::string demo = testing::read_all(TROUPE_SOURCE_DIR "/docs/demo.png");
  const auto plain = models::write_png(models::load_picture(demo));
  const auto made_with = [&](const char* name) {
    return models::add_png_text(
        plain, {{"troupe", json{{"prompt", "a"}, {"steps", 3}, {name, true}}.dump()}});
  };
  CHECK(parameters_of(made_with("none")).at("prompt") == "a");
  const auto nets = [&](json names) {
    return models::add_png_text(
        plain, {{"troupe", json{{"prompt", "a"}, {"steps", 3}, {"controlnets", names}}.dump()}});
  };
  CHECK(wrong_field([&] { parameters_of(nets({"edges"})); }) == "controlnets");
  CHECK_FALSE(parameters_of(nets({"edges"}), {"controlnets"}).contains("controlnets"));
  CHECK(parameters_of(nets({"org/edges"})).at("controlnets") == json{"org/edges"});
  for (const char* name : {"init_image", "mask_image", "images", "last_image", "control_images",
                           "init_latents", "prompt_embeds"}) {
    CAPTURE(name);
    CHECK(wrong_field([&] { parameters_of(made_with(name)); }) == name);
    CHECK(parameters_of(made_with(name), {name}).at("steps") == 3);
  }
  // What was given stays given, and what was not stays the model's own.
  const auto of = [&](const json& record) {
    return parse_job(parameters_of(models::add_png_text(plain, {{"troupe", record.dump()}})).dump())
        .submission.request;
  };
  const auto given = of({{"prompt", "a"}, {"negative_prompt", ""}, {"guidance_scale", 0}});
  CHECK(given.negative_prompt == "");
  CHECK(given.guidance_scale == 0);
  const auto none = of({{"prompt", "a"}, {"negative_prompt", nullptr}, {"strength", 0.8}});
  CHECK_FALSE(none.negative_prompt);
  CHECK_FALSE(none.guidance_scale);
  CHECK_FALSE(none.strength);
  // What is answered is a job's body, and so is what is brought along.
  const auto with_embeds = models::add_png_text(
      plain, {{"troupe", json{{"prompt", ""}, {"steps", 3}, {"prompt_embeds", true}}.dump()}});
  json body = parameters_of(with_embeds, {"prompt_embeds"});
  const std::string header =
      R"({"prompt_embeds":{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]}})";
  body["prompt_embeds"] = base64(std::string(1, static_cast<char>(header.size())) +
                                 std::string(7, '\0') + header + std::string(4, '\0'));
  CHECK(parse_job(body.dump()).submission.request.prompt_embeds.size() == 1);
}

TEST_CASE("a video: seconds become frames") {
  const auto parse = [](const char* body) {
    return parse_video(Fields::parse(body, other_names()), 1).submission.request;
  };
  CHECK(parse(R"({"prompt": "a", "seconds": "4", "size": "1280x720"})").num_frames == 65);
  CHECK(parse(R"({"prompt": "a", "num_frames": 9})").num_frames == 9);
  CHECK(wrong_field([&] { parse(R"({"prompt": "a", "num_frames": 9, "seconds": 4})"); }) ==
        "seconds");
  CHECK(wrong_field([&] { parse(R"({"prompt": "a", "n": 2})"); }) == "n");
  CHECK(parse(R"({"prompt": "a"})").num_frames == 65);
  CHECK(wrong_field([&] { parse(R"({"prompt": "a", "seconds": "x"})"); }) == "seconds");
  CHECK(wrong_field([&] { parse(R"({"prompt": "a", "seconds": 0.1})"); }) == "seconds");
  CHECK(wrong_field([&] { parse(R"({"prompt": "a", "num_frames": 1})"); }) == "num_frames");
}

TEST_CASE("a form has lists of numbers with commas between them") {
  const auto timesteps = [](const char* text) {
    Fields fields(json{{"timesteps", text}}, {}, true);
    ImageRequest request;
    fields.read_request(request);
    return request.timesteps;
  };
  CHECK(timesteps("900, 500.5,100") == std::vector<double>{900, 500.5, 100});
  CHECK(timesteps("900") == std::vector<double>{900});
  CHECK(timesteps("").empty());
  for (const char* wrong : {"900;500", "900 500", "900,,500", "900,", "a", "-1", "nan", "1e9"}) {
    CAPTURE(wrong);
    CHECK(wrong_field([&] { timesteps(wrong); }) == "timesteps");
  }
}

TEST_CASE("a link to a picture holds for a while") {
  PictureLinks links;
  JobBoard board;
  board.end(board.add({0, "aa", 3}, 1), std::make_shared<const JobResult>(), 2);
  links.add("name", {.job = board.find("3-aa"), .picture = 1, .kind = {}, .until = 0}, 100);
  CHECK(links.find("name", 100 + PictureLinks::kSeconds)->job.lock() == board.find("3-aa"));
  CHECK_FALSE(links.find("name", 101 + PictureLinks::kSeconds));
  CHECK_FALSE(links.find("other", 100));
  for (std::size_t i = 0; i < PictureLinks::kMost; ++i)
    links.add(std::to_string(i), {}, 100);
  CHECK_FALSE(links.find("name", 100));
}
