#include "controller/plan/report.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/text.h"
#include "controller/plan/machine_json.h"
#include "controller/plan/plan.h"
#include "controller/plan/shape.h"
#include "controller/plan/staleness.h"
#include "controller/plan/text_line.h"
#include "controller/plan/traffic.h"
#include "transport/wire/request_fields.h"

namespace troupe::plan {

namespace {

std::string bytes_text(std::uint64_t bytes) {
  return bytes < 10'000 ? line("%llu B", static_cast<unsigned long long>(bytes))
                        : line("%.2f MB", static_cast<double>(bytes) / 1e6);
}

/// Returns a span as text in the unit that suits it, with four digits, so that mixes can be told
/// apart.
std::string span_text(double seconds) {
  if (seconds == 0) return "0 s";
  if (seconds < 1e-3) return line("%.4g µs", seconds * 1e6);
  if (seconds < 1) return line("%.4g ms", seconds * 1e3);
  return line("%.4g s", seconds);
}

/// Returns the text left-aligned, by characters and not bytes.
std::string padded(std::string text, std::size_t width) {
  const auto characters =
      static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
      }));
  if (characters < width) text.append(width - characters, ' ');
  return text;
}

/// All methods' orders for the whole request on as many devices as the pick has in a branch.
std::vector<PaperOrder> orders(const Explanation& explanation, const spec::ModelSpec& model) {
  const Plan& plan = explanation.plan;
  const int images = plan.images.front().end - plan.images.front().begin;
  const double tokens = static_cast<double>(images * plan.branches_per_actor()) *
                        static_cast<double>(plan.token_rows * plan.token_columns);
  return paper_orders(tokens, static_cast<double>(model.transformer.inner_dim()),
                      static_cast<int>(model.transformer.num_layers),
                      plan.degrees.pp * plan.degrees.sp() * plan.degrees.tp,
                      element_bytes(plan.request.dtype));
}

std::string candidates_text(const Explanation& explanation) {
  const auto& request = explanation.plan.request;
  const bool encodes = request.init_image_bytes > 0 || !request.images.empty() ||
                       (!request.control_images.empty() && request.controlnets.empty());
  std::string text = padded("degrees", 36) + "actors  vae  text       " +
                     (encodes ? "encode     " : "") +
                     "denoise    decode     total      most sent      peak memory\n";
  const Candidate* pick = best_of(explanation.candidates);
  for (const auto& candidate : explanation.candidates) {
    const auto& cost = candidate.cost;
    text += padded((&candidate == pick ? "* " : "  ") + to_text(candidate.parallelism), 36) +
            line("%-7d %-4d ", candidate.actors(), candidate.parallelism.vae) +
            padded(span_text(cost.text), 11) + (encodes ? padded(span_text(cost.encode), 11) : "") +
            padded(span_text(cost.denoise()), 11) + padded(span_text(cost.decode), 11) +
            padded(span_text(cost.total()), 11) + padded(bytes_text(candidate.sent), 15) +
            bytes_text(candidate.memory) +
            (candidate.refused.empty() ? "" : "  refused, " + candidate.refused) + "\n";
  }
  if (pick) text += "* is the mix that is planned";
  if (explanation.mixes > explanation.candidates.size())
    text +=
        fmt::format("{}these are {} of {} mixes: the others are slower, too large or impossible",
                    pick ? "; " : "", explanation.candidates.size(), explanation.mixes);
  if (text.back() != '\n') text += "\n";
  return text;
}

Macs macs(const Explanation& explanation, const spec::ModelSpec& model) {
  const auto& plan = explanation.plan;
  return macs_of(shape_of(model, plan.request), shape_of(plan));
}

std::string macs_text(const Explanation& explanation, const spec::ModelSpec& model) {
  const auto of = macs(explanation, model);
  return line("%.4g GMACs per step, with all pictures and branches", of.step / 1e9) +
         (of.text > 0 ? line("; %.3g once per job, for keys and values of the text", of.text / 1e9)
                      : "") +
         "\n";
}

std::string offload_text(const Explanation& explanation) {
  if (!explanation.offloaded) return "";
  const auto& [own, kept] = *explanation.offloaded;
  return line("with offload %.3g × as long as with all blocks in memory: ",
              explanation.offloaded->slower()) +
         span_text(own.cost.total()) + " with " + bytes_text(own.memory) + " per actor, " +
         span_text(kept.cost.total()) + " with " + bytes_text(kept.memory) +
         line("; blocks come at %.3g GB/s\n", explanation.machine.device.host_bandwidth / 1e9);
}

