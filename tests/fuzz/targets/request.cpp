// A request as it comes over the wire, as it goes into pictures and reports.
#include "tests/fuzz/targets/all.h"
#include "transport/json/request_json.h"
#include "transport/wire/client_messages.h"
#include "transport/wire/codec.h"

namespace troupe::fuzz {

void run_request(std::string_view bytes) {
  refusable([&] {
    const auto submission = wire::decode<wire::SubmitJob>(std::as_bytes(std::span(bytes)));
    const std::string text = wire::json_text(
        wire::request_json(submission.job.request, submission.job.request.steps, 0));
    require(nlohmann::json::accept(text), "a report is JSON whatever the request holds");
    require(text.find('\n') == std::string::npos, "on one line");
  });
}

std::vector<std::string> seeds_request() {
  wire::SubmitJob plain;
  wire::SubmitJob full;
  full.job.request.prompts = {"a \"quoted\" cat\n", "\xff\xfe"};
  full.job.request.negative_prompt = "bad \xc3\xa4";
  full.job.request.guidance_scale = 1e30;
  return {wire::encode(plain), wire::encode(full)};
}

}  // namespace troupe::fuzz
