#include "models/spec/sampler_alias.h"

#include <cctype>
#include <map>

namespace troupe::spec {

std::string sampler_of_alias(const std::string& name) {
  // Without what sets words apart there.
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
  std::string plain;
  for (const char c : name)
    if (c != ' ' && c != '-' && c != '_')
      plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto found = kAliases.find(plain);
  return found == kAliases.end() ? name : found->second;
}

}  // namespace troupe::spec
