#include "tests/process/support/img2img.h"

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
  request.sampler = of.value("sampler", "");
  request.guidance_rescale = of.value("guidance_rescale", 0.0);
  return out;
}

}  // namespace troupe::testing
