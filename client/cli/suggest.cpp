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
      {"--vae-parallel-size", "--vae-parallel"},
      {"--use-cuda-graph", "--cuda-graphs on"},
      {"--use-teacache", "--step-cache teacache"},
      {"--use-fbcache", "--step-cache first-block"},
      {"--enable-sequential-cpu-offload", "--offload blocks"},
      {"--enable-tiling", "--vae-tiling"},
      {"--warmup-steps", "--warmup"},
      {"--attn-layer-num-for-pp", "--stages"},
      {"--address", "--connect"},
      {"--endpoint", "--connect"},
      {"--host", "--connect"},
      {"--sampling-method", "--sampler"},
      {"--sampler-name", "--sampler"},
      {"--batch-count", "--n"},
      {"--batch-size", "--n"},
      {"--cfg", "--guidance"},
      {"--diffusion-model", "--model"},
      {"--ckpt", "--model"},
      {"--checkpoint", "--model"},
      {"--init-img", "--init-image"},
      {"--denoising-strength", "--strength"},
      {"--type", "--dtype"},
      {"--precision", "--dtype"},
      {"--threads", "--threads-per-actor"},
      {"--num-gpus", "--actors"},
      {"--num-cpus", "--actors"},
      {"--num-workers", "--actors"},
      {"--listen-port", "--http"},
      {"--port", "--listen"},
      {"--node-ip-address", "--tensor-host"},
      {"--no-wait", "--detach"},
      {"--metrics-export-port", "--metrics-port"}};
  std::replace(option.begin(), option.end(), '_', '-');
  const auto found = kNames.find(option);
  return found == kNames.end() ? "" : found->second;
}

std::string why_not_here(std::string option) {
  static const std::map<std::string, std::string> kWhy = {
      {"--split-scheme", "patches are always runs of token rows; leave it out"},
      {"--use-torch-compile", "no model is compiled here; leave it out"},
      {"--enable-model-cpu-offload",
       "text encoders pass through memory block by block anyway; leave it out, or, for less memory "
       "still, see --offload blocks"}};
  std::replace(option.begin(), option.end(), '_', '-');
  const auto found = kWhy.find(option);
  return found == kWhy.end() ? "" : found->second;
}

std::string command_here(const std::string& word) {
  static const std::map<std::string, std::string> kNames = {
      {"up", "troupe start"},         {"head", "troupe start"},
      {"cluster", "troupe start"},    {"init", "troupe start"},
      {"down", "troupe stop"},        {"shutdown", "troupe stop"},
      {"quit", "troupe stop"},        {"worker", "troupe join"},
      {"attach", "troupe repl"},      {"console", "troupe repl"},
      {"shell", "troupe repl"},       {"exec", "troupe repl -c"},
      {"job", "troupe submit"},       {"generate", "troupe run"},
      {"paint", "troupe run"},        {"txt2img", "troupe run"},
      {"img2img", "troupe run"},      {"sample", "troupe run"},
      {"img_gen", "troupe run"},      {"list", "troupe status or troupe jobs"},
      {"ls", "troupe jobs"},          {"ps", "troupe status"},
      {"summary", "troupe status"},   {"memory", "troupe status"},
      {"nodes", "troupe status"},     {"health-check", "troupe status"},
      {"dashboard", "troupe serve"},  {"server", "troupe serve"},
      {"api", "troupe serve"},        {"web", "troupe serve"},
      {"kill", "troupe cancel"},      {"rm", "troupe cancel"},
      {"drain-node", "troupe drain"}, {"trace", "troupe timeline"},
      {"explain", "troupe plan"},     {"show", "troupe inspect"},
      {"metadata", "troupe inspect"}, {"info", "troupe inspect"},
      {"watch", "troupe top"},        {"monitor", "troupe top"}};
  const auto found = kNames.find(word);
  return found == kNames.end() ? "" : found->second;
}

}  // namespace troupe::cli
