#include "transport/wire/request_rules.h"

#include "client/cli/request_options.h"
#include "client/cli/verb.h"
#include "client/convert.h"
#include "controller/plan/request_rules.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"
#include "web/calls.h"

using namespace troupe;
using testing::message_of;

namespace {

struct Row {
  std::vector<std::string> options;  // of the command
  std::string body;                  // fields of the same request in JSON, beside the prompt
  wire::JobField field;
  std::string text;  // of the refusal, with fields in backquotes
};

/// Returns what the command says of options before it asks anybody.
std::string of_command(std::vector<std::string> words) {
  cli::Options app;
  cli::RequestOptions options;
  cli::add_request_options(app, options);
  cli::add_degree_options(app, options);
  cli::add_queue_options(app, options);
  words.insert(words.end(), {"--prompt", "a"});
  app.parse(std::move(words));
  REQUIRE(app.remaining().empty());
  return message_of([&] { cli::settle(options); });
}

/// Calls `check` with the submission of a body; what it refuses is told as a gateway tells it.
web::ApiError of_gateway(const std::string& body, const std::function<void(wire::JobSpec)>& check) {
  const auto call = web::parse_job("{\"prompt\": [\"a\"]" + body + "}");
  const auto spec = client::to_wire(call.submission);
  REQUIRE(spec);
  try {
    check(spec.value());
  } catch (const wire::BadField& error) {
    return call.words.in_words(
        web::to_api_error({ErrorCode::bad_request, error.what(), to_string(error.field)}));
  }
  return {200, ErrorCode::bad_request, "accepted"};
}

/// A text as HTTP has it: the field that it begins with stands without quotes.
std::string as_json(std::string text) {
  if (!text.starts_with('`')) return text;
  text.erase(text.find('`', 1), 1);
  return text.substr(1);
}

}  // namespace

TEST_CASE("command, HTTP and controller refuse by the same rules, in the same words") {
  using enum wire::JobField;
  const std::string long_text(5000, 'x');
  const Row kRows[] = {
      {{"--patches", "4", "--method", "exact"},
       R"(, "num_pipeline_patch": 4, "method": "exact")",
       num_pipeline_patch,
       "`num_pipeline_patch` is 4, but `method` is exact: only pipefusion and distrifusion have "
       "patches"},
      {{"--kv", "predict"},
       R"(, "kv": "predict")",
       kv,
       "`kv` is predict, but `method` is exact: only pipefusion and distrifusion have K,V that are "
       "not fresh"},
      {{"--group-norm", "stale"},
       R"(, "group_norm": "stale")",
       group_norm,
       "`group_norm` is stale, but `method` is exact, which has no patches: it needs distrifusion"},
      {{"--exchange", "naive"},
       R"(, "exchange": "naive")",
       exchange,
       "`exchange` is naive, but `method` is exact, which has no patches: it needs distrifusion"},
      {{"--exchange", "naive", "--patches", "2"},
       R"(, "exchange": "naive", "num_pipeline_patch": 2)",
       exchange,
       "`exchange` is naive, but `method` is pipefusion: it needs distrifusion"},
      {{"--exchange", "naive", "--method", "distrifusion", "--step-cache", "teacache"},
       R"(, "exchange": "naive", "method": "distrifusion", "step_cache": "teacache")",
       exchange,
       "`exchange` is naive, but `step_cache` is teacache: it takes a step of the whole picture "
       "after a loss"},
      {{"--exchange", "none", "--group-norm", "synchronous", "--method", "distrifusion"},
       R"(, "exchange": "none", "group_norm": "synchronous", "method": "distrifusion")",
       exchange,
       "`exchange` is none, but `group_norm` is synchronous: one exchanges in every step, the "
       "other never"},
      {{"--step-cache-threshold", "0.1"},
       R"(, "step_cache_threshold": 0.1)",
       step_cache_threshold,
       "`step_cache_threshold` needs `step_cache` first-block or teacache"},
      {{"--patches", "2", "--warmup", "30", "--steps", "20"},
       R"(, "num_pipeline_patch": 2, "warmup_steps": 30, "steps": 20)",
       warmup_steps,
       "`warmup_steps` is 30, but `steps` is 20"},
      {{"--refill-steps", "3"},
       R"(, "refill_steps": [3])",
       refill_steps,
       "`refill_steps` needs `method` pipefusion or distrifusion, or `step_cache`: else nothing is "
       "kept from step to step"},
      {{"--refill-steps", "0,3", "--patches", "2"},
       R"(, "refill_steps": [0, 3], "num_pipeline_patch": 2)",
       refill_steps,
       "`refill_steps` has 0 out of place: steps after the warm-up are named, in order, each once"},
      {{"--refill-steps", "3,40", "--patches", "2", "--steps", "20"},
       R"(, "refill_steps": [3, 40], "num_pipeline_patch": 2, "steps": 20)",
       refill_steps,
       "`refill_steps` has 40, but `steps` is 20"},
      {{"--timesteps", "900,5", "--sigmas", "1,0"},
       R"(, "timesteps": [900, 5], "sigmas": [1, 0])",
       timesteps,
       "`timesteps` and `sigmas` do not go together"},
      {{"--strength", "0.5"},
       R"(, "strength": 0.5)",
       strength,
       "`strength` needs `init_image`, the picture to begin with"},
      {{"--seed", "1", "--seed", "2"},
       R"(, "picture_seeds": [1, 2])",
       picture_seeds,
       "`picture_seeds` has 2 values, but there is 1 picture (prompts × `images_per_prompt`)"},
      {{"--negative-prompt", "a", "--negative-prompt", "b", "--n", "3"},
       R"(, "negative_prompts": ["a", "b"], "images_per_prompt": 3)",
       negative_prompts,
       "`negative_prompts` has 2 texts, but there is 1 prompt and 3 pictures"},
      {{"--clean-caption", "--negative-prompt", long_text},
       R"(, "clean_caption": true, "negative_prompt": ")" + long_text + "\"",
       negative_prompt,
       "`negative_prompt` has 5000 bytes: with `clean_caption` at most 4096 are taken"},
      {{"--dp", "2"},
       R"(, "dp": 2)",
       dp,
       "`dp` is 2, but there is only 1 picture to split (prompts × `images_per_prompt`)"},
      {{"--cfg", "2", "--guidance", "0"},
       R"(, "cfg": 2, "guidance_scale": 0)",
       cfg,
       "`cfg` is 2, but `guidance_scale` is 0: without guidance there is no second branch"},
      {{"--pp", "32", "--tp", "33"},
       R"(, "pp": 32, "tp": 33)",
       tp,
       "`tp` is 33: the degrees need 1056 actors, and no cluster has more than 1024"},
      {{"--pp", "2", "--stages", "5"},
       R"(, "pp": 2, "stages": [5])",
       stages,
       "`stages` lists 1 stage, but `pp` is 2"},
      {{"--cfg", "2", "--vae-parallel", "3"},
       R"(, "cfg": 2, "vae": 3)",
       vae,
       "`vae` is 3, but the degrees give a picture 2 actors"},
      {{"--parallel", "auto", "--ring", "2"},
       R"(, "parallel": "auto", "ring": 2)",
       ring,
       "`ring` is 2, but `parallel` is auto, which picks the degrees"},
      {{"--parallel", "auto", "--stages", "2"},
       R"(, "parallel": "auto", "stages": [2])",
       stages,
       "`stages` is given, but `parallel` is auto, which picks the degrees"},
  };
  for (const auto& row : kRows) {
    CAPTURE(row.text.substr(0, 200));
    CHECK(of_command(row.options) == wire::name_fields(row.text, wire::option_of));
    // Client library and admission.
    const auto error = of_gateway(row.body, wire::check_submission);
    CHECK(std::string(error.what()) == as_json(row.text));
    CHECK(error.param == to_string(row.field));
    // Every plan that is made; it has filled in a strength.
    if (row.field == strength) continue;
    const auto planned = of_gateway(row.body, [&](const wire::JobSpec& spec) {
      CHECK(message_of([&] { plan::check(spec.request, spec.parallelism); }) ==
            "[plan] " + row.text);
      plan::check(spec.request, spec.parallelism);
    });
    CHECK(std::string(planned.what()) == std::string(error.what()));
  }
}

