#include "web/api_error.h"

#include <algorithm>

#include "base/text.h"
#include "transport/wire/request_fields.h"
#include "transport/wire/request_rules.h"

namespace troupe::web {
namespace {

/// Returns the status of an answer for a code of the client API.
int status_of(ErrorCode code) {
  using enum ErrorCode;
  switch (code) {
    case bad_request:
      return 400;
    case not_found:
      return 404;
    case cancelled:
      return 409;
    case gone:
      return 410;
    case overloaded:
      return 429;
    case protocol:
    case version_mismatch:
      return 502;
    case refused:
    case unreachable:
    case lost:
    case stopped:
    case not_fetched:
      return 503;
    case timeout:
      return 504;
    case out_of_memory:
      return 507;
    case failed:
    case exception:
    case died:
    case restarting:
    case interrupted:
    case usage:
      break;
  }
  return 500;
}

const char* type_of(int status) {
  if (status == 401 || status == 403) return "authentication_error";
  if (status == 404 || status == 410) return "not_found_error";
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

namespace {

/// Returns the field that an option of the command line sets; "" = none.
std::string_view field_of_option(std::string_view option) {
  constexpr auto& kNames = kNamesOf<wire::JobField>;
  for (std::size_t i = 1; i < kNames.size(); ++i)
    if (!option.empty() && wire::option_of(static_cast<wire::JobField>(i)) == option)
      return kNames[i];
  if (option == wire::kJobOptions.elastic) return "elastic";
  return option == wire::kJobOptions.may_batch ? "may_batch" : "";
}

}  // namespace

std::string in_fields(const std::string& what) {
  const std::string untagged = without_rooms(what);
  std::string_view text = untagged;
  std::string said;
  // A text that begins with its field has that without backquotes.
  if (text.starts_with('`')) {
    const auto field = text.substr(1, text.find('`', 1) - 1);
    if (parse_choice<wire::JobField>(field)) {
      said = field;
      text.remove_prefix(field.size() + 2);
    }
  }
  while (!text.empty()) {
    const std::size_t dashes = std::min(text.find("--"), text.size());
    said += text.substr(0, dashes);
    text.remove_prefix(dashes);
    const std::size_t end =
        std::min(text.find_first_not_of("-abcdefghijklmnopqrstuvwxyz"), text.size());
    // Within a path or a word it is no option: "models--ORG--NAME".
    const bool is_option = said.empty() || said.back() == ' ' || said.back() == '(' ||
                           said.back() == '`' || said.back() == '"';
    const std::string_view field = is_option ? field_of_option(text.substr(0, end)) : "";
    said += field.empty() ? std::string(text.substr(0, end)) : "`" + std::string(field) + "`";
    text.remove_prefix(end);
  }
  return said;
}

ApiError to_api_error(const Error& error) {
  return {status_of(error.code), error.code, in_fields(error.what), error.field};
}

nlohmann::json to_json(const ApiError& error) {
  return {{"error",
           {{"message", error.what()},
            {"type", type_of(error.status)},
            {"param", error.param.empty() ? nlohmann::json() : nlohmann::json(error.param)},
            {"code", error.code}}}};
}

}  // namespace troupe::web
