#pragma once
#include <ATen/ATen.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/dit/ports.h"
#include "models/safetensors.h"
#include "models/spec/model_spec.h"
#include "tests/models/fixtures.h"
#include "tests/support/doctest.h"
#include "tests/support/made.h"

namespace troupe::models::testing {

// The families whose fixtures are made when tests run have a program of their own, of the same
// tests.
#ifdef TROUPE_MADE_FAMILIES
inline const std::filesystem::path kFamilyFixtures = troupe::testing::kMade;
inline const std::vector<const char*> kFamilyParts = {
    "qwen_image_transformer", "chroma_transformer",  "flux2_transformer",
    "ovis_transformer",       "longcat_transformer", "krea2_transformer"};
#else
inline const std::filesystem::path kFamilyFixtures = kFixtures;
inline const std::vector<const char*> kFamilyParts = {"families_transformer", "wan_transformer"};
#endif

/// Returns a transformer alone, with nothing around it.
inline spec::ModelSpec family_of(const std::string& checkpoint) {
  const std::string folder = kFamilyFixtures / checkpoint / "transformer";
  spec::ModelSpec spec;
  spec.vae.block_out_channels = {1, 1, 1, 1};
  spec.transformer =
      spec::read_transformer_spec(spec::ConfigReader::read(folder + "/config.json"), "");
  constexpr std::string_view kStem = "diffusion_pytorch_model";
  spec.transformer_weights = spec::WeightIndex::read_folder(folder, {&kStem, 1});
  return spec;
}

/// Returns the same with the weights of another file.
inline spec::ModelSpec with_weights(spec::ModelSpec spec, const std::filesystem::path& file) {
  spec.transformer_weights = spec::WeightIndex::read_file(file);
  spec.transformer.kept =
      spec::KeptWeights(planned_tensors(spec.transformer), &spec.transformer_weights);
  return spec;
}

/// One call of a fixture: what the text encoders gave, latents, and what is expected.
struct Fixture {
  std::string name, checkpoint;
  std::vector<EncoderOutput> text;
  StepInput input;
  at::Tensor latents, output;
  int64_t patch = 2;

  int64_t rows() const { return input.size.latent_height / patch; }
  int64_t columns() const { return input.size.latent_width / patch; }
};

inline void add_fixtures(const std::string& name, std::vector<Fixture>& all) {
  const auto tensors = load_safetensors(kFamilyFixtures / ("expected/" + name + ".safetensors"));
  const auto book =
      nlohmann::json::parse(std::ifstream(kFamilyFixtures / ("expected/" + name + ".json")));
  for (const auto& item : book.at("cases")) {
    Fixture one;
    one.name = item.at("name");
    one.checkpoint = item.at("checkpoint");
    const auto get = [&](const std::string& key) {
      const auto found = tensors.find(one.name + "." + key);
      return found == tensors.end() ? at::Tensor() : found->second;
    };
    one.latents = get("hidden");
    one.output = get("output");
    one.patch = item.value("patch", one.patch);
    one.input = {item.at("timestep"),
                 item.at("guidance"),
                 {one.latents.size(2), one.latents.size(3), item.value("frames", 1)}};
    for (int i = 0; i < 3; ++i) {
      const auto number = std::to_string(i);
      EncoderOutput out{get("states" + number), get("lengths" + number), get("pooled" + number)};
      if (out.states.defined() || out.pooled.defined()) one.text.push_back(out);
    }
    all.push_back(one);
  }
}

/// Fixtures of every family.
inline const std::vector<Fixture>& fixtures() {
  static const auto all = [] {
    std::vector<Fixture> made;
#ifdef TROUPE_MADE_FAMILIES
    if (troupe::testing::lacks_made_fixtures()) return made;
#endif
    for (const char* name : kFamilyParts)
      add_fixtures(name, made);
    return made;
  }();
  return all;
}

/// A model's stages after what they were given of the text.
struct SplitModel {
  std::vector<std::unique_ptr<DiffusionTransformer>> stages;
  std::vector<std::unique_ptr<CaptionCache>> captions;
  std::vector<std::unique_ptr<StepCondition>> steps;
  spec::TransformerSpec facts;
  int64_t text = 0;      // tokens of the sequence
  at::Tensor seen = {};  // [B, text], false for padding; undefined: there is none

