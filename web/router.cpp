#include "web/router.h"

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
