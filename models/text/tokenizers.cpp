#include "models/text/tokenizers.h"

#include <stdexcept>

#include "base/format.h"
#include "models/text/chat_template.h"
#include "models/text/special_tokens.h"

namespace troupe::models {
namespace {

struct LoadTokenizer {
  const spec::TokenizerSpec& files;
  AnyTokenizer operator()(const spec::T5Spec&) const { return Tokenizer::load(files); }
  AnyTokenizer operator()(const spec::ClipSpec&) const { return ClipTokenizer::load(files.folder); }
  AnyTokenizer operator()(const spec::BertSpec&) const { return BertTokenizer::load(files.folder); }
  AnyTokenizer operator()(const spec::QwenTextSpec&) const {
    return QwenTokenizer::load(files.folder);
  }
};

}  // namespace

AnyTokenizer load_tokenizer(const spec::TextEncoderSpec& encoder) {
  if (encoder.frame.chat_template != spec::ChatTemplate::none)
    check_chat_template(encoder.tokenizer.folder, encoder.frame.chat_template);
  auto tokenizer = std::visit(LoadTokenizer{encoder.tokenizer}, encoder.config);
  const auto rows =
      std::visit([](const auto& config) { return config.vocab_size; }, encoder.config);
  const auto own = std::visit([](const auto& any) { return any.own_vocab_size(); }, tokenizer);
  if (own > rows) {
    throw std::runtime_error(fmt::format(
        "[load_tokenizer] {}: the vocabulary has ids up to {}, but {} has rows for {} tokens: they "
        "are not of one model",
        encoder.tokenizer.folder.string(), own - 1, encoder.component, rows));
  }
  const auto& added =
      std::visit([](const auto& any) -> const AddedVocabulary& { return any.added(); }, tokenizer);
  if (const auto token = added.beyond(rows); !token.empty()) {
    throw std::runtime_error(fmt::format(
        "[load_tokenizer] {}: token \"{}\" has id {}, but {} has rows for {} tokens: in Python "
        "text_encoder.resize_token_embeddings(len(tokenizer)) makes room for it",
        encoder.tokenizer.folder.string(), token, added.id(token), encoder.component, rows));
  }
  return tokenizer;
}

spec::ModelSpec read_model_folder(const std::filesystem::path& folder) {
  auto model = spec::read_model_spec(folder);
  for (auto& encoder : model.text_encoders) {
    if (encoder.absent) continue;
    encoder.learned_words = std::visit(
        [](const auto& any) { return any.added().has_learned_words(); }, load_tokenizer(encoder));
  }
  return model;
}

}  // namespace troupe::models
