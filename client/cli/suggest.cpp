#include "client/cli/suggest.h"

#include <algorithm>
#include <map>

namespace troupe::cli {

namespace {

using Words = std::map<std::string, std::string>;

/// Options of other tools that mean another thing to another command, by the command's name.
const std::map<std::string, Words> kNamesOfVerb = {
    {"serve",
     {{"--port", "--http"},
      {"--host", "--http"},
      {"--listen", "--http"},
      {"--listen-ip", "--http"},
      {"--listen-port", "--http"},
      {"--server-name", "--http"},
      {"--api", "--http"},
      {"--api-auth", "--api-keys"},
      {"--ssl-certfile", "--tls-cert"},
      {"--ssl-keyfile", "--tls-key"},
      {"--tls-certfile", "--tls-cert"},
      {"--tls-keyfile", "--tls-key"}}},
    {"start", {{"--host", "--listen"}, {"--address", ""}, {"--endpoint", "--listen"}}}};

const std::map<std::string, Words> kWhyOfVerb = {
    {"start",
     {{"--head", "what `troupe start` starts is the head; leave it out"},
      {"--address",
       "it starts a cluster of its own; `troupe join --connect ENDPOINT` adds this host's actors "
       "to one that runs"}}}};

/// Returns what the words say of an option; null if they do not have it.
const std::string* found_in(const Words& words, const std::string& option) {
  const auto found = words.find(option);
  return found == words.end() ? nullptr : &found->second;
}

const std::string* found_in(const std::map<std::string, Words>& verbs, const std::string& verb,
                            const std::string& option) {
  const auto words = verbs.find(verb);
  return words == verbs.end() ? nullptr : found_in(words->second, option);
}

}  // namespace

std::string name_here(std::string option, const std::string& verb) {
  static const Words kNames = {
      {"--num-inference-steps", "--steps"},
      {"--guidance-scale", "--guidance"},
      {"--cfg-scale", "--guidance"},
      {"--guidance-scale-2", "--guidance-2"},
      {"--ref-image", "--image"},
      {"--reference-image", "--image"},
      {"--input-image", "--image"},
      {"--first-frame", "--image"},
      {"--first-image", "--image"},
      {"--last-frame", "--last-image"},
      {"--end-image", "--last-image"},
      {"--end-img", "--last-image"},
      {"--mask-image", "--mask"},
      {"--control-net", "--controlnet"},
      {"--control-strength", "--control-scale"},
      {"--controlnet-conditioning-scale", "--control-scale"},
      {"--control-guidance-start", "--control-from"},
      {"--control-start", "--control-from"},
      {"--control-guidance-end", "--control-until"},
      {"--control-end", "--control-until"},
      {"--true-cfg-scale", "--guidance"},
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
      {"--type", "--weight-dtype int8; --dtype is the type that is computed in"},
      {"--offload-to-cpu", "--offload blocks"},
      {"--use-resolution-binning", "--resolution-binning"},
      {"-n", "--negative-prompt; --n is how many pictures"},
      {"-b", "--n"},
      {"-t", "--threads-per-actor"},
      {"-i", "--init-image"},
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
  if (const auto* own = found_in(kNamesOfVerb, verb, option)) return *own;
  const auto* found = found_in(kNames, option);
  return found ? *found : "";
}

std::string why_not_here(std::string option, const std::string& verb) {
  static const std::string kVae =
      "the VAE is the model's own, or that of --vae FILE where a cluster is started with it (run, "
      "plan, start, serve); --vae-parallel is how many actors decode";
  static const std::string kEncoders =
      "the text encoders are the model's own, or those of --text-encoder, --text-encoder-2 and "
      "--text-encoder-3 where a cluster is started with them (run, plan, start, serve)";
  static const std::string kPlaces =
      "all of a model computes on the same kind of device; leave it out";
  static const std::string kMode =
      "the verb and the model say what is made: `troupe run` with --init-image begins with a "
      "picture; leave it out";
  static const std::string kLevels =
      "noise levels are those of the checkpoint, or of --timesteps or --sigmas";
  static const Words kWhy = {
      {"--split-scheme", "patches are always runs of token rows; leave it out"},
      {"--use-torch-compile", "no model is compiled here; leave it out"},
      {"--no-use-resolution-binning", "off unless --resolution-binning is given; leave it out"},
      {"--rng", "noise is always that of torch's CPU generator; leave it out"},
      {"--clip-skip",
       "text always comes from the layer that the pipeline takes it from; leave it out"},
      {"--vae", kVae},
      {"--vae-path", kVae},
      {"--clip-l", kEncoders},
      {"--clip-g", kEncoders},
      {"--t5xxl", kEncoders},
      {"--vae-on-cpu", kPlaces},
      {"--clip-on-cpu", kPlaces},
      {"--mode", kMode},
      {"-M", kMode},
      {"--schedule", kLevels},
      {"--lora-model-dir", "--lora FILE[:SCALE] names each file itself"},
      {"--enable-model-cpu-offload",
       "text encoders pass through memory block by block anyway; leave it out, or, for less memory "
       "still, see --offload blocks"}};
  std::replace(option.begin(), option.end(), '_', '-');
  if (const auto* own = found_in(kWhyOfVerb, verb, option)) return *own;
  const auto* found = found_in(kWhy, option);
  return found ? *found : "";
}

std::string command_here(const std::string& word, const std::string& next) {
  static const Words kOfJobs = {{"list", "troupe jobs"},
                                {"status", "troupe jobs ID"},
                                {"stop", "troupe cancel"},
                                {"delete", "troupe cancel"},
                                {"logs", "troupe logs"}};
  if (word == "job")
    if (const auto* own = found_in(kOfJobs, next)) return *own;
  static const Words kNames = {
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
  const auto* found = found_in(kNames, word);
  return found ? *found : "";
}

}  // namespace troupe::cli
