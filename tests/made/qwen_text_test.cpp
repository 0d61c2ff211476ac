#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "models/encoders/qwen_text_model.h"
#include "models/image/png.h"
#include "models/image/resize.h"
#include "models/safetensors.h"
#include "models/spec/model_spec.h"
#include "models/spec/resolution_bins.h"
#include "models/text/chat_template.h"
#include "models/text/qwen_tokenizer.h"
#include "tests/spec/model_folder.h"
#include "tests/support/doctest.h"
#include "tests/support/made.h"

using namespace troupe;
using namespace troupe::testing;
using models::QwenTokenizer;
using nlohmann::json;

namespace {

using Ids = std::vector<std::int64_t>;

const std::filesystem::path kFolder = kMade / "tiny-qwen-text";
constexpr auto kAnswer = spec::ChatTemplate::answer;

json book(const std::string& name) {
  return json::parse(std::ifstream(kMade / "expected" / (name + ".json")));
}

void write_text(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file) << text;
}

}  // namespace

TEST_CASE("Qwen's ids equal those of transformers, from both forms of files") {
  if (lacks_made_fixtures()) return;
  const auto whole = QwenTokenizer::load(kFolder / "tokenizer");
  const auto lists = QwenTokenizer::load(kFolder / "tokenizer_lists");
  int cut = 0;
  const auto cases = book("qwen_tokens").at("cases");
  for (const auto& item : cases) {
    const std::string prompt = item.at("prompt");
    CAPTURE(prompt);
    const auto ids = item.at("tokenizer").get<Ids>();
    CHECK(whole.encode(prompt) == ids);
    CHECK(lists.encode(prompt) == item.value("tokenizer_lists", ids));
    if (!item.contains("cut")) continue;
    const auto row = whole.tokenize({prompt}, 12);
    CHECK(row.ids[0] == item.at("cut").get<Ids>());
    CHECK(row.cut[0].empty() == (ids.size() <= 12));
    cut += !row.cut[0].empty();
  }
  CHECK(cases.size() > 500);
  CHECK(cut > 10);
}

TEST_CASE("Qwen3's states equal those of transformers, with and without its head") {
  if (lacks_made_fixtures()) return;
  const at::NoGradGuard no_grad;
  const auto expected = models::load_safetensors(kMade / "expected/qwen_encoder.safetensors");
  double worst = 0;
  for (const auto& item : book("qwen_encoder").at("cases")) {
    const std::string name = item.at("name");
    CAPTURE(name);
    const auto folder = kFolder / item.at("encoder").get<std::string>();
    auto config = spec::read_qwen3_spec(spec::ConfigReader::read(folder / "config.json"));
    const at::Tensor ids = expected.at(name + ".input_ids");
    for (const bool before_last : {false, true}) {
      config.taken_layers.clear();
      if (before_last) config.taken_layers = {config.num_hidden_layers - 1};
      const models::QwenTextModel model(
          config, models::WeightStore(spec::WeightIndex::read_file(folder / "model.safetensors")));
      int blocks = 0;
      const auto states =
          model.encode_each({{ids, ids.size(1)}}, [&](int done, int) { blocks = done; }).front();
      const auto& want = expected.at(name + (before_last ? ".penultimate" : ".last"));
      const double range = (want.max() - want.min()).item<double>();
      const double error = (states - want).abs().max().item<double>() / range;
      CHECK(error < 1e-5);
      CHECK(blocks == config.num_hidden_layers - before_last);
      worst = std::max(worst, error);
    }
  }
  MESSAGE("states within " << worst << " of range");
}

