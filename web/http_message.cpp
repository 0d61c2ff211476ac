#include "web/http_message.h"

namespace troupe::web {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

}  // namespace

const std::string& RequestHead::field(const std::string& name) const {
  static const std::string kNone;
  const auto found = fields.find(name);
  return found == fields.end() ? kNone : found->second;
}

std::string RequestHead::path_text() const {
  return target.substr(0, target.find('?'));
}

bool percent_decode(std::string_view text, bool plus, std::string& out) {
  out.clear();
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%') {
      if (i + 2 >= text.size()) return false;
      const int high = hex_digit(text[i + 1]);
      const int low = hex_digit(text[i + 2]);
      if (high < 0 || low < 0) return false;
      out += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      out += plus && text[i] == '+' ? ' ' : text[i];
    }
  }
  return true;
}

bool parse_target(std::string_view target, RequestHead& head) {
  if (const auto scheme = target.substr(0, target.find(':'));
      scheme == "http" || scheme == "https") {
    // The absolute form (RFC 9112, 3.2.2). An authority that differs from the Host field is
    // refused: a proxy in front may have gone by the other one.
    target.remove_prefix(scheme.size());
    if (!target.starts_with("://")) return false;
    target.remove_prefix(3);
    const std::string_view authority = target.substr(0, target.find_first_of("/?"));
    if (authority.empty() || authority != head.field("host")) return false;
    target.remove_prefix(authority.size());
    if (target.empty()) target = "/";
  }
  head.target = target;
  if (!target.starts_with('/')) return false;
  const std::size_t mark = target.find('?');
  std::string_view path = target.substr(1, mark == target.npos ? target.npos : mark - 1);
  std::string decoded;
  while (!path.empty()) {
    const std::size_t slash = path.find('/');
    if (!percent_decode(path.substr(0, slash), false, decoded)) return false;
    head.path.push_back(decoded);
    path = slash == path.npos ? std::string_view() : path.substr(slash + 1);
  }
  if (mark == target.npos) return true;
  std::string_view query = target.substr(mark + 1);
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (pair.empty()) continue;
    const std::size_t equals = pair.find('=');
    std::string name;
    if (!percent_decode(pair.substr(0, equals), true, name)) return false;
    if (!percent_decode(equals == pair.npos ? std::string_view() : pair.substr(equals + 1), true,
                        decoded))
      return false;
    head.query[name] = decoded;
  }
  return true;
}

std::string event_text(std::string_view name, std::string_view data) {
  std::string text;
  text.reserve(name.size() + data.size() + 24);
  if (!name.empty()) text.append("event: ").append(name).append("\n");
  do {
    const std::size_t end = data.find('\n');
    text.append("data: ").append(data.substr(0, end)).append("\n");
    data = end == data.npos ? std::string_view() : data.substr(end + 1);
  } while (!data.empty());
  return text + "\n";
}

Response event_stream() {
  return {.status = 200,
          .type = "text/event-stream",
          .body = {},
          .fields = {{"Cache-Control", "no-store"}, {"X-Accel-Buffering", "no"}}};
}

}  // namespace troupe::web
