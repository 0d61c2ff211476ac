#pragma once
#include "controller/plan/layout.h"
#include "controller/plan/plan.h"
#include "tests/controller/sample_model.h"

namespace troupe::test {

/// 256 × 256 with guidance, 20 steps: 16 × 16 tokens, latents 4 × 32 × 32.
inline wire::ImageRequest square_request(Method method = Method::exact, int patches = 1,
                                         int warmup = 1) {
  wire::ImageRequest request;
  request.prompts = {"a red circle"};
  request.height = request.width = 256;
  request.method = method;
  request.num_pipeline_patch = patches;
  request.warmup_steps = warmup;
  return request;
}

/// A plan with any degrees. Traffic and costs follow from shapes and degrees alone, so what they
/// are held against here does not hang on which mixes make_plan accepts.
inline plan::Plan planned(const wire::ImageRequest& request, const wire::Parallelism& parallelism) {
  auto asked = request;
  if (asked.method == Method::distrifusion) asked.method = Method::pipefusion;
  asked.kv = KvUse::stale;
  auto plan = plan::make_plan(sample_model(), asked,
                              {.dp = parallelism.dp, .cfg = parallelism.cfg, .pp = parallelism.pp});
  plan.request.method = request.method;
  plan.request.kv = request.kv;
  plan.degrees.ulysses = parallelism.ulysses;
  plan.degrees.ring = parallelism.ring;
  plan.degrees.tp = parallelism.tp;
  plan.micro_steps.clear();
  for (const auto& shares :
       plan::layout_of(request.method, plan.patches, parallelism.ring, parallelism.ulysses).shares)
    plan.micro_steps.push_back({shares});
  return plan;
}

}  // namespace troupe::test
