#include "models/spec/sampler_alias.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <string_view>

#include "models/spec/model_spec.h"

namespace troupe::spec {
namespace {

struct NoiseLevels {
  std::string_view suffix;
  SigmaSpacing spacing;
};
constexpr NoiseLevels kNoiseLevels[] = {{"-karras", SigmaSpacing::kKarras},
                                        {"-exponential", SigmaSpacing::kExponential},
                                        {"-beta", SigmaSpacing::kBeta}};
/// Samplers that have a choice of noise levels.
constexpr std::string_view kChoosing[] = {"dpmsolver++", "sde-dpmsolver++", "euler", "unipc"};

/// Returns the name in lower case, without spaces, hyphens and underscores.
std::string plain(const std::string& name) {
  std::string text;
  for (const char c : name)
    if (c != ' ' && c != '-' && c != '_')
      text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// "" where there is none.
std::string ours(const std::string& plain_name) {
  static const std::map<std::string, std::string> kAliases = {
      {"euler", "euler"},
      {"keuler", "euler"},
      {"eulerdiscrete", "euler"},
      {"eulera", "euler-ancestral"},
      {"keulera", "euler-ancestral"},
      {"eulerancestral", "euler-ancestral"},
      {"keulerancestral", "euler-ancestral"},
      {"ddim", "ddim"},
      {"ddpm", "ddpm"},
      {"lcm", "lcm"},
      {"unipc", "unipc"},
      {"pndm", "pndm"},
      {"plms", "pndm"},
      {"dpm++2m", "dpmsolver++"},
      {"dpmpp2m", "dpmsolver++"},
      {"kdpmpp2m", "dpmsolver++"},
      {"dpmsolvermultistep", "dpmsolver++"},
      {"dpmsolver++", "dpmsolver++"},
      {"dpm++2msde", "sde-dpmsolver++"},
      {"dpmpp2msde", "sde-dpmsolver++"},
      {"kdpmpp2msde", "sde-dpmsolver++"},
      {"floweuler", "flow-euler"},
      {"flowmatcheuler", "flow-euler"},
      {"flowmatcheulerdiscrete", "flow-euler"}};
  const auto found = kAliases.find(plain_name);
  return found == kAliases.end() ? "" : found->second;
}

}  // namespace

NamedSampler named_sampler(const std::string& name) {
  for (const NoiseLevels& levels : kNoiseLevels) {
    if (!name.ends_with(levels.suffix)) continue;
    const std::string sampler = name.substr(0, name.size() - levels.suffix.size());
    if (std::ranges::count(kChoosing, sampler) > 0) return {sampler, levels.spacing};
  }
  return {name, std::nullopt};
}

std::vector<std::string> level_suffixes() {
  std::vector<std::string> suffixes;
  for (const NoiseLevels& levels : kNoiseLevels)
    suffixes.emplace_back(levels.suffix);
  return suffixes;
}

bool is_sampler_name(const std::string& name) {
  return std::ranges::count(sampler_names(), named_sampler(name).sampler) > 0;
}

std::optional<EtaUse> eta_use(const std::string& name) {
  if (!is_sampler_name(name) || !is_own_sampler(named_sampler(name).sampler)) return std::nullopt;
  SchedulerSpec no_checkpoint;
  no_checkpoint.config = "{}";
  const SchedulerConfig config = scheduler_config_for(no_checkpoint, name);
  switch (config.kind) {
    case SamplerKind::kDdim:
      return EtaUse::any;
    case SamplerKind::kEulerAncestral:
    case SamplerKind::kDdpm:
      return EtaUse::fixed;
    case SamplerKind::kDpmSolverMultistep:
      return config.stochastic ? EtaUse::fixed : EtaUse::none;
    case SamplerKind::kEulerDiscrete:
    case SamplerKind::kUniPc:
    case SamplerKind::kFlowMatchEuler:
    case SamplerKind::kLcm:
    case SamplerKind::kPndm:
      return EtaUse::none;
    case SamplerKind::kUser:
      break;
  }
  return std::nullopt;
}

std::string sampler_of_alias(const std::string& name) {
  const auto words = plain(name);
  auto sampler = ours(words);
  for (const std::string& suffix : level_suffixes()) {
    const auto levels = plain(suffix);
    if (!sampler.empty() || !words.ends_with(levels)) continue;
    sampler = ours(words.substr(0, words.size() - levels.size()));
    if (!sampler.empty()) sampler += suffix;
  }
  return is_sampler_name(sampler) ? sampler : name;
}

}  // namespace troupe::spec