TEST_CASE("Qwen2.5-VL's states of texts with pictures equal those of transformers") {
  if (lacks_made_fixtures()) return;
  const at::NoGradGuard no_grad;
  const auto expected = models::load_safetensors(kMade / "expected/qwen_edit_states.safetensors");
  double worst = 0;
  for (const auto& item : book("qwen_edit_states").at("cases")) {
    const std::string name = item.at("name");
    CAPTURE(name);
    const auto model = spec::read_model_spec(kMade / name);
    const auto& encoder = model.text_encoders.at(0);
    const auto& config = std::get<spec::QwenTextSpec>(encoder.config);
    const at::Tensor ids = expected.at(name + ".input_ids");
    const auto number = item.at("references").size();
    std::vector<models::VisionPatches> pictures;
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < number; ++i) {
      const at::Tensor file = expected.at(name + ".reference" + std::to_string(i));
      const at::Tensor rgb = models::decode_picture(
          {static_cast<const char*>(file.const_data_ptr()), file.nbytes()}, [] {});
      const auto size = spec::edited_size(model, {rgb.size(0), rgb.size(1)}).seen;
      pictures.push_back(models::vision_patches(
          *encoder.vision(), models::resize_lanczos(rgb, size.height, size.width)));
      tokens += spec::seen_tokens(model, {rgb.size(0), rgb.size(1)});
    }
    CHECK(tokens == ids.eq(encoder.vision()->image_token_id).sum().item<std::int64_t>());
    const models::QwenTextModel encoding(config, models::WeightStore(encoder.weights));
    const auto states = encoding.encode_each({{ids, ids.size(1)}}, {}, pictures).front();
    const auto& want = expected.at(name + ".states");
    const double range = (want.max() - want.min()).item<double>();
    const double error = (states - want).abs().max().item<double>() / range;
    CHECK(error < 1e-5);
    worst = std::max(worst, error);
    // The text has places for all of its pictures and for no others.
    pictures.pop_back();
    CHECK_THROWS_AS(encoding.encode_each({{ids, ids.size(1)}}, {}, pictures), std::exception);
  }
  MESSAGE("states within " << worst << " of range");
}

TEST_CASE("a chat template that says something else is refused by name") {
  if (lacks_made_fixtures()) return;
  CHECK_NOTHROW(models::check_chat_template(kFolder / "tokenizer", kAnswer));
  CHECK_NOTHROW(models::check_chat_template(kFolder / "tokenizer_lists", kAnswer));
  const Scratch folder;
  const auto file = folder.path / "chat_template.jinja";
  const auto error = [&] {
    return error_of([&] { models::check_chat_template(folder.path, kAnswer); });
  };
  CHECK(contains(error(), "has no chat template"));
  const auto settings =
      json::parse(std::ifstream(kFolder / "tokenizer_lists/tokenizer_config.json"));
  const std::string good = settings.at("chat_template");
  write_text(file, good);
  CHECK_NOTHROW(models::check_chat_template(folder.path, kAnswer));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    REQUIRE(text.find(from) != std::string::npos);
    write_text(file, text.replace(text.find(from), from.size(), to));
    return error();
  };
  CHECK(contains(changed("'<|im_start|>' + message.role", "'<|user|>' + message.role"),
                 "chat_template.jinja"));
  CHECK(contains(changed("message.content + ", "message.content|trim + "), "message"));
  CHECK(contains(changed("'<|im_start|>assistant\\n'", "'<|im_start|>assistant\\n<think>\\n'"),
                 "head of an answer"));
  CHECK(contains(changed("{%- for", "{{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{%- for"),
                 "system message of its own"));
  write_text(file, good);
  constexpr auto kUnthought = spec::ChatTemplate::unthought_answer;
  CHECK_NOTHROW(models::check_chat_template(folder.path, kUnthought));
  std::string text = good;
  const auto from = text.find("{%- if enable_thinking"), to = text.find("{%- endif %}", from);
  REQUIRE(to != std::string::npos);
  write_text(file, text.erase(from, to + std::string("{%- endif %}").size() - from));
  CHECK_NOTHROW(models::check_chat_template(folder.path, kAnswer));
  CHECK(contains(error_of([&] { models::check_chat_template(folder.path, kUnthought); }),
                 "without thinking"));
}