std::string traffic_text(const Explanation& explanation) {
  std::string text =
      "bytes sent over the tensor plane in the whole job, by rank and kind of group\n";
  for (std::size_t rank = 0; rank < explanation.traffic.size(); ++rank) {
    const auto& own = explanation.traffic[rank];
    text += line("  rank %-4zu", rank) + padded(bytes_text(own.total()), 14);
    for (const auto& [role, bytes] : own.sent)
      text += role + " " + bytes_text(bytes) + "  ";
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  return text;
}

/// Returns the bytes that a U-Net's patches tell each other, at the rank that sends most, as text.
std::string layers_text(const Explanation& explanation, const spec::ModelSpec& model) {
  if (!model.transformer.unet()) return "";
  const auto& all = explanation.traffic;
  const auto most = std::max_element(
      all.begin(), all.end(), [](const auto& a, const auto& b) { return a.total() < b.total(); });
  const auto rank = static_cast<int>(most - all.begin());
  std::string text;
  for (const auto& step : unet_step_traffic(explanation.plan, model, rank)) {
    if (text.empty())
      text = fmt::format("bytes per step from patch to patch by kind of layer, rank {}\n", rank);
    text += "  " + padded(fmt::format("{} × {}", step.steps, step.count), 18);
    for (const auto& [layer, bytes] : step.by_layer)
      text += layer + " " + bytes_text(bytes) + "  ";
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  return text;
}

nlohmann::json to_json(const Candidate& candidate) {
  const auto& cost = candidate.cost;
  nlohmann::json out = {{"actors", candidate.actors()},
                        {"seconds",
                         {{"text", cost.text},
                          {"encode", cost.encode},
                          {"synchronous", cost.synchronous},
                          {"patched", cost.patched},
                          {"decode", cost.decode},
                          {"total", cost.total()},
                          {"computing", cost.computing},
                          {"transferring", cost.transferring}}},
                        {"sent", candidate.sent},
                        {"memory", candidate.memory},
                        {"refused", candidate.refused}};
  wire::for_each_degree([&](const wire::DegreeField& field, auto degree) {
    out[std::string(field.name)] = candidate.parallelism.*degree;
  });
  return out;
}

}  // namespace

Explanation explain(const spec::ModelSpec& model, const wire::JobSpec& job, int actors,
                    const Machine& machine, const Limits& limits) {
  Explanation explanation;
  explanation.machine = machine;
  explanation.actors = actors;
  auto parallelism = job.parallelism;
  if (parallelism.automatic) {
    explanation.candidates = choose_degrees(model, job.request, actors, machine, limits);
    explanation.mixes = count_mixes(model, job.request, actors);
    const Candidate* pick = best_of(explanation.candidates);
    // With none that fits, this says what is missing.
    parallelism = pick ? pick->parallelism
                       : automatic_parallelism(model, job.request, actors, machine, limits);
    explanation.plan = make_plan(model, job.request, parallelism, machine);
    const auto seconds = judge(parallelism, explanation.plan, model, machine).cost.total();
    const auto exact =
        exact_instead(model, job.request, explanation.plan, seconds, actors, machine, limits);
    if (!exact.empty()) explanation.plan.warnings.push_back(exact);
  } else {
    explanation.plan = make_plan(model, job.request, parallelism, machine);
    explanation.candidates = {judge(parallelism, explanation.plan, model, machine, limits)};
  }
  explanation.traffic = predict_traffic(explanation.plan, model);
  if (job.request.offload != OffloadChoice::none) {
    auto request = job.request;
    request.offload = OffloadChoice::none;
    const auto kept = make_plan(model, request, parallelism, machine);
    explanation.offloaded = {judge(parallelism, explanation.plan, model, machine),
                             judge(parallelism, kept, model, machine)};
  }
  return explanation;
}

std::string to_text(const Explanation& explanation, const spec::ModelSpec& model) {
  const Machine& machine = explanation.machine;
  const auto& request = explanation.plan.request;
  std::string text = "predicted for " + machine.name + ", " + counted(explanation.actors, "actor");
  if (explanation.actors < machine.devices) text += fmt::format(" on {} devices", machine.devices);
  text += line(": %.4g TFLOP/s in ", machine.flops(request.dtype) / 1e12) +
          to_string(request.dtype) +
          line(", %.3g GB/s and %.3g µs between actors\n", machine.inside.bandwidth / 1e9,
               machine.inside.latency * 1e6);
  if (machine.hosts.size() > 1) {
    text += line("between hosts %.3g GB/s and %.3g µs\n", machine.between.bandwidth / 1e9,
                 machine.between.latency * 1e6);
  }
  for (const auto& note : machine.notes)
    text += note + "\n";
  if (request.step_cache != StepCacheRule::none) {
    text +=
        "seconds are those without the step cache: how often it skips depends on prompt, steps "
        "and threshold\n";
  }
  text += offload_text(explanation);
  text += macs_text(explanation, model) + candidates_text(explanation) + traffic_text(explanation);
  text += layers_text(explanation, model);
  if (model.transformer.unet()) return text;  // the papers' table is of transformers
  text +=
      "by the papers' formulas each method alone on these actors sends, in bytes per step and "
      "device (p tokens of all pictures, h the model's width, L its blocks, N actors; times the "
      "bytes of a number)\n";
  for (const auto& order : orders(explanation, model)) {
    text += "  " + padded(order.method, 18) + padded(order.formula, 14) +
            padded(bytes_text(static_cast<std::uint64_t>(order.bytes)), 14) +
            (order.overlaps ? "behind computing\n" : "waited for\n");
  }
  return text;
}

nlohmann::json to_json(const Explanation& explanation, const spec::ModelSpec& model) {
  using nlohmann::json;
  json out;
  out["machine"] = explanation.machine.name;
  out["figures"] = to_json(explanation.machine);
  out["actors"] = explanation.actors;
  const auto work = macs(explanation, model);
  out["gmacs"] = {{"step", work.step / 1e9}, {"text", work.text / 1e9}};
  if (const auto& of = explanation.offloaded) {
    out["offload"] = {{"slower", of->slower()},
                      {"seconds", of->own.cost.total()},
                      {"memory", of->own.memory},
                      {"seconds_in_memory", of->kept.cost.total()},
                      {"memory_in_memory", of->kept.memory}};
  }
  out["mixes"] = explanation.mixes;
  out["candidates"] = json::array();
  for (const auto& candidate : explanation.candidates)
    out["candidates"].push_back(to_json(candidate));
  out["picked"] = nullptr;
  if (const auto* pick = best_of(explanation.candidates)) out["picked"] = to_json(*pick);
  out["traffic"] = json::array();
  for (std::size_t rank = 0; rank < explanation.traffic.size(); ++rank) {
    out["traffic"].push_back({{"rank", rank},
                              {"total", explanation.traffic[rank].total()},
                              {"sent", explanation.traffic[rank].sent},
                              {"by_layer", explanation.traffic[rank].by_layer}});
    if (!model.transformer.unet()) continue;
    auto& steps = out["traffic"].back()["steps"] = json::array();
    for (const auto& step : unet_step_traffic(explanation.plan, model, static_cast<int>(rank))) {
      steps.push_back({{"steps", step.steps}, {"count", step.count}, {"by_layer", step.by_layer}});
    }
  }
  out["papers"] = json::array();
  for (const auto& order : orders(explanation, model)) {
    out["papers"].push_back({{"method", order.method},
                             {"formula", order.formula},
                             {"bytes_a_step", order.bytes},
                             {"overlaps", order.overlaps}});
  }
  out["plan"] = to_json(explanation.plan);
  return out;
}

namespace {

std::string megabytes(std::uint64_t bytes) {
  return line("%.1f MB", static_cast<double>(bytes) / 1e6);
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

std::string picture_text(const Plan& plan) {
  const auto& request = plan.request;
  std::string text = fmt::format("picture   {} × {}", request.output_width, request.output_height);
  if (request.resolution_binning)
    text += fmt::format(", computed at {} × {}", request.width, request.height);
  if (request.num_frames > 1) text += fmt::format(", frames {}", request.num_frames);
  return text + fmt::format(", latents [{}, {}, {}], tokens {} × {}\n", plan.latent_channels,
                            plan.latent_height, plan.latent_width, plan.token_columns,
                            plan.token_rows);
}

std::string method_text(const Plan& plan) {
  const auto& request = plan.request;
  return fmt::format(
      "pictures  {}, steps {}{} ({} synchronous), method {}{}{}{}{}\n", plan.picture_count(),
      plan.sampler_steps, calls_text(plan), plan.whole_steps(), to_string(request.method),
      request.method == Method::exact ? "" : ", K,V " + to_string(request.kv),
      request.group_norm == GroupNormMoments::corrected
          ? ""
          : ", group norms " + to_string(request.group_norm),
      request.exchange == PatchExchange::stale ? "" : ", exchange " + to_string(request.exchange),
      request.step_cache == StepCacheRule::none
          ? std::string()
          : ", step cache " + to_string(request.step_cache) + " up to " +
                nlohmann::json(request.step_cache_threshold).dump());
}

/// Returns the degrees, and which ranks each of them groups.
std::string mesh_text(const mesh::Mesh& mesh, const mesh::Degrees& degrees) {
  std::string text = "mesh      " + counted(mesh.world(), "actor");
  const char* between = " = ";
  for (const auto& [axis, degree] : mesh::kSplitAxes) {
    const bool always = axis == mesh::Axis::dp || axis == mesh::Axis::cfg || axis == mesh::Axis::pp;
    if (degrees.*degree == 1 && !always) continue;
    text += fmt::format("{}{} {}", between, mesh::to_string(axis), degrees.*degree);
    between = " × ";
  }
  text += "\n";
  for (const auto& [axis, degree] : mesh::kSplitAxes) {
    if (degrees.*degree == 1) continue;
    text += "  " + padded(mesh::to_string(axis), 8);
    for (const auto& group : mesh.groups(axis))
      text += ranks_text(group) + " ";
    text.back() = '\n';
  }
  return text;
}

/// Returns which ranks compute which parts of the model, and which patches there are.
std::string parts_text(const Plan& plan) {
  std::string text;
  for (std::size_t i = 0; i < plan.stages.size(); ++i)
    text += fmt::format("stage {}   blocks {}–{}\n", i, plan.stages[i].first_block,
                        plan.stages[i].last_block - 1);
  for (int dp = 0; plan.vae_degree > 1 && dp < plan.degrees.dp; ++dp)
    text += "vae       ranks " + ranks_text(plan.decoders(dp)) + "\n";
  for (int dp = 0; plan.encodes_text() && dp < plan.degrees.dp; ++dp) {
    const auto encoders = plan.encoder_ranks(dp);
    if (std::ranges::adjacent_find(encoders, std::not_equal_to()) == encoders.end()) continue;
    text += "text      encoders at ranks " + ranks_text(encoders) + "\n";
  }
  for (std::size_t i = 0; i < plan.patches.size(); ++i)
    text += fmt::format("patch {}   token rows {}–{}\n", i, plan.patches[i].begin,
                        plan.patches[i].end - 1);
  return text;
}

/// Returns "at step 18".
std::string takes_over(const Plan& plan) {
  return plan.second_from < plan.request.steps ? fmt::format("at step {}", plan.second_from)
                                               : "by a later job";
}

std::string actors_text(const Plan& plan, const mesh::Mesh& mesh) {
  std::string text =
      "rank  stage cfg dp  weights      K,V          activations  text         vae          peak\n";
  std::uint64_t picture = 0;
  std::string encoders, seconds;
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const auto at = mesh.coordinates(rank);
    const ActorMemory& own = plan.memory[rank];
    text += line("%-5d %-5d %-3d %-3d %-12s %-12s %-12s %-12s %-12s %s\n", rank, at.pp, at.cfg,
                 at.dp, megabytes(own.weights).c_str(), megabytes(own.kv).c_str(),
                 megabytes(own.activations).c_str(), megabytes(own.text).c_str(),
                 megabytes(own.vae).c_str(), megabytes(own.peak()).c_str());
    picture = std::max(picture, own.picture);
    if (own.encoders > 0)
      encoders += fmt::format("{}{} at rank {}", encoders.empty() ? "" : ", ",
                              megabytes(own.encoders), rank);
    if (own.second > 0)
      seconds +=
          fmt::format("{}{} at rank {}", seconds.empty() ? "" : ", ", megabytes(own.second), rank);
  }
  if (picture > 0)
    text += std::string(plan.sent_pictures()) + ": " + megabytes(picture) +
            " while decoded, resized and encoded\n";
  if (!seconds.empty())
    text += fmt::format(
        "second transformer: {}; it stays beside the first where there is room for it beside the "
        "peak, else its weights are read in the place of the first's {}\n",
        seconds, takes_over(plan));
  if (!encoders.empty())
    text +=
        "text encoders stay in memory where there is room for them beside the peak: " + encoders +
        "\n";
  return text;
}

}  // namespace

std::string to_text(const Plan& plan) {
  const mesh::Mesh mesh(plan.degrees);
  std::string text = picture_text(plan) + method_text(plan) + mesh_text(mesh, plan.degrees) +
                     parts_text(plan) + actors_text(plan, mesh);
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
  out["synchronous_steps"] = plan.whole_steps();
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
                             {"second_transformer", own.second},
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
