#include "web/api_error.h"

#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::web;

TEST_CASE("a refusal's field is the one that whoever refused has named, whatever its text says") {
  const auto refused =
      to_api_error({ErrorCode::bad_request, "[plan] `steps` is 0", "num_pipeline_patch"});
  CHECK(refused.param == "num_pipeline_patch");
  CHECK(refused.what() == std::string("steps is 0"));
  CHECK(to_api_error({ErrorCode::bad_request, "height is 257"}).param == "");
  CHECK(to_api_error({ErrorCode::bad_request, "prompt 0 is not UTF-8", "prompts"}).param ==
        "prompts");
}

TEST_CASE(
    "what a cluster says names fields as HTTP does, not options or the command line's words") {
  const std::pair<const char*, const char*> kSaid[] = {
      {"`num_pipeline_patch` is 9: at most 8", "num_pipeline_patch is 9: at most 8"},
      {"`vae` is 8, but `cfg` is 2", "vae is 8, but `cfg` is 2"},
      {"no field stands here, `cfg` is 2", "no field stands here, `cfg` is 2"},
      {"lora /l is not there", "lora /l is not there"},
      {"old values may show; --method exact uses none",
       "old values may show; `method` exact uses none"},
      {"--may-batch has no effect: --max-batch 1", "`may_batch` has no effect: --max-batch 1"},
      {"--vae-tiling needs 3 GB, --vae-parallel 2 and an --init-image less",
       "`vae_tiling` needs 3 GB, `vae` 2 and an `init_image` less"},
      {"differs in --negative-prompt", "differs in `negative_prompt`"},
      {"/a--height/b: may not be named", "/a--height/b: may not be named"},
      {"ends with --", "ends with --"},
      {"", ""}};
  for (const auto& [text, said] : kSaid)
    CHECK(in_fields(text) == said);
  CHECK(std::string(to_api_error(
                        {ErrorCode::bad_request, "[plan] `num_frames` is 65, but X makes pictures"})
                        .what()) == "num_frames is 65, but X makes pictures");
}

TEST_CASE("a cluster that stops is no conflict, and a job of before is gone") {
  CHECK(to_api_error({ErrorCode::cancelled, ""}).status == 409);
  CHECK(to_api_error({ErrorCode::stopped, ""}).status == 503);
  CHECK(to_api_error({ErrorCode::refused, ""}).status == 503);
  CHECK(to_api_error({ErrorCode::gone, ""}).status == 410);
  CHECK(to_json(to_api_error({ErrorCode::gone, ""})).at("error").at("type") == "not_found_error");
}