TEST_CASE(
    "naive patches, which need no warm-up, are taken with any, as the controller takes them") {
  CHECK(of_command({"--exchange", "naive", "--method", "distrifusion", "--patches", "2", "--warmup",
                    "30", "--steps", "20"}) == "");
  wire::ImageRequest request;
  request.prompts = {"a"};
  request.method = Method::distrifusion;
  request.exchange = PatchExchange::naive;
  request.num_pipeline_patch = 2;
  request.warmup_steps = 30;
  request.steps = 20;
  CHECK_NOTHROW(wire::check_request(request));
}

TEST_CASE("a refused field has the name that its call has for it, wherever the text names it") {
  const auto call = web::parse_images(
      web::Fields::parse(R"({"prompt": "a", "n": 2, "picture_seeds": [1]})", web::other_names()),
      false, 0);
  const auto spec = client::to_wire(call.submission);
  REQUIRE(spec);
  const auto text = message_of([&] { wire::check_submission(spec.value()); });
  CHECK(call.words.in_words(web::to_api_error({ErrorCode::bad_request, text, "picture_seeds"}))
            .what() ==
        std::string("picture_seeds has 1 value, but there are 2 pictures (prompts × `n`)"));
}

TEST_CASE("names are put in for fields in backquotes, and nothing else") {
  const auto named = [](const std::string& text) {
    return wire::name_fields(text, wire::option_of);
  };
  CHECK(named("`steps` is 3, but `prompts`") == "--steps is 3, but --prompt");
  CHECK(named("`what` and `steps`, ``, `want_latents") == "`what` and --steps, ``, `want_latents");
  CHECK(named("a`steps`b`ring`") == "a--stepsb--ring");
  CHECK(named("`on_behalf_of` is no option") == "`on_behalf_of` is no option");
  CHECK(named("") == "");
}

TEST_CASE("priorities and names of shares have bounds") {
  wire::JobSpec spec;
  spec.priority = 100;
  spec.share = std::string(64, 's');
  CHECK_NOTHROW(wire::check_terms(spec));
  spec.priority = 101;
  CHECK(message_of([&] { wire::check_terms(spec); }) ==
        "`priority` is 101: a number from -100 to 100 is needed");
  spec.priority = -100;
  spec.on_behalf_of = std::string(65, 's');
  CHECK(message_of([&] { wire::check_terms(spec); }) ==
        "`on_behalf_of` has 65 bytes: at most 64 are taken");
  spec.on_behalf_of.pop_back();
  CHECK_NOTHROW(wire::check_terms(spec));
  spec.share += "s";
  CHECK(message_of([&] { wire::check_terms(spec); }) ==
        "`share` has 65 bytes: at most 64 are taken");
}
