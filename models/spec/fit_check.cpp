#include "models/spec/fit_check.h"

#include <stdexcept>

#include "base/format.h"

namespace troupe::spec {

void FitCheck::require(const char* what, std::int64_t wanted, const std::string& of,
                       std::int64_t has) const {
  if (wanted == has) return;
  throw std::runtime_error(
      fmt::format("[read_model] {}: {}{} = {} does not fit {} = {}", model.folder.string(),
                  model.transformer.unet() ? "unet " : "transformer ", what, wanted, of, has));
}

void check_fit(const ModelSpec& spec) {
  const FitCheck fit(spec);
  std::visit([&](const auto& family) { check_fit(family, fit); }, spec.transformer.family);
  fit.require("in_channels", spec.transformer.in_channels, "vae latent_channels",
              spec.vae.latent_channels);
}

}  // namespace troupe::spec
