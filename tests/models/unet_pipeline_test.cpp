#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include "models/encoders/clip_text_model.h"
#include "models/encoders/t5_encoder.h"
#include "models/samplers/sampler.h"
#include "models/spec/model_spec.h"
#include "models/text/clip_tokenizer.h"
#include "models/unet/patch_port.h"
#include "tests/models/unet_support.h"
#include "tests/models/vae_support.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::models;
using namespace troupe::models::testing;

namespace {

const std::filesystem::path kFolder = kUNetFixtures / "tiny-sdxl";

/// Output of both encoders for prompts: states side by side, and the second's pooled vector.
struct Text {
  at::Tensor states, pooled;
};

Text encode(const std::vector<std::string>& prompts) {
  Text text;
  std::vector<at::Tensor> states;
  for (const std::string end : {"", "_2"}) {
    const auto folder = kFolder / ("text_encoder" + end);
    const auto spec =
        spec::read_clip_spec(spec::ConfigReader::read(folder / "config.json"), end == "_2");
    const ClipTextModel model(
        spec, WeightStore(spec::WeightIndex::read_file(folder / "model.safetensors")));
    const auto tokenizer = ClipTokenizer::load(kFolder / ("tokenizer" + end));
    const auto tokens = tokenizer.tokenize(prompts, tokenizer.model_max_length());
    const auto found = model.encode(text_batch(tokens).ids);
    states.push_back(found.hidden);
    text.pooled = found.pooled;
  }
  text.states = at::cat(states, 2);
  return text;
}

at::Tensor each_so_often(const at::Tensor& x, std::int64_t n) {
  return x.repeat_interleave(n, 0);
}

}  // namespace

TEST_CASE("SDXL's pipeline from prompt and seed to final latents, whole and by patches") {
  const at::NoGradGuard no_grad;
  const OneThread one_thread;
  const UNetBook book("unet_pipeline");
  const auto weights = kFolder / "unet" / "diffusion_pytorch_model.safetensors";
  const unet::UNet2DConditionModel model(
      spec::UNetSpec::read(spec::ConfigReader::read(kFolder / "unet" / "config.json")),
      WeightStore(spec::WeightIndex::read_file(weights)));
  double worst = 0;
  int stochastic = 0;
  for (const auto& item : book.content["cases"]) {
    const std::string name = item["name"];
    CAPTURE(name);
    nlohmann::json config = book.content["beta"];
    config.update(item["config"]);
    const auto sampler = make_sampler({item["scheduler"], config.dump(), "scheduler_config.json"},
                                      "", item["steps"].get<int>());
    const auto prompts = item["prompts"].get<std::vector<std::string>>();
    const std::int64_t n = item["n"];
    const double guidance = item["guidance"];
    const bool guided = guidance > 1;
    Text text = encode(prompts);
    if (guided) {
      Text negative{at::zeros_like(text.states), at::zeros_like(text.pooled)};
      if (!item["negative_prompt"].is_null()) {
        negative = encode(std::vector<std::string>(prompts.size(), item["negative_prompt"]));
      }
      text = {at::cat({each_so_often(negative.states, n), each_so_often(text.states, n)}),
              at::cat({each_so_often(negative.pooled, n), each_so_often(text.pooled, n)})};
    } else {
      text = {each_so_often(text.states, n), each_so_often(text.pooled, n)};
    }
    const double height = item["height"];
    const double width = item["width"];
    const std::int64_t batch = text.pooled.size(0);
    const at::Tensor sizes =
        at::tensor({height, width, 0.0, 0.0, height, width}, at::kFloat).repeat({batch, 1});
    const unet::AddedCondition added{text.pooled, sizes};
    const auto keys = model.keys_of(text.states);

    const auto rows = static_cast<std::int64_t>(height) / 8;
    for (const int patches : {1, 3}) {
      CAPTURE(patches);
      const unet::PatchCuts cuts(rows, patches, model.levels());
      unet::LocalExchange exchange(patches);
      unet::PatchPort port(cuts, exchange);
      auto generator = at::detail::createCPUGenerator(item["seed"].get<std::uint64_t>());
      const std::vector<std::int64_t> shape = {n * static_cast<std::int64_t>(prompts.size()), 4,
                                               rows, static_cast<std::int64_t>(width) / 8};
      auto latents =
          cut(at::randn(shape, generator) * sampler->init_noise_sigma(), cuts, 0, patches);
      std::vector<SamplerState> states(latents.size());
      for (int i = 0; i < sampler->steps(); ++i) {
        port.begin_step(unet::StepMode::synchronous);
        std::vector<at::Tensor> seen;
        for (const at::Tensor& patch : latents) {
          const at::Tensor scaled = sampler->scale_model_input(patch, i);
          seen.push_back(guided ? at::cat({scaled, scaled}) : scaled);
        }
        auto outputs = model(seen, model.condition(sampler->timestep(i), batch, added), keys, port);
        std::vector<at::Tensor> noise(latents.size());
        if (sampler->noise_needed(i)) {
          noise = cut(at::randn(shape, generator), cuts, 0, patches);
          ++stochastic;
        }
        for (size_t p = 0; p < latents.size(); ++p) {
          if (guided) {
            const auto halves = outputs[p].chunk(2);
            outputs[p] = halves[0] + guidance * (halves[1] - halves[0]);
          }
          latents[p] = sampler->step(states[p], i, outputs[p], latents[p], noise[p]);
        }
      }
      const double error = relative_error(at::cat(latents, 2), book.tensors.at(name + ".latents"));
      worst = std::max(worst, error);
      CHECK(error < 1e-4);
    }
  }
  CHECK(stochastic > 30);
  CHECK(book.content["cases"].size() == 10);
  MESSAGE("largest difference " << worst << " of the range");
}
