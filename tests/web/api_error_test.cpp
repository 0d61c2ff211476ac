#include "web/api_error.h"

#include "tests/support/doctest.h"

using namespace troupe::web;

TEST_CASE("a refusal's field is named, without the room that refused") {
  const std::pair<const char*, const char*> kSaid[] = {
      {"[plan] height is 257: this model takes multiples of 16", "height"},
      {"[plan] cfg is 2, but guidance is 1: there is no second branch", "cfg"},
      {"[plan] vae-parallel is 8, but a replica of this mesh has 2", "vae"},
      {"[plan] patches is 9: at most 8", "num_pipeline_patch"},
      {"[plan] negative prompt has 9 bytes: at most 8", "negative_prompt"},
      {"[plan] negative prompts are 3, but there is 1 prompt", "negative_prompts"},
      {"[plan] step cache threshold is 3, but there is no step cache", "step_cache_threshold"},
      {"[plan] step cache is first-block: steps are too few", "step_cache"},
      {"[plan] guidance rescale is 2, but guidance is 1", "guidance_rescale"},
      {"[plan] init image is given, but this model makes videos", "init_image"},
      {"init_latents of shape [1]: no", "init_latents"},
      {"[submit] priority is 101, it must be from -100 to 100", "priority"},
      {"model is missing: the cluster was started without one", "model"},
      {"[plan] resolution_binning is on, but X has no bins", "resolution_binning"},
      {"[plan] prompt embeds have a tensor \"x\"", "prompt_embeds"},
      {"[plan] negative_pooled_prompt_embeds is missing from the prompt embeds", "prompt_embeds"},
      {"[plan] prompt_attention_mask_2 has the shape [1]", "prompt_embeds"},
      {"[plan] heightened", ""},
      {"the cluster has 2 actors", ""}};
  for (const auto& [text, field] : kSaid) {
    CAPTURE(text);
    const auto error = to_api_error({"bad_request", text});
    CHECK(error.param == field);
    CHECK(error.what()[0] != '[');
  }
  CHECK(to_api_error({"failed", "height is lost"}).param == "");
}

TEST_CASE(
    "what a cluster says names fields as HTTP does, not options or the command line's words") {
  const std::pair<const char*, const char*> kSaid[] = {
      {"patches is 9: at most 8", "num_pipeline_patch is 9: at most 8"},
      {"vae-parallel is 8, but a replica has 2", "vae is 8, but a replica has 2"},
      {"init image is given, but this model makes videos",
       "init_image is given, but this model makes videos"},
      {"lora /l is not there", "lora /l is not there"},
      {"old values may show; --method exact uses none",
       "old values may show; `method` exact uses none"},
      {"--may-batch has no effect: --max-batch 1", "`may_batch` has no effect: --max-batch 1"},
      {"--vae-tiling needs 3 GB, --vae-parallel 2 and an --init-image less",
       "`vae_tiling` needs 3 GB, `vae` 2 and an `init_image` less"},
      {"differs in --negative-prompt", "differs in `negative_prompt`"},
      {"ends with --", "ends with --"},
      {"", ""}};
  for (const auto& [text, said] : kSaid)
    CHECK(in_fields(text) == said);
  CHECK(std::string(
            to_api_error({"bad_request", "[plan] frames is 65, but X makes pictures"}).what()) ==
        "num_frames is 65, but X makes pictures");
}

TEST_CASE("a cluster that stops is no conflict, and a job of before is gone") {
  CHECK(to_api_error({"cancelled", ""}).status == 409);
  CHECK(to_api_error({"stopped", ""}).status == 503);
  CHECK(to_api_error({"refused", ""}).status == 503);
  CHECK(to_api_error({"gone", ""}).status == 410);
  CHECK(to_json(to_api_error({"gone", ""})).at("error").at("type") == "not_found_error");
}
