#include "models/spec/sampler_alias.h"

#include <cctype>
#include <map>

namespace troupe::spec {
namespace {

/// In lower case, without what sets words apart.
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

std::string sampler_of_alias(const std::string& name) {
  const auto sampler = ours(plain(name));
  return sampler.empty() ? name : sampler;
}

std::string sampler_without_levels(const std::string& name) {
  const auto words = plain(name);
  for (const std::string levels : {"karras", "exponential"})
    if (words.ends_with(levels)) return ours(words.substr(0, words.size() - levels.size()));
  return "";
}

}  // namespace troupe::spec
