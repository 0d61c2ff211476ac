#pragma once
#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/dit/pixart.h"
#include "models/dit/ports.h"
#include "models/safetensors.h"
#include "models/spec/model_spec.h"
#include "tests/models/fixtures.h"

namespace troupe::models::testing {

using Tensors = std::map<std::string, at::Tensor>;

struct Call {
  PictureSize size;
  TokenRows rows;
  at::Tensor latents, caption, mask;
  double timestep = 0;
};

inline const Tensors& expected() {
  static const Tensors tensors = load_safetensors(kFixtures / "expected/transformer.safetensors");
  return tensors;
}

inline spec::ModelSpec spec_of(const std::string& checkpoint, bool transformer_only) {
  const std::string folder = kFixtures / checkpoint;
  if (!transformer_only) return spec::read_model_spec(folder);
  spec::ModelSpec spec;
  spec.vae.block_out_channels = {1, 1, 1, 1};
  spec.transformer = spec::PixArtSpec::read(spec::ConfigReader::read(folder + "/config.json"));
  constexpr std::string_view kStem = "diffusion_pytorch_model";
  spec.transformer_weights = spec::WeightIndex::read_folder(folder, {&kStem, 1});
  return spec;
}

/// One batch item, so that items may have timesteps of their own.
inline Call call_of(const std::string& name, int64_t first, int64_t end) {
  const auto get = [&](const char* what) {
    return expected().at(name + "." + what).slice(0, first, end);
  };
  Call call;
  call.latents = get("hidden");
  call.caption = get("caption");
  call.mask = get("mask") > 0.5;
  call.size = {call.latents.size(2), call.latents.size(3)};
  call.rows = {0, call.size.latent_height / 2};
  call.timestep = get("timestep")[0].item<double>();
  return call;
}

inline StagePart whole(const spec::ModelSpec& spec) {
  return {{0, static_cast<int>(spec.transformer.num_layers)}, true, true};
}

inline double error(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor reference = want.to(at::kDouble);
  return ((got.to(at::kDouble) - reference).abs().max() / (reference.max() - reference.min()))
      .item<double>();
}

inline Caption projected(const DiffusionTransformer& model, const Call& call) {
  return model.project_caption({{.states = call.caption, .lengths = {}, .pooled = {}}});
}

inline CallTokens tokens_of(const Call& call) {
  return {call.size, {call.rows}, 0, 0};
}

inline at::Tensor run(const DiffusionTransformer& model, const Call& call,
                      TensorParallelPort& sums) {
  LocalAttention attention;
  const auto caption = model.cache_caption(projected(model, call), call.mask);
  const auto step = model.condition({call.timestep, 1, call.size}, *caption);
  const at::Tensor hidden = model.run_blocks(model.embed(call.latents, call.size, call.rows),
                                             tokens_of(call), *step, *caption, attention, sums);
  return model.project(hidden, *step, call.size, call.rows);
}

inline at::Tensor run(const DiffusionTransformer& model, const Call& call) {
  WholeWeights whole_weights;
  return run(model, call, whole_weights);
}

inline std::vector<std::unique_ptr<DiffusionTransformer>> split(const spec::ModelSpec& spec,
                                                                int stages) {
  std::vector<std::unique_ptr<DiffusionTransformer>> parts;
  const int blocks = static_cast<int>(spec.transformer.num_layers);
  for (int i = 0; i < stages; ++i) {
    const StagePart part{{i * blocks / stages, (i + 1) * blocks / stages}, i == 0, i + 1 == stages};
    parts.push_back(load_transformer(spec, part, at::kFloat, at::kCPU));
  }
  return parts;
}

}  // namespace troupe::models::testing
