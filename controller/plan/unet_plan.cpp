#include "controller/plan/unet_plan.h"

#include "base/format.h"
#include "controller/plan/patches.h"
#include "controller/plan/refuse.h"
#include "controller/plan/unet_shares.h"
#include "transport/wire/request_fields.h"

namespace troupe::plan {
namespace {

std::string rows_shared() {
  return std::string(wire::kDegreeFields.ulysses.option) + " or " +
         std::string(wire::kDegreeFields.ring.option) + " share its rows";
}

void check_naive(const Plan& plan, const spec::ModelSpec& model) {
  const auto& request = plan.request;
  const auto refuse_beside = [](const std::string& what) {
    refuse(JobField::exchange, "exchange is naive, but " + what);
  };
  if (request.method != Method::distrifusion)
    refuse_beside("method is " + to_string(request.method) + ": it needs distrifusion");
  if (request.kv != KvUse::stale)
    refuse_beside("kv is " + to_string(request.kv) + ": nothing is kept that it could be made of");
  if (request.group_norm == GroupNormMoments::stale ||
      request.group_norm == GroupNormMoments::synchronous)
    refuse_beside("group norm is " + to_string(request.group_norm) +
                  ": naive patches have moments of their own (separate)");
  if (request.step_cache != StepCacheRule::none)
    refuse_beside("step cache is " + to_string(request.step_cache) +
                  ": it takes a step of the whole picture after a loss");
  if (!request.refill_steps.empty()) refuse_beside("refill steps are given: nothing is kept");
  if (model.transformer.joint)
    refuse_beside(
        "this transformer's text and picture attend to each other, and only the first patch "
        "computes the text");
}

void check_unet(const Plan& plan) {
  const auto& request = plan.request;
  const auto& degrees = plan.degrees;
  if (degrees.pp > 1) {
    refuse(JobField::pp,
           fmt::format("pp is {}, but this model is a U-Net: its levels feed later ones across the "
                       "whole depth, so it is not split into stages; {}",
                       degrees.pp, rows_shared()));
  }
  if (degrees.tp > 1) {
    refuse(JobField::tp,
           fmt::format(
               "tp is {}, but this model is a U-Net, whose weights are not split over actors; {}",
               degrees.tp, rows_shared()));
  }
  if (request.offload != OffloadChoice::none) {
    refuse(
        JobField::offload,
        "offload is " + to_string(request.offload) +
            ", but this model is a U-Net, whose early levels feed its late ones: only transformers "
            "are read block by block");
  }
  if (request.method == Method::pipefusion) {
    refuse(JobField::method,
           "method is pipefusion, but this model is a U-Net, which has no stages: exact or "
           "distrifusion");
  }
  if (request.kv != KvUse::stale) {
    refuse(JobField::kv,
           "kv is " + to_string(request.kv) +
               ", but this model is a U-Net: what is not fresh is used as it is (stale)");
  }
  if (request.method != Method::distrifusion) {
    if (request.group_norm != GroupNormMoments::corrected)
      refuse(JobField::group_norm,
             "group norm is " + to_string(request.group_norm) +
                 " with method exact: all of a picture's moments are used there; other modes need "
                 "method distrifusion");
    if (request.exchange != PatchExchange::stale)
      refuse(JobField::exchange, "exchange is " + to_string(request.exchange) +
                                     " with method exact: it needs distrifusion");
    return;
  }
  const bool naive = request.exchange == PatchExchange::naive;
  if (request.num_pipeline_patch > 1 && request.warmup_steps < 1 && !naive)
    refuse(
        JobField::warmup_steps,
        "warmup is 0, but a U-Net's patches use what their neighbours had in the step before: the "
        "first step is synchronous");
  if (request.exchange == PatchExchange::none &&
      request.group_norm == GroupNormMoments::synchronous)
    refuse(JobField::exchange,
           "exchange is none, but group norm synchronous exchanges moments in every step");
}

}  // namespace

void check_network(const Plan& plan, const spec::ModelSpec& model) {
  const bool naive = plan.request.exchange == PatchExchange::naive;
  if (naive) check_naive(plan, model);
  if (model.transformer.unet()) return check_unet(plan);
  if (plan.request.group_norm != GroupNormMoments::corrected)
    refuse(JobField::group_norm,
           "group norm is " + to_string(plan.request.group_norm) +
               ", but this model is a transformer: it has no group norms over the picture");
  if (plan.request.exchange != PatchExchange::stale && !naive)
    refuse(JobField::exchange,
           "exchange is " + to_string(plan.request.exchange) +
               ", but this model is a transformer: only a U-Net's patches have that choice");
}

void set_unet_patches(Plan& plan) {
  auto& request = plan.request;
  const int ranks = plan.degrees.sp();
  const bool exact = request.method == Method::exact;
  const int patches = exact ? ranks : request.num_pipeline_patch;
  if (exact && ranks > plan.latent_height) {
    refuse(JobField::ulysses, fmt::format("ulysses × ring is {}, but the picture has only {} rows "
                                          "of latents: each actor needs one",
                                          ranks, plan.latent_height));
  }
  if (patches < ranks) {
    refuse(JobField::num_pipeline_patch,
           fmt::format("patches is {}, but ulysses × ring is {}: each of these actors needs a "
                       "patch of a U-Net",
                       patches, ranks));
  }
  plan.patches = split_rows(static_cast<int>(plan.latent_height), patches);
  wire::RowShares shares;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto own = patches_of(plan, rank);
    shares.of_rank.push_back({plan.patches[own.begin].begin, plan.patches[own.end - 1].end});
  }
  plan.micro_steps = {shares};
  const bool all = exact || patches == 1 || request.exchange == PatchExchange::all;
  plan.synchronous_steps = all ? request.steps : request.warmup_steps;
}

}  // namespace troupe::plan
