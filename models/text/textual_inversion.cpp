#include "models/text/textual_inversion.h"

#include <map>
#include <stdexcept>

#include "base/files.h"
#include "base/format.h"
#include "models/spec/fingerprint.h"
#include "models/spec/json_text.h"
#include "models/spec/lora_spec.h"
#include "models/spec/tensor_values.h"
#include "models/spec/torch_file.h"
#include "models/text/special_tokens.h"
#include "models/text/tokenizers.h"

namespace troupe::models {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostBytes = std::size_t{4} << 20;
constexpr std::uint64_t kMostHeader = std::uint64_t{1} << 20;
constexpr std::size_t kMostTokenBytes = 256;
constexpr std::int64_t kBeginAndEnd = 2;
constexpr const char* kWebUiName = "emb_params";
/// Keys of the tensors for the first text encoder and for the second.
constexpr const char* kOfEncoder[] = {"clip_l", "clip_g"};

[[noreturn]] void refuse_inversion(const fs::path& file, const std::string& why) {
  throw std::runtime_error("[textual inversion] " + file.string() + ": " + why);
}

bool takes_words(const spec::TextEncoderSpec& encoder) {
  return encoder.textual_inversion && !encoder.absent &&
         std::holds_alternative<spec::ClipSpec>(encoder.config);
}

/// The tensors of a file by the text encoder that they are for, and the word that it names.
struct Layout {
  std::map<std::size_t, const spec::TensorEntry*> tensors;
  std::string token;
};

Layout layout_of(const fs::path& file, const spec::WeightIndex& index) {
  const auto& all = index.tensors();
  const auto stem = file.stem().string();
  if (all.size() == 2 && index.contains(kOfEncoder[0]) && index.contains(kOfEncoder[1]))
    return {{{0, index.find(kOfEncoder[0])}, {1, index.find(kOfEncoder[1])}}, stem};
  if (all.size() == 1 && all[0].name != kOfEncoder[0] && all[0].name != kOfEncoder[1])
    return {{{0, &all[0]}}, all[0].name == kWebUiName ? stem : all[0].name};
  std::string names;
  for (std::size_t i = 0; i < all.size() && i < 3; ++i)
    names += (i == 0 ? "" : ", ") + spec::in_quotes(all[i].name);
  refuse_inversion(
      file, fmt::format("has {} ({}{}), and a textual inversion has one tensor, or of SDXL "
                        "\"clip_l\" and \"clip_g\"",
                        all.size() == 1 ? "one tensor" : fmt::format("{} tensors", all.size()),
                        names, all.size() > 3 ? ", …" : ""));
}

TextualInversion::Rows rows_of(const fs::path& file, const spec::TensorEntry& entry,
                               const std::string& bytes, const spec::TextEncoderSpec& encoder) {
  const auto refuse = [&](const std::string& why) {
    refuse_inversion(file, "tensor " + spec::in_quotes(entry.name) + " " + why);
  };
  const auto& clip = std::get<spec::ClipSpec>(encoder.config);
  const auto& shape = entry.shape;
  if (entry.dtype != spec::Dtype::float32 && entry.dtype != spec::Dtype::float16 &&
      entry.dtype != spec::Dtype::bfloat16 && entry.dtype != spec::Dtype::float64)
    refuse(fmt::format("has dtype {}, a floating one is needed", spec::dtype_name(entry.dtype)));
  if (shape.empty() || shape.size() > 2 || shape.back() != clip.hidden_size)
    refuse(
        fmt::format("has shape {}, and {} takes vectors of {} values: it was made for another "
                    "model",
                    spec::shape_text(shape), encoder.component, clip.hidden_size));
  TextualInversion::Rows rows;
  rows.count = shape.size() == 1 ? 1 : shape[0];
  const auto most = clip.max_position_embeddings - kBeginAndEnd;
  if (rows.count < 1 || rows.count > most)
    refuse(fmt::format("has {} vectors, and a prompt has room for 1 to {}", rows.count, most));
  try {
    rows.values = spec::float_values(entry, bytes);
  } catch (const std::runtime_error& error) {
    refuse_inversion(file, error.what());
  }
  return rows;
}

void check_kind(const fs::path& file, const spec::ModelSpec& model) {
  if (model.text_encoders.empty() || !takes_words(model.text_encoders[0]))
    refuse_inversion(file, model.pipeline_class +
                               " takes no textual inversions: those of Stable Diffusion, SDXL and "
                               "FLUX do");
  if (file.extension() != ".safetensors" && !spec::is_torch_name(file))
    refuse_inversion(file, "is no .safetensors, .pt or .bin file");
}

/// Reads which tensors a file has. A1111's pickled files keep theirs one level deeper, under the
/// name "*".
spec::WeightIndex index_of(const fs::path& file, const std::string& bytes) {
  if (!spec::is_torch_file(file) && !spec::is_torch_name(file))
    return spec::WeightIndex::of_bytes(bytes, file, kMostHeader);
  const auto index = spec::WeightIndex::read_file(file);
  const auto* own = index.find("string_to_param.*");
  if (own == nullptr) return index;
  spec::TensorEntry renamed = *own;
  renamed.name = kWebUiName;
  return index.with_tensors({renamed});
}

}  // namespace

