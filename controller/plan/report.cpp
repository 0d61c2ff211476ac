#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/text.h"
#include "controller/plan/plan.h"

namespace troupe::plan {
namespace {

std::string megabytes(std::uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MB", static_cast<double>(bytes) / 1e6);
  return text;
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = "[";
  for (const int rank : ranks)
    text += fmt::format("{}{}", text.size() > 1 ? ", " : "", rank);
  return text + "]";
}

// Where they are not one a step.
std::string calls_text(const Plan& plan) {
  const int calls = plan.request.steps;
  if (calls == plan.sampler_steps) return "";
  return fmt::format(
      ", calls of the model {}{}", calls,
      plan.skipped_steps > 0 ? fmt::format(", the last of {}", calls + plan.skipped_steps) : "");
}

}  // namespace

std::string to_text(const Plan& plan) {
  const mesh::Mesh mesh(plan.degrees);
  const auto& request = plan.request;
  std::string text;
  text += fmt::format("picture   {} × {}", request.output_width, request.output_height);
  if (request.resolution_binning) {
    text += fmt::format(", computed at {} × {}", request.width, request.height);
  }
  if (request.num_frames > 1) text += fmt::format(", frames {}", request.num_frames);
  text += fmt::format(", latents [{}, {}, {}], tokens {} × {}\n", plan.latent_channels,
                      plan.latent_height, plan.latent_width, plan.token_columns, plan.token_rows);
  text += fmt::format(
      "pictures  {}, steps {}{} ({} synchronous), method {}{}{}{}{}\n", plan.picture_count(),
      plan.sampler_steps, calls_text(plan), plan.synchronous_steps, to_string(request.method),
      request.method == Method::exact ? "" : ", K,V " + to_string(request.kv),
      request.group_norm == GroupNormMoments::corrected
          ? ""
          : ", group norms " + to_string(request.group_norm),
      request.exchange == PatchExchange::stale ? "" : ", exchange " + to_string(request.exchange),
      request.step_cache == StepCacheRule::none
          ? std::string()
          : ", step cache " + to_string(request.step_cache) + " up to " +
                nlohmann::json(request.step_cache_threshold).dump());
  text += "mesh      " + counted(mesh.world(), "actor");
  const char* between = " = ";
  for (const auto& [axis, degree] : mesh::kSplitAxes) {
    const bool always = axis == mesh::Axis::dp || axis == mesh::Axis::cfg || axis == mesh::Axis::pp;
    if (plan.degrees.*degree == 1 && !always) continue;
    text += fmt::format("{}{} {}", between, mesh::to_string(axis), plan.degrees.*degree);
    between = " × ";
  }
  text += "\n";
  for (const auto& [axis, degree] : mesh::kSplitAxes) {
    if (plan.degrees.*degree == 1) continue;
    text += std::string("  ") + mesh::to_string(axis) +
            std::string(8 - std::string(mesh::to_string(axis)).size(), ' ');
    for (const auto& group : mesh.groups(axis))
      text += ranks_text(group) + " ";
    text.back() = '\n';
  }
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    text += fmt::format("stage {}   blocks {}–{}\n", i, plan.stages[i].first_block,
                        plan.stages[i].last_block - 1);
  }
  for (int dp = 0; plan.vae_degree > 1 && dp < plan.degrees.dp; ++dp)
    text += "vae       ranks " + ranks_text(plan.decoders(dp)) + "\n";
  for (int dp = 0; plan.encodes_text() && dp < plan.degrees.dp; ++dp) {
    const auto encoders = plan.encoder_ranks(dp);
    if (std::ranges::adjacent_find(encoders, std::not_equal_to()) == encoders.end()) continue;
    text += "text      encoders at ranks " + ranks_text(encoders) + "\n";
  }
  for (std::size_t i = 0; i < plan.patches.size(); ++i) {
    text += fmt::format("patch {}   token rows {}–{}\n", i, plan.patches[i].begin,
                        plan.patches[i].end - 1);
  }
  text +=
      "rank  stage cfg dp  weights      K,V          activations  text         vae          peak\n";
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const auto at = mesh.coordinates(rank);
    const ActorMemory& own = plan.memory[rank];
    char line[200];
    std::snprintf(line, sizeof line, "%-5d %-5d %-3d %-3d %-12s %-12s %-12s %-12s %-12s %s\n", rank,
                  at.pp, at.cfg, at.dp, megabytes(own.weights).c_str(), megabytes(own.kv).c_str(),
                  megabytes(own.activations).c_str(), megabytes(own.text).c_str(),
                  megabytes(own.vae).c_str(), megabytes(own.peak()).c_str());
    text += line;
  }
  std::uint64_t picture = 0;
  for (const auto& own : plan.memory)
    picture = std::max(picture, own.picture);
  if (picture > 0)
    text += "picture to begin with: " + megabytes(picture) +
            " while it is decoded, resized and encoded\n";
  std::string encoders;
  for (int rank = 0; rank < mesh.world(); ++rank) {
    if (const auto bytes = plan.memory[rank].encoders; bytes > 0)
      encoders +=
          fmt::format("{}{} at rank {}", encoders.empty() ? "" : ", ", megabytes(bytes), rank);
  }
  if (!encoders.empty())
    text +=
        "text encoders stay in memory where there is room for them beside the peak: " + encoders +
        "\n";
  for (const auto& warning : plan.warnings)
    text += "warning: " + warning + "\n";
  return text;
}

