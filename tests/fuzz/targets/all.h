#pragma once
#include "tests/fuzz/target.h"

namespace troupe::fuzz {

void run_wire(std::string_view bytes);
std::vector<std::string> seeds_wire();
void run_request(std::string_view bytes);
std::vector<std::string> seeds_request();
void run_safetensors(std::string_view bytes);
std::vector<std::string> seeds_safetensors();
void run_gguf(std::string_view bytes);
std::vector<std::string> seeds_gguf();
void run_torch(std::string_view bytes);
std::vector<std::string> seeds_torch();
void run_shard_index(std::string_view bytes);
std::vector<std::string> seeds_shard_index();
void run_lora(std::string_view bytes);
std::vector<std::string> seeds_lora();
void run_embedding(std::string_view bytes);
std::vector<std::string> seeds_embedding();
void run_configs(std::string_view bytes);
std::vector<std::string> seeds_configs();
void run_tokenizer_json(std::string_view bytes);
std::vector<std::string> seeds_tokenizer_json();
void run_spiece(std::string_view bytes);
std::vector<std::string> seeds_spiece();
void run_charsmap(std::string_view bytes);
std::vector<std::string> seeds_charsmap();
void run_caption(std::string_view bytes);
std::vector<std::string> seeds_caption();
void run_prompt(std::string_view bytes);
std::vector<std::string> seeds_prompt();
void run_png(std::string_view bytes);
std::vector<std::string> seeds_png();
void run_clip(std::string_view bytes);
std::vector<std::string> seeds_clip();
void run_latents(std::string_view bytes);
std::vector<std::string> seeds_latents();
void run_keys(std::string_view bytes);
std::vector<std::string> seeds_keys();
void run_endpoint(std::string_view bytes);
std::vector<std::string> seeds_endpoint();
void run_tensor_door(std::string_view bytes);
std::vector<std::string> seeds_tensor_door();
void run_tensor_dial(std::string_view bytes);
std::vector<std::string> seeds_tensor_dial();
void run_http_body(std::string_view bytes);
std::vector<std::string> seeds_http_body();
void run_http_form(std::string_view bytes);
std::vector<std::string> seeds_http_form();
void run_http_target(std::string_view bytes);
std::vector<std::string> seeds_http_target();
void run_http_picture(std::string_view bytes);
std::vector<std::string> seeds_http_picture();

}  // namespace troupe::fuzz
