#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>

#include "transport/json/request_json.h"
#include "troupe/result.h"

namespace troupe::web {

/// Error that an HTTP client is told when something does not work, in the shape of OpenAI's API:
/// {"error": {"message", "type", "param", "code"}}. Parsers of requests throw it.
struct ApiError : std::runtime_error {
  ApiError(int status, std::string code, const std::string& message, std::string param = {})
      : std::runtime_error(message),
        status(status),
        code(std::move(code)),
        param(std::move(param)) {}
  ApiError(int status, ErrorCode code, const std::string& message, std::string param = {})
      : ApiError(status, to_string(code), message, std::move(param)) {
    kind = code;
  }

  int status;        // of HTTP
  std::string code;  // the client API's, or one of HTTP's own (unknown_field, not_allowed, …)
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

/// Returns a cluster's text about a request or a job in HTTP's words: the name of the field whose
/// words it begins with, options of the command line ("--vae-tiling") as "`vae_tiling`", and no
/// tags of rooms. Pure.
std::string in_fields(const std::string& text);
/// Returns the client API's error about a request or a job as an ApiError.
ApiError to_api_error(const Error& error);
nlohmann::json to_json(const ApiError& error);

using wire::json_text;

}  // namespace troupe::web
