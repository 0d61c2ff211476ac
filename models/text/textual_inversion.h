#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "models/spec/model_spec.h"

namespace troupe::models {

/// A word that was learned for a model: rows of its text encoders' token embeddings, which a prompt
/// uses by writing the word.
struct TextualInversion {
  struct Rows {
    std::int64_t count = 0;
    std::vector<float> values;  // [count, hidden size of the encoder]
  };
  std::string token;
  std::uint64_t fingerprint = 0;  // of the file's bytes
  std::vector<Rows> of_encoder;   // by the model's text encoders; none where it is not for them

  /// The tokens of the rows that an encoder gets, as diffusers names them: T, T_1, T_2, ….
  std::vector<std::string> tokens(std::size_t encoder) const;
};

/// File that a textual inversion is read from, and the word that stands for it; "" = the word that
/// the file names.
struct TextualInversionFile {
  std::filesystem::path path;
  std::string token;
};

/// The largest number of files that one request has.
inline constexpr std::size_t kMaxTextualInversions = 64;

/// Reads one safetensors file, or one of torch.save's, in one of three layouts: a single tensor
/// under the name of its word (diffusers'); a single one that is called `emb_params` (the web
/// UI's), whose word is the file's name without its ending (in its pickled files
/// `string_to_param`); `clip_l` and `clip_g` (SDXL's) likewise. A single tensor is for the first
/// text encoder, as in diffusers. Throws std::runtime_error naming file and cause: a model whose
/// pipeline takes none, another layout, width or type, no vector or more than a prompt has room
/// for, a value that is not finite.
TextualInversion read_textual_inversion(const TextualInversionFile& file,
                                        const spec::ModelSpec& model);

/// Reads all files of a request, and holds their words against the vocabularies of the text
/// encoders. Throws also where there are too many, and for a word that a vocabulary or another file
/// has already.
std::vector<TextualInversion> read_textual_inversions(
    const std::vector<TextualInversionFile>& files, const spec::ModelSpec& model);

/// Refuses texts (std::runtime_error) in which the words of the folder, or of `learned`, make more
/// than 64 KiB when they are written out for all their vectors, as the pipeline does.
void check_learned_words(const std::vector<std::string>& texts,
                         const std::vector<TextualInversion>& learned,
                         const spec::ModelSpec& model);

}  // namespace troupe::models
