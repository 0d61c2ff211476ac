#include "controller/jobs/report.h"

#include <algorithm>

#include "transport/json/request_json.h"

namespace troupe::jobs {
namespace {

/// Returns the step caches' part of the report. Calls are of a batch item's patch, or whole
/// picture, at a step, since the last loss.
nlohmann::json step_cache_report(const std::vector<wire::ActorJobStats>& stats_by_rank) {
  std::uint64_t calls = 0;
  std::uint64_t skipped = 0;
  std::vector<std::uint64_t> by_step;
  for (const auto& stats : stats_by_rank) {
    calls += stats.cache_calls;
    by_step.resize(std::max(by_step.size(), stats.cache_skips.size()));
    for (std::size_t step = 0; step < stats.cache_skips.size(); ++step) {
      by_step[step] += stats.cache_skips[step];
      skipped += stats.cache_skips[step];
    }
  }
  return {{"calls", calls}, {"skipped", skipped}, {"skipped_by_step", by_step}};
}

/// Returns the prompts' part of the report, counted by text encoder and different text, since the
/// last loss.
nlohmann::json prompts_report(const std::vector<wire::ActorJobStats>& stats_by_rank) {
  std::uint64_t encoded = 0, from_cache = 0;
  for (const auto& stats : stats_by_rank) {
    encoded += stats.prompts_encoded;
    from_cache += stats.prompts_from_cache;
  }
  return {{"encoded", encoded}, {"from_cache", from_cache}};
}

/// Returns the batch's part of the report. The figures of the report are those of the batch. The
/// job's own pictures are counted in it from 0.
nlohmann::json batch_report(const JobEntry& job, std::span<const BatchMember> members) {
  nlohmann::json batch = {{"number", job.batching.number},
                          {"pictures", members.back().pictures.end},
                          {"with_jobs", nlohmann::json::array()}};
  for (const auto& member : members) {
    if (member.job == job.id) {
      batch["own_pictures"] = {member.pictures.begin, member.pictures.end};
    } else {
      batch["with_jobs"].push_back(member.job);
    }
  }
  return batch;
}

}  // namespace

std::string make_report(const JobEntry& job, const cluster::Deployment& deployment,
                        const PhaseSeconds& seconds,
                        const std::vector<wire::ActorJobStats>& stats_by_rank,
                        std::uint64_t blob_bytes, const std::vector<std::string>& warnings,
                        std::span<const BatchMember> members) {
  using nlohmann::json;
  const auto& request = job.plan.request;
  json report;
  report["job"] = job.id;
  report["model"] = deployment.model.folder;
  report["seed"] = request.seed;
  report["request"] = wire::request_json(request, job.plan.sampler_steps, job.plan.skipped_steps);
  report["request"]["prompts"] = request.prompts;
  report["request"]["images_per_prompt"] = request.images_per_prompt;
  if (!request.picture_seeds.empty()) report["request"]["seeds"] = request.picture_seeds;
  if (!request.negative_prompts.empty())
    report["request"]["negative_prompts"] = request.negative_prompts;
  if (!members.empty()) report["batch"] = batch_report(job, members);
  if (const auto& why = job.batching.why_not; !why.empty()) report["not_batched"] = why;
  report["plan"] = plan::to_json(job.plan);
  report["seconds"] = {{"queued", seconds.queued},
                       {"loading", seconds.loading},
                       {"text", seconds.text},
                       {"denoising", seconds.denoising},
                       {"decoding", seconds.decoding},
                       {"total", seconds.total},
                       {"per_step", seconds.steps > 0 ? seconds.denoising / seconds.steps : 0}};
  json actors = json::array();
  std::map<std::string, std::uint64_t> by_role;
  std::map<std::uint32_t, std::string> role_of;
  for (const auto& group : job.plan.groups)
    role_of[group.id] = plan::to_string(group.role);
  std::uint64_t tensor_bytes = 0;
  std::uint64_t control_bytes = 0;
  for (std::size_t rank = 0; rank < stats_by_rank.size(); ++rank) {
    const auto& stats = stats_by_rank[rank];
    tensor_bytes += stats.tensor_bytes_sent;
    std::map<std::string, std::uint64_t> own_roles;
    for (const auto& [id, bytes] : stats.sent_by_group)
      own_roles[role_of[id]] += bytes;
    for (const auto& [role, bytes] : own_roles)
      by_role[role] += bytes;
    control_bytes += stats.control_bytes_sent + stats.control_bytes_received;
    actors.push_back(
        {{"rank", rank},
         {"actor", deployment.actor_of_rank[rank]},
         {"busy_seconds", stats.busy_seconds},
         {"waiting_seconds", stats.peer_wait_seconds},
         {"controller_wait_seconds", stats.controller_wait_seconds},
         {"idle_seconds", std::max(0.0, seconds.text + seconds.denoising + seconds.decoding -
                                            stats.busy_seconds - stats.peer_wait_seconds)},
         {"text_seconds", stats.text_seconds},
         {"denoise_seconds", stats.denoise_seconds},
         {"decode_seconds", stats.decode_seconds},
         {"tensor_bytes_sent", stats.tensor_bytes_sent},
         {"tensor_bytes_sent_by_group", own_roles},
         {"tensor_bytes_sent_by_layer", stats.sent_by_layer},
         {"tensor_bytes_received", stats.tensor_bytes_received},
         {"weight_bytes", stats.weight_bytes},
         {"encoder_bytes", stats.encoder_bytes},
         {"kv_bytes", stats.kv_bytes},
         {"peak_memory_bytes", stats.peak_memory_bytes}});
    if (const auto& graphs = stats.graphs; graphs.asked) {
      actors.back()["cuda_graphs"] = {{"recorded", graphs.recorded},
                                      {"replayed", graphs.replayed},
                                      {"why_plain", graphs.why_plain}};
    }
  }
  report["actors"] = actors;
  report["bytes"] = {{"tensor_plane", tensor_bytes},
                     {"tensor_plane_by_group", by_role},
                     {"control_plane", control_bytes},
                     {"blobs", blob_bytes}};
  if (job.plan.encodes_text()) report["prompts"] = prompts_report(stats_by_rank);
  if (request.step_cache != StepCacheRule::none)
    report["step_cache"] = step_cache_report(stats_by_rank);
  auto all_warnings = job.plan.warnings;
  for (const auto* more : {&job.outcome.warnings, &warnings})
    all_warnings.insert(all_warnings.end(), more->begin(), more->end());
  report["warnings"] = all_warnings;
  report["recoveries"] = json::array();
  for (const auto& recovery : job.course.recoveries) {
    report["recoveries"].push_back({{"cause", recovery.cause},
                                    {"step", recovery.step},
                                    {"seconds", recovery.resumed - recovery.began}});
  }
  report["parts"] = json::array();
  for (const auto& part : job.course.parts) {
    json degrees;
    for (const auto& [axis, degree] : mesh::kSplitAxes)
      degrees[mesh::to_string(axis)] = part.degrees.*degree;
    report["parts"].push_back({{"first_step", part.first_step}, {"degrees", degrees}});
  }
  return wire::json_text(report);
}

void add_warning(JobEntry& job, const std::string& warning) {
  auto report = nlohmann::json::parse(job.outcome.report, nullptr, /*allow_exceptions=*/false);
  if (!report.is_object()) return;
  report["warnings"].push_back(warning);
  job.outcome.report = wire::json_text(report);
}

wire::JobFinished finished_message(const JobEntry& job) {
  return {.job = job.id,
          .state = job.state,
          .failure = job.failure,
          .blobs = job.outcome.blobs,
          .report = job.outcome.report};
}

}  // namespace troupe::jobs
