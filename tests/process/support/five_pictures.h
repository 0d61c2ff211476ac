#pragma once
#include "tests/process/support/models.h"
#include "troupe/client.h"

namespace troupe::testing {

/// Five pictures, so that neither two nor three replicas get equal shares, of two prompts; five
/// token rows.
inline Submission five_pictures() {
  Submission submission;
  submission.model = checkpoint("tiny-pixart");
  auto& request = submission.request;
  request.prompts = {"a red circle", "a tree", "A purple controller, 4 cats!", "", "a blue square"};
  request.negative_prompt = "a dog";
  request.height = 80;
  request.width = 48;
  request.steps = 6;
  request.seed = 21;
  request.want_latents = true;
  return submission;
}

inline Submission one_picture(const Parallelism& degrees) {
  auto submission = five_pictures();
  submission.request.prompts.resize(1);
  submission.parallelism = degrees;
  return submission;
}

}  // namespace troupe::testing