  SplitModel(const spec::ModelSpec& spec, const Fixture& of, int count, WeightShard shard = {},
             at::ScalarType dtype = at::kFloat, KeepBlocks keep = KeepBlocks::all,
             kernels::WeightType type = {})
      : facts(spec.transformer) {
    const int blocks = static_cast<int>(spec.transformer.num_layers);
    if (facts.joint && !facts.pads_text) {
      const EncoderOutput& states = of.text.front();
      seen = at::arange(states.states.size(1)).unsqueeze(0).lt(states.lengths.unsqueeze(1));
    }
    Caption caption;
    for (int i = 0; i < count; ++i) {
      const StagePart part{
          {i * blocks / count, (i + 1) * blocks / count}, i == 0, i + 1 == count, shard};
      stages.push_back(load_transformer(spec, part, dtype, at::kCPU, {}, nullptr, type, keep));
      if (i == 0) {
        caption = stages[0]->project_caption(of.text);
        // Rows that are padding in all prompts may be gone.
        if (seen.defined()) seen = seen.narrow(1, 0, caption.states.size(1));
      }
      const auto mask =
          seen.defined() ? seen : at::ones(caption.states.sizes().slice(0, 2), at::kBool);
      captions.push_back(stages[i]->cache_caption(caption, mask));
      steps.push_back(stages[i]->condition(of.input, *captions[i]));
    }
    if (spec.transformer.joint) text = caption.states.size(1);
  }

  /// Channels that one stage leaves for another.
  int64_t skip_width(std::size_t from, std::size_t to) const {
    const auto& own = stages[from]->part().blocks;
    const auto& later = stages[to]->part().blocks;
    return facts.skip_width(own.begin, own.end, later.begin, later.end);
  }

  /// The prediction for token rows, with the text's tokens or without.
  at::Tensor run(const Fixture& of, TokenRows rows, bool with_text, AttentionPort& attention,
                 TensorParallelPort& sums) const {
    const CallTokens tokens{of.input.size, {rows}, 0, with_text ? text : 0};
    const at::Tensor latents = of.latents.slice(2, rows.begin * of.patch, rows.end * of.patch);
    at::Tensor hidden = stages[0]->embed(latents, of.input.size, rows);
    if (tokens.text() > 0)
      hidden = at::cat({stages[0]->embed_text(*captions[0], 0, text), hidden}, 1);
    std::vector<at::Tensor> skips(stages.size());  // by stage that takes them up
    for (std::size_t i = 0; i < stages.size(); ++i) {
      if (skips[i].defined()) hidden = at::cat({hidden, skips[i]}, 2);
      CHECK(hidden.size(2) == stages[i]->input_width());
      hidden = stages[i]->run_blocks(hidden, tokens, *steps[i], *captions[i], attention, sums);
      CHECK(hidden.size(2) == stages[i]->output_width());
      const auto next =
          stages[i]->hidden_width() + (i + 1 < stages.size() ? skip_width(i, i + 1) : 0);
      int64_t sent = next;
      for (std::size_t later = i + 2; later < stages.size(); ++later) {
        const auto part = hidden.slice(2, sent, sent + skip_width(i, later));
        skips[later] = skips[later].defined() ? at::cat({part, skips[later]}, 2) : part;
        sent += part.size(2);
      }
      CHECK(sent == hidden.size(2));
      hidden = hidden.slice(2, 0, next);
    }
    return stages.back()->project(hidden.slice(1, tokens.text()), *steps.back(), of.input.size,
                                  rows);
  }

  at::Tensor run(const Fixture& of, TensorParallelPort& sums) const {
    LocalAttention attention(seen);
    return run(of, {0, of.rows()}, true, attention, sums);
  }
  at::Tensor run(const Fixture& of) const {
    WholeWeights sums;
    return run(of, sums);
  }
};

/// Largest difference, as a part of the range of the wanted values.
inline double error_of(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor reference = want.to(at::kDouble);
  return ((got.to(at::kDouble) - reference).abs().max() / (reference.max() - reference.min()))
      .item<double>();
}

}  // namespace troupe::models::testing