nlohmann::json to_json(const Plan& plan) {
  using nlohmann::json;
  const mesh::Mesh mesh(plan.degrees);
  json out;
  out["mesh"]["world"] = mesh.world();
  for (const auto& [axis, degree] : mesh::kSplitAxes) {
    out["mesh"][mesh::to_string(axis)] = plan.degrees.*degree;
    out["groups"][mesh::to_string(axis)] = mesh.groups(axis);
  }
  if (plan.request.num_frames > 1) out["frames"] = plan.request.num_frames;
  out["height"] = plan.request.output_height;
  out["width"] = plan.request.output_width;
  out["computed_height"] = plan.request.height;
  out["computed_width"] = plan.request.width;
  out["latents"] = {plan.picture_count(), plan.latent_channels, plan.latent_height,
                    plan.latent_width};
  out["tokens"] = {plan.token_rows, plan.token_columns};
  out["method"] = to_string(plan.request.method);
  out["steps"] = plan.sampler_steps;
  out["model_calls"] = plan.request.steps;
  out["skipped_steps"] = plan.skipped_steps;
  out["synchronous_steps"] = plan.synchronous_steps;
  out["stages"] = json::array();
  for (const auto& stage : plan.stages)
    out["stages"].push_back({stage.first_block, stage.last_block});
  out["kv"] = to_string(plan.request.kv);
  out["group_norm"] = to_string(plan.request.group_norm);
  out["exchange"] = to_string(plan.request.exchange);
  out["step_cache"] = to_string(plan.request.step_cache);
  out["step_cache_threshold"] = plan.request.step_cache_threshold;
  out["vae"] = json::array();
  for (int dp = 0; dp < plan.degrees.dp; ++dp)
    out["vae"].push_back(plan.decoders(dp));
  out["encoders"] = json::array();
  for (int dp = 0; plan.encodes_text() && dp < plan.degrees.dp; ++dp)
    out["encoders"].push_back(plan.encoder_ranks(dp));
  out["patches"] = json::array();
  for (const auto& patch : plan.patches)
    out["patches"].push_back({patch.begin, patch.end});
  out["images"] = json::array();
  for (const auto& slice : plan.images)
    out["images"].push_back({slice.begin, slice.end});
  out["memory"] = json::array();
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const ActorMemory& own = plan.memory[rank];
    out["memory"].push_back({{"rank", rank},
                             {"weights", own.weights},
                             {"kv", own.kv},
                             {"activations", own.activations},
                             {"text", own.text},
                             {"encoders", own.encoders},
                             {"picture", own.picture},
                             {"vae", own.vae},
                             {"peak", own.peak()}});
  }
  out["warnings"] = plan.warnings;
  return out;
}

}  // namespace troupe::plan
