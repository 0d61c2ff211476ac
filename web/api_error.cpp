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

/// Field whose words a text begins with.
struct Beginning {
  std::string field;  // "" = with none
  std::size_t length = 0;
};

Beginning beginning_of(std::string_view text) {
  Beginning found;
  if (text.starts_with('`')) {
    const auto field = text.substr(1, text.find('`', 1) - 1);
    if (parse_choice<wire::JobField>(field)) return {std::string(field), field.size() + 2};
  }
  const auto look = [&](const std::string& words, std::string_view name) {
    if (words.size() <= found.length || !text.starts_with(words)) return;
    const std::string_view rest = text.substr(words.size());
    if (!rest.starts_with(' ') && !rest.starts_with(':')) return;
    found = {std::string(name), words.size()};
  };
  wire::for_each_field([&](const wire::RequestField& each, auto) {
    // A text begins with one of them.
    if (each.field == wire::JobField::loras || each.field == wire::JobField::embeddings) return;
    std::string plain(each.name);
    std::ranges::replace(plain, '_', ' ');
    look(plain, each.name);
    look(std::string(each.name), each.name);
    if (!each.words.empty() || !each.option.empty()) look(each.in_words(), each.name);
  });
  wire::for_each_degree([&](const wire::DegreeField& each, auto) {
    look(std::string(each.option.substr(2)), each.name);
  });
  for (const auto& [words, name] : {std::pair("seeds", "picture_seeds"),
                                    {"init image", "init_image"},
                                    {"mask image", "mask_image"},
                                    {"init latents", "init_latents"},
                                    {"prompt embeds", "prompt_embeds"}})
    look(words, name);
  return found;
}

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
  const auto begins = beginning_of(text);
  std::string said = begins.field;
  text.remove_prefix(begins.length);
  while (!text.empty()) {
    const std::size_t dashes = std::min(text.find("--"), text.size());
    said += text.substr(0, dashes);
    text.remove_prefix(dashes);
    const std::size_t end =
        std::min(text.find_first_not_of("-abcdefghijklmnopqrstuvwxyz"), text.size());
    const std::string_view field = field_of_option(text.substr(0, end));
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
