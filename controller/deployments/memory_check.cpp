#include "controller/deployments/memory_check.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <tuple>

#include "base/format.h"
#include "base/text.h"
#include "transport/wire/request_fields.h"

namespace troupe::cluster {
namespace {

std::optional<plan::Plan> planned(const spec::ModelSpec& model, const wire::ImageRequest& request,
                                  const wire::Parallelism& parallelism,
                                  const plan::Machine& machine) {
  try {
    return plan::make_plan(model, request, parallelism, machine);
  } catch (const std::invalid_argument&) {
    return std::nullopt;
  }
}

std::string fullest(const plan::Plan& plan) {
  std::uint64_t most = 0;
  for (const auto& own : plan.memory)
    most = std::max(most, own.peak());
  return bytes_text(most) + " at its fullest actor";
}

std::string with_value(std::string_view option, int value) {
  return fmt::format("{} {}", option, value);
}

/// The options that make `mix` of a job's degrees: "--cfg 2 --pp 2".
std::string options_of(const wire::Parallelism& mix, const wire::Parallelism& before) {
  std::string text;
  wire::for_each_degree([&](const wire::DegreeField& field, auto degree) {
    if (mix.*degree == 1 && before.*degree == 1) return;
    text += (text.empty() ? "" : " ") + with_value(field.option, mix.*degree);
  });
  return text;
}

}  // namespace

std::string too_large(const plan::Plan& plan, const Shortage& lack, const std::string& actor) {
  const auto& own = plan.memory.at(static_cast<std::size_t>(lack.rank));
  std::string parts;
  for (const auto& [name, bytes] :
       {std::pair{"weights", own.weights}, std::pair{"K,V", own.kv},
        std::pair{"activations", own.activations}, std::pair{"text encoder", own.text},
        std::pair{"picture to begin with", own.picture}, std::pair{"decoder", own.vae}}) {
    if (bytes > 0)
      parts += (parts.empty() ? "" : ", ") + std::string(name) + " " + bytes_text(bytes);
  }
  return fmt::format("[memory] rank {} needs {} ({}), and {} may hold {}", lack.rank,
                     bytes_text(lack.needs), parts, actor, bytes_text(lack.limit));
}

std::optional<wire::Parallelism> fitting_mix(const spec::ModelSpec& model,
                                             const wire::ImageRequest& request, int actors,
                                             const plan::Machine& machine, std::uint64_t bytes) {
  plan::Limits limits;
  limits.memory = bytes;
  for (int some = std::min(2, actors);; some = std::min(2 * some, actors)) {
    const auto candidates = plan::choose_degrees(model, request, some, machine, limits);
    if (const auto* best = plan::best_of(candidates)) return best->parallelism;
    if (some == actors) return std::nullopt;
  }
}

std::string memory_remedy(const spec::ModelSpec& model, const wire::JobSpec& job, int actors,
                          const std::function<bool(const plan::Plan&)>& fits,
                          const std::string& among,
                          const std::function<std::optional<wire::Parallelism>()>& mix,
                          const plan::Machine& machine) {
  const auto attempt = [&](const std::string& option, const wire::ImageRequest& request,
                           const wire::Parallelism& parallelism) -> std::optional<std::string> {
    const auto plan = planned(model, request, parallelism, machine);
    if (!plan || plan->degrees.world() > actors || !fits(*plan)) return std::nullopt;
    return option + " needs " + fullest(*plan);
  };
  // Their pixels cost what they cost at whatever degrees.
  using Side = std::int32_t wire::ImageRequest::*;
  for (const auto& [picture, height, width] :
       {std::tuple<const char*, Side, Side>{"an --init-image",
                                            &wire::ImageRequest::init_image_height,
                                            &wire::ImageRequest::init_image_width},
        {"a --mask", &wire::ImageRequest::mask_image_height,
         &wire::ImageRequest::mask_image_width}}) {
    auto request = job.request;
    if (request.*height <= request.height && request.*width <= request.width) continue;
    request.*height = request.height;
    request.*width = request.width;
    const auto option = fmt::format("{} of {} x {} in place of {} x {}", picture, request.width,
                                    request.height, job.request.*width, job.request.*height);
    if (auto found = attempt(option, request, job.parallelism)) return *found;
  }
  using Degree = std::int32_t wire::Parallelism::*;
  constexpr auto& kDegrees = wire::kDegreeFields;
  for (const auto& [degree, field] :
       {std::pair<Degree, wire::DegreeField>{&wire::Parallelism::pp, kDegrees.pp},
        {&wire::Parallelism::tp, kDegrees.tp},
        {&wire::Parallelism::vae, kDegrees.vae}}) {
    auto parallelism = job.parallelism;
    while (++(parallelism.*degree) <= actors) {
      const auto option = with_value(field.option, parallelism.*degree);
      if (auto found = attempt(option, job.request, parallelism)) return *found;
    }
  }
  if (const auto found = mix ? mix() : std::nullopt) {
    if (auto fitting = attempt(options_of(*found, job.parallelism), job.request, *found))
      return *fitting;
  }
  auto request = job.request;
  request.vae_tiling = true;
  if (auto found =
          attempt(std::string(wire::kRequestFields.vae_tiling.option), request, job.parallelism))
    return *found;
  if (job.request.dtype == ComputeType::float32) {
    request = job.request;
    request.dtype = ComputeType::bfloat16;
    const auto option =
        std::string(wire::kRequestFields.dtype.option) + " " + to_string(request.dtype);
    if (auto found = attempt(option, request, job.parallelism)) return *found;
  }
  if (job.request.offload == OffloadChoice::none) {
    request = job.request;
    request.offload = OffloadChoice::blocks;
    const auto option = std::string(wire::kRequestFields.offload.option) + " " +
                        to_string(request.offload) + " (slower)";
    if (auto found = attempt(option, request, job.parallelism)) return *found;
  }
  const auto on = among.empty() ? counted(actors, "actor") : among;
  const std::string others = "more actors, a smaller picture or fewer at a time";
  if (mix || actors == 1) {
    return "no pp, tp or shared decoding" + std::string(mix ? " and no mix of degrees" : "") +
           " on " + on + " is enough; " + others + " are";
  }
  return "no pp, tp or shared decoding by itself on " + on + " is enough; a mix of degrees (" +
         std::string(wire::kJobOptions.automatic) + " auto looks for one) may be, or " + others;
}

}  // namespace troupe::cluster
