#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/spec/model_plugin.h"

/// `transformer/config.json` of a PlainDiT: a diffusion transformer whose blocks attend to the
/// picture's tokens alone; time and text modulate them.
class PlainDiTSpec final : public troupe::spec::UserTransformer {
 public:
  static std::shared_ptr<const PlainDiTSpec> read(const troupe::spec::ConfigReader& config);

  troupe::spec::TransformerFacts facts() const override;
  std::vector<troupe::spec::PlannedTensor> tensors() const override;
  void check_fit(const troupe::spec::FitCheck& fit) const override;

  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t layers = 0;
  std::int64_t channels = 0;    // of the latents
  std::int64_t patch = 0;       // side of a token in latent pixels
  std::int64_t side = 0;        // of a picture in latent pixels, where a request names no size
  std::int64_t text_width = 0;  // of the text encoder's states

  std::int64_t width() const { return heads * head_dim; }
};

inline std::string plain_block(std::int64_t block) {
  return "blocks." + std::to_string(block) + ".";
}
