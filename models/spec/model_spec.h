#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/spec/pixart_spec.h"
#include "models/spec/t5_spec.h"
#include "models/spec/vae_spec.h"
#include "models/spec/weight_index.h"

namespace troupe::spec {

/// What a sampler is made from. `config` is JSON proper (Python's infinities became strings).
struct SchedulerSpec {
  std::string class_name;
  std::string config;
  std::filesystem::path file;

  bool operator==(const SchedulerSpec&) const = default;
};

/// The tokenizer's files, as far as they are there; one of the first two is.
struct TokenizerSpec {
  std::optional<std::filesystem::path> spiece_model;
  std::optional<std::filesystem::path> tokenizer_json;
  std::optional<std::filesystem::path> tokenizer_config;

  bool operator==(const TokenizerSpec&) const = default;
};

/// Everything that a plan must know of a model folder. A plain value.
struct ModelSpec {
  std::filesystem::path folder;
  /// The class that model_index.json names, such as "PixArtAlphaPipeline".
  std::string pipeline_class;
  PixArtSpec transformer;
  T5Spec text_encoder;
  VaeSpec vae;
  SchedulerSpec scheduler;
  TokenizerSpec tokenizer;
  WeightIndex transformer_weights;
  WeightIndex text_encoder_weights;
  WeightIndex vae_weights;

  /// Tokens that a prompt is padded or cut to. Source: PixArtAlphaPipeline of diffusers.
  std::int64_t text_tokens = 120;

  /// Height and width must be multiples of this many pixels.
  std::int64_t pixel_multiple() const { return vae.scale_factor() * transformer.patch_size; }
  /// Height and width in pixels where a request gives none.
  std::int64_t default_size() const { return transformer.sample_size * vae.scale_factor(); }

  bool operator==(const ModelSpec&) const = default;
};

/// Reads configs and safetensors headers of a diffusers folder, no weights. Throws
/// std::runtime_error for a missing folder or file, an unknown pipeline or component class, a
/// config value that is not supported (by key and value), and a tensor that is missing, misshapen
/// or not called for.
ModelSpec read_model_spec(const std::filesystem::path& folder);

/// Bytes of weights in their stored dtype, by the part that needs them.
struct WeightBytes {
  /// Patch embedding and caption projection: the first stage.
  std::uint64_t embed = 0;
  /// adaln_single: every stage.
  std::uint64_t shared = 0;
  std::vector<std::uint64_t> blocks;
  /// Last modulation and projection: the last stage.
  std::uint64_t final = 0;
  std::uint64_t text_encoder = 0;
  /// The largest part of the text encoder that is in use at one time: its embedding or a block.
  std::uint64_t text_encoder_peak = 0;
  std::uint64_t vae_decoder = 0;

  bool operator==(const WeightBytes&) const = default;
};

WeightBytes weight_bytes(const ModelSpec& spec);

}  // namespace troupe::spec
