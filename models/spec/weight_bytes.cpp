#include <algorithm>
#include <map>
#include <string>
#include <variant>

#include "models/spec/decoder_tensors.h"
#include "models/spec/model_spec.h"

namespace troupe::spec {
namespace {

struct EncoderBytes {
  std::uint64_t all = 0;
  std::uint64_t peak = 0;
};

EncoderBytes bytes_of(const TextEncoderSpec& encoder) {
  EncoderBytes bytes;
  if (encoder.absent) return bytes;
  if (const auto* clip = std::get_if<ClipSpec>(&encoder.config))
    return {clip_bytes(*clip, encoder.weights), clip_peak_bytes(*clip, encoder.weights)};
  if (const auto* bert = std::get_if<BertSpec>(&encoder.config)) {
    for (const ExpectedTensor& tensor : expected_tensors(*bert))
      bytes.all += entry_of(encoder.weights, tensor).bytes();
    bytes.peak = entry_of(encoder.weights, expected_tensors(*bert).front()).bytes();
    return bytes;
  }
  const auto& config = std::get<T5Spec>(encoder.config);
  const auto expected = expected_tensors(config);
  for (const ExpectedTensor& tensor : expected)
    bytes.all += entry_of(encoder.weights, tensor).bytes();
  bytes.peak = entry_of(encoder.weights, expected.front()).bytes();
  for (std::int64_t block = 0; block < config.num_layers; ++block)
    bytes.peak = std::max(bytes.peak, encoder.weights.bytes(t5_block_prefix(block)));
  return bytes;
}

/// "encoder.block.3" of "encoder.block.3.layer.0.…", "text_model.encoder.layers.3" and
/// "encoder.layer.3" of the other families; "" where a name has no number.
std::string block_of(const std::string& name) {
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    const auto end = name.find_first_not_of("0123456789", dot + 1);
    if (end != dot + 1 && end != std::string::npos && name[end] == '.') return name.substr(0, end);
  }
  return "";
}

}  // namespace

std::uint64_t encoder_peak_bytes(const TextEncoderSpec& encoder, std::size_t element) {
  std::uint64_t peak = 0;
  if (encoder.absent) return peak;
  std::map<std::string, std::uint64_t> blocks;
  const auto expected =
      std::visit([](const auto& config) { return expected_tensors(config); }, encoder.config);
  for (const ExpectedTensor& tensor : expected) {
    const TensorEntry& entry = entry_of(encoder.weights, tensor);
    if (const auto block = block_of(tensor.name); !block.empty())
      blocks[block] += entry.bytes() / dtype_bytes(entry.dtype) * element;
    else
      peak = std::max(peak, entry.bytes());
  }
  for (const auto& [block, bytes] : blocks)
    peak = std::max(peak, bytes);
  return peak;
}

std::uint64_t encoder_bytes(const TextEncoderSpec& encoder, std::size_t element) {
  std::uint64_t bytes = 0;
  if (encoder.absent) return bytes;
  const auto expected =
      std::visit([](const auto& config) { return expected_tensors(config); }, encoder.config);
  // The first one of every family is the token embedding.
  for (std::size_t i = 1; i < expected.size(); ++i) {
    const TensorEntry& entry = entry_of(encoder.weights, expected[i]);
    bytes += entry.bytes() / dtype_bytes(entry.dtype) * element;
  }
  return bytes;
}

EncoderOutputShape output_shape(const TextEncoderSpec& encoder, std::int64_t max_sequence_length) {
  if (encoder.absent) return {};
  const bool states = encoder.use != TextUse::pooled;
  const bool pooled = !states || encoder.use == TextUse::penultimate_pooled;
  const auto tokens = encoder.tokens > 0 ? encoder.tokens : max_sequence_length;
  std::int64_t width = 0, vector = 0;
  if (const auto* clip = std::get_if<ClipSpec>(&encoder.config)) {
    width = clip->hidden_size;
    vector = clip->pooled_size();
  } else if (const auto* bert = std::get_if<BertSpec>(&encoder.config)) {
    width = bert->hidden_size;
  } else {
    width = std::get<T5Spec>(encoder.config).d_model;
  }
  return {states ? tokens : 0, states ? width : 0, pooled ? vector : 0};
}

std::uint64_t decoder_bytes(const ModelSpec& spec, std::size_t element) {
  std::uint64_t bytes = 0;
  for (const ExpectedTensor& tensor : decoder_tensors(spec)) {
    const TensorEntry& entry = entry_of(spec.vae_weights, tensor);
    bytes += entry.bytes() / dtype_bytes(entry.dtype) * element;
  }
  return bytes;
}

WeightBytes weight_bytes_around(const ModelSpec& spec) {
  WeightBytes bytes;
  for (const TextEncoderSpec& encoder : spec.text_encoders) {
    const auto own = bytes_of(encoder);
    bytes.text_encoder += own.all;
    bytes.text_encoder_peak = std::max(bytes.text_encoder_peak, own.peak);
  }
  for (const ExpectedTensor& tensor : decoder_tensors(spec)) {
    bytes.vae_decoder += entry_of(spec.vae_weights, tensor).bytes();
  }
  return bytes;
}

WeightBytes weight_bytes(const ModelSpec& spec) {
  WeightBytes bytes = weight_bytes_around(spec);
  bytes.blocks.resize(static_cast<std::size_t>(spec.transformer.num_layers));
  for (const PlannedTensor& planned : planned_tensors(spec.transformer)) {
    const std::uint64_t own = entry_of(spec.transformer_weights, planned.tensor).bytes();
    switch (planned.held) {
      case Held::first:
        bytes.embed += own;
        break;
      case Held::everywhere:
        bytes.shared += own;
        break;
      case Held::block:
        bytes.blocks[planned.block] += own;
        break;
      case Held::last:
        bytes.final += own;
        break;
    }
  }
  return bytes;
}

}  // namespace troupe::spec
