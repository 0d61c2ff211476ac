#include "tests/process/support/img2img.h"

#include "tests/support/text.h"

namespace troupe::testing {

Submission submission_of(Reference& reference, const nlohmann::json& of, Parallelism degrees) {
  auto out = reference.submission(of, degrees);
  auto& request = out.request;
  for (const auto& lora : of.value("loras", nlohmann::json::array()))
    request.loras.push_back(
        {kFixtures + "lora/" + lora.at("file").get<std::string>(), lora.at("scale").get<double>()});
  for (const auto& embedding : of.value("embeddings", nlohmann::json::array()))
    request.embeddings.push_back(
        {kFixtures + "embeddings/" + embedding.at("file").get<std::string>(),
         embedding.at("token").get<std::string>()});
  if (of.contains("init_image")) {
    request.init_image = read_all(kFixtures + of.at("init_image").get<std::string>());
    request.strength = of.at("strength").get<double>();
  }
  if (of.contains("mask_image"))
    request.mask_image = read_all(kFixtures + of.at("mask_image").get<std::string>());
  request.sampler = of.value("sampler", "");
  request.guidance_rescale = of.value("guidance_rescale", 0.0);
  return out;
}

}  // namespace troupe::testing
