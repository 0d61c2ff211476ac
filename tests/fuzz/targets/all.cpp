#include "tests/fuzz/targets/all.h"

namespace troupe::fuzz {

const std::vector<Target>& targets() {
  static const std::vector<Target> all{
      {"wire", run_wire, seeds_wire, 65536},
      {"request", run_request, seeds_request, 16384},
      {"safetensors", run_safetensors, seeds_safetensors, 16384},
      {"gguf", run_gguf, seeds_gguf, 8192},
      {"torch", run_torch, seeds_torch, 4096},
      {"lora", run_lora, seeds_lora, 8192},
      {"embedding", run_embedding, seeds_embedding, 4096},
      {"shard_index", run_shard_index, seeds_shard_index, 4096},
      {"configs", run_configs, seeds_configs, 24000},
      {"tokenizer_json", run_tokenizer_json, seeds_tokenizer_json, 16384},
      {"spiece", run_spiece, seeds_spiece, 8192},
      {"charsmap", run_charsmap, seeds_charsmap, 4096},
      {"caption", run_caption, seeds_caption, 2048},
      {"prompt", run_prompt, seeds_prompt, 2048},
      {"png", run_png, seeds_png, 8192},
      {"clip", run_clip, seeds_clip, 8192},
      {"latents", run_latents, seeds_latents, 8192},
      {"keys", run_keys, seeds_keys, 4096},
      {"endpoint", run_endpoint, seeds_endpoint, 512},
      {"tensor_door", run_tensor_door, seeds_tensor_door, 2048},
      {"http_body", run_http_body, seeds_http_body, 4096},
      {"http_form", run_http_form, seeds_http_form, 8192},
      {"http_target", run_http_target, seeds_http_target, 2048},
      {"http_picture", run_http_picture, seeds_http_picture, 16384},
      {"tensor_dial", run_tensor_dial, seeds_tensor_dial, 2048},
  };
  return all;
}

}  // namespace troupe::fuzz
