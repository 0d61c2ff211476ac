#include "web/router.h"

#include <algorithm>

#include "base/suggest.h"
#include "web/api_error.h"

namespace troupe::web {
namespace {

bool fits(const std::vector<std::string>& pattern, const std::vector<std::string>& path,
          std::vector<std::string>& params) {
  if (pattern.size() != path.size()) return false;
  params.clear();
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (pattern[i] == "{}") {
      params.push_back(path[i]);
    } else if (pattern[i] != path[i]) {
      return false;
    }
  }
  return true;
}

}  // namespace

void check_query(const Route& route, const RequestHead& head) {
  for (const auto& [name, value] : head.query) {
    if (std::ranges::count(route.query, name) > 0) continue;
    throw ApiError(400, HttpCode::unknown_field,
                   json_text(short_name(name)) + " is no query parameter of this call" +
                       (route.query.empty() ? ", which has none" : did_you_mean(name, route.query)),
                   short_name(name));
  }
}

void check_body(const Route& route, const RequestHead& head) {
  std::string type = head.field("content-type").substr(0, head.field("content-type").find(';'));
  std::ranges::transform(type, type.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? c | 0x20 : c; });
  const bool is_form = type.starts_with("multipart/");
  if (route.body == Body::form && !is_form)
    throw ApiError(415, ErrorCode::bad_request,
                   "this call takes a form (multipart/form-data), not " +
                       (type.empty() ? "a body without Content-Type" : short_name(type)));
  if (is_form && route.body == Body::json)
    throw ApiError(415, ErrorCode::bad_request, "this call takes JSON, not a form");
  if (is_form && route.body == Body::file)
    throw ApiError(415, ErrorCode::bad_request,
                   "this call takes the file itself as its body, not a form (curl: --data-binary "
                   "@FILE)");
}

void Router::add(Route route) {
  RequestHead head;
  parse_target(route.path, head);
  entries_.push_back({std::move(route), std::move(head.path)});
}

Router::Match Router::match(const RequestHead& head) const {
  const std::string method = head.method == "HEAD" ? "GET" : head.method;
  Match match;
  for (const Entry& entry : entries_) {
    std::vector<std::string> params;
    if (!fits(entry.pattern, head.path, params)) continue;
    if (entry.route.method == method) return {&entry.route, std::move(params), {}};
    match.allow += (match.allow.empty() ? "" : ", ") + entry.route.method;
  }
  return match;
}

}  // namespace troupe::web