std::vector<std::string> TextualInversion::tokens(std::size_t encoder) const {
  std::vector<std::string> all;
  for (std::int64_t i = 0; i < of_encoder.at(encoder).count; ++i)
    all.push_back(i == 0 ? token : fmt::format("{}_{}", token, i));
  return all;
}

TextualInversion read_textual_inversion(const TextualInversionFile& asked,
                                        const spec::ModelSpec& model) {
  const auto& file = asked.path;
  check_kind(file, model);
  const auto bytes = read_file(file, kMostBytes);
  if (const auto why = spec::lfs_pointer_text(bytes); !why.empty()) refuse_inversion(file, why);
  const auto index = index_of(file, bytes);
  const auto layout = layout_of(file, index);
  TextualInversion read;
  read.token = asked.token.empty() ? layout.token : asked.token;
  read.fingerprint = spec::bytes_fingerprint(bytes);
  read.of_encoder.resize(model.text_encoders.size());
  if (read.token.empty() || read.token.size() > kMostTokenBytes)
    refuse_inversion(file, fmt::format("its word has {} bytes, 1 to {} are taken",
                                       read.token.size(), kMostTokenBytes));
  for (const auto& [encoder, entry] : layout.tensors) {
    if (encoder >= model.text_encoders.size() || !takes_words(model.text_encoders[encoder]))
      refuse_inversion(file, fmt::format("tensor \"{}\" is for a second text encoder of CLIP's, "
                                         "which this model does not have: it was made for SDXL",
                                         entry->name));
    read.of_encoder[encoder] = rows_of(file, *entry, bytes, model.text_encoders[encoder]);
    if (read.of_encoder[encoder].count != read.of_encoder[0].count)
      refuse_inversion(file, "\"clip_l\" and \"clip_g\" have different numbers of vectors");
  }
  return read;
}

std::vector<TextualInversion> read_textual_inversions(
    const std::vector<TextualInversionFile>& files, const spec::ModelSpec& model) {
  if (files.size() > kMaxTextualInversions)
    throw std::runtime_error(fmt::format("embeddings are {}: at most {} are taken", files.size(),
                                         kMaxTextualInversions));
  std::vector<TextualInversion> all;
  std::map<std::size_t, AnyTokenizer> tokenizers;
  for (const auto& file : files) {
    auto read = read_textual_inversion(file, model);
    for (std::size_t i = 0; i < read.of_encoder.size(); ++i) {
      if (read.of_encoder[i].count == 0) continue;
      const auto& encoder = model.text_encoders[i];
      if (!tokenizers.contains(i)) tokenizers.emplace(i, load_tokenizer(encoder));
      auto& tokenizer = std::get<ClipTokenizer>(tokenizers.at(i));
      const auto tokens = read.tokens(i);
      for (const auto& token : tokens)
        if (tokenizer.added().id(token) >= 0)
          refuse_inversion(
              file.path,
              fmt::format("the word {} is one of {} already: give it another, as in {}:WORD",
                          spec::in_quotes(token), encoder.tokenizer.folder.string(),
                          file.path.string()));
      tokenizer = tokenizer.with_tokens(tokens);
    }
    all.push_back(std::move(read));
  }
  return all;
}

void check_learned_words(const std::vector<std::string>& texts,
                         const std::vector<TextualInversion>& learned,
                         const spec::ModelSpec& model) {
  for (std::size_t i = 0; i < model.text_encoders.size(); ++i) {
    const auto& encoder = model.text_encoders[i];
    std::vector<std::string> tokens;
    for (const auto& word : learned)
      for (auto& token : word.tokens(i))
        tokens.push_back(std::move(token));
    if (!encoder.textual_inversion || encoder.absent) continue;
    if (tokens.empty() && !encoder.learned_words) continue;
    auto tokenizer = load_tokenizer(encoder);
    if (auto* clip = std::get_if<ClipTokenizer>(&tokenizer); clip && !tokens.empty())
      *clip = clip->with_tokens(tokens);
    for (const auto& text : texts)
      std::visit([&](const auto& any) { any.added().with_all_vectors(text); }, tokenizer);
  }
}

}  // namespace troupe::models
