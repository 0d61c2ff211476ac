#include "client/cli/suggest.h"

#include <algorithm>
#include <map>

namespace troupe::cli {

std::string name_here(std::string option) {
  static const std::map<std::string, std::string> kNames = {
      {"--num-inference-steps", "--steps"},
      {"--guidance-scale", "--guidance"},
      {"--cfg-scale", "--guidance"},
      {"--num-images-per-prompt", "--n"},
      {"--num-images", "--n"},
      {"--negprompt", "--negative-prompt"},
      {"--neg-prompt", "--negative-prompt"},
      {"--scheduler", "--sampler"},
      {"--num-frames", "--frames"},
      {"--lora-path", "--lora"},
      {"--out", "--output"},
      {"--num-pipeline-patch", "--patches"},
      {"--pipefusion-parallel-degree", "--pp"},
      {"--use-cfg-parallel", "--cfg"},
      {"--data-parallel-degree", "--dp"},
      {"--ulysses-degree", "--ulysses"},
      {"--ring-degree", "--ring"},
      {"--tensor-parallel-degree", "--tp"},
      {"--use-parallel-vae", "--vae-parallel"},
      {"--enable-tiling", "--vae-tiling"},
      {"--warmup-steps", "--warmup"},
      {"--attn-layer-num-for-pp", "--stages"},
      {"--address", "--connect"},
      {"--endpoint", "--connect"},
      {"--host", "--connect"}};
  std::replace(option.begin(), option.end(), '_', '-');
  const auto found = kNames.find(option);
  return found == kNames.end() ? "" : found->second;
}

}  // namespace troupe::cli
