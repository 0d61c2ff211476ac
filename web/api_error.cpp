#include "web/api_error.h"

#include <map>

namespace troupe::web {
namespace {

/// The status of an answer for each code of the client API.
int status_of(const std::string& code) {
  static const std::map<std::string, int> kStatus = {
      {"bad_request", 400}, {"not_found", 404},        {"cancelled", 409},
      {"overloaded", 429},  {"refused", 403},          {"unreachable", 503},
      {"lost", 503},        {"not_fetched", 503},      {"timeout", 504},
      {"protocol", 502},    {"version_mismatch", 502}, {"out_of_memory", 507}};
  const auto found = kStatus.find(code);
  return found == kStatus.end() ? 500 : found->second;
}

const char* type_of(int status) {
  if (status == 401 || status == 403) return "authentication_error";
  if (status == 404) return "not_found_error";
  if (status == 409) return "conflict_error";
  if (status == 429) return "rate_limit_error";
  return status < 500 ? "invalid_request_error" : "server_error";
}

}  // namespace

std::string short_name(const std::string& name) {
  constexpr std::size_t kMost = 64;
  if (name.size() <= kMost) return name;
  std::size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80)
    --end;  // not within a letter
  return name.substr(0, end) + "…";
}

ApiError to_api_error(const Error& error) {
  return {status_of(error.code), error.code, error.what};
}

nlohmann::json to_json(const ApiError& error) {
  return {{"error",
           {{"message", error.what()},
            {"type", type_of(error.status)},
            {"param", error.param.empty() ? nlohmann::json() : nlohmann::json(error.param)},
            {"code", error.code}}}};
}

}  // namespace troupe::web
