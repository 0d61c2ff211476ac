#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>

#include "base/choice.h"
#include "transport/json/request_json.h"
#include "troupe/result.h"

namespace troupe {

namespace web {
/// Codes of errors that HTTP has beside the client API's; docs/reference/errors.md is made of these
/// lines.
enum class HttpCode {
  unknown_field,    // 400: the call has no such field; the text names the one that was meant
  model_not_found,  // 404: no cluster serves a model of that name
  invalid_api_key,  // 401: the key is missing, or not known
  foreign_origin,   // 403: a page of another site asks
  not_allowed,      // 405: the path takes other methods, which Allow names
  ended,            // 409: the job has ended: too late to cancel it, or it has no result
  not_ended,        // 409: the job has no pictures and no report yet
  no_latents,       // 404: the job was not handed in with want_latents
};
}  // namespace web
template <>
inline constexpr auto kNamesOf<web::HttpCode> = std::to_array<std::string_view>(
    {"unknown_field", "model_not_found", "invalid_api_key", "foreign_origin", "not_allowed",
     "ended", "not_ended", "no_latents"});

}  // namespace troupe

namespace troupe::web {

/// Error that an HTTP client is told when something does not work, in the shape of OpenAI's API:
/// {"error": {"message", "type", "param", "code"}}. Parsers of requests throw it.
struct ApiError : std::runtime_error {
  ApiError(int status, HttpCode code, const std::string& message, std::string param = {})
      : std::runtime_error(message),
        status(status),
        code(to_string(code)),
        param(std::move(param)) {}
  ApiError(int status, ErrorCode code, const std::string& message, std::string param = {})
      : std::runtime_error(message),
        status(status),
        code(to_string(code)),
        kind(code),
        param(std::move(param)) {}

  /// Makes the same error in other words.
  ApiError(const ApiError& other, const std::string& message, std::string param)
      : std::runtime_error(message),
        status(other.status),
        code(other.code),
        kind(other.kind),
        retry_after_s(other.retry_after_s),
        param(std::move(param)) {}

  int status;                     // of HTTP
  std::string code;               // the name of the code
  std::optional<ErrorCode> kind;  // none with a code of HTTP's own
  int retry_after_s = 1;          // seconds after which a 429 or 503 may be otherwise
  std::string param;              // the field that is wrong; "" = none alone
};

/// Returns a name that a client gave, cut where it is too long to be one.
std::string short_name(const std::string& name);

/// Returns the error for a field of a request that is wrong: status 400, code bad_request.
inline ApiError bad_field(const std::string& field, const std::string& why) {
  const std::string name = short_name(field);
  return {400, ErrorCode::bad_request, name + ": " + why, name};
}

/// Returns a cluster's text about a request or a job in HTTP's words: the field that it begins with
/// without backquotes, options of the command line ("--vae-tiling") as "`vae_tiling`", and no tags
/// of rooms. Pure.
std::string in_fields(const std::string& text);
/// Returns the client API's error about a request or a job as an ApiError.
ApiError to_api_error(const Error& error);
nlohmann::json to_json(const ApiError& error);

using wire::json_text;

}  // namespace troupe::web
