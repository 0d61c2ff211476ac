#include "web/multipart.h"

#include <algorithm>

#include "base/format.h"
#include "web/api_error.h"

namespace troupe::web {
namespace {

constexpr std::size_t kMostParts = 64;
constexpr std::size_t kMostPartHeader = 8192;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& letter : out)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter | 0x20);
  return out;
}

/// The value of NAME=VALUE or NAME="VALUE" among the parameters of a header's value, or "".
std::string parameter(std::string_view header, std::string_view name) {
  std::size_t at = header.find(';');
  while (at != header.npos) {
    ++at;
    while (at < header.size() && (header[at] == ' ' || header[at] == '\t'))
      ++at;
    const std::size_t equals = header.find('=', at);
    if (equals == header.npos) return "";
    const bool found = lower(header.substr(at, equals - at)) == name;
    std::string value;
    at = equals + 1;
    if (at < header.size() && header[at] == '"') {
      for (++at; at < header.size() && header[at] != '"'; ++at) {
        if (header[at] == '\\' && at + 1 < header.size()) ++at;
        value += header[at];
      }
      at = header.find(';', at);
    } else {
      const std::size_t end = std::min(header.find(';', at), header.size());
      value = header.substr(at, end - at);
      while (!value.empty() && value.back() == ' ')
        value.pop_back();
      at = header.find(';', at);
    }
    if (found) return value;
  }
  return "";
}

ApiError wrong(const std::string& why) {
  return {400, ErrorCode::bad_request, "the form " + why};
}

FormPart part_of(std::string_view header, std::string_view bytes) {
  while (!header.empty()) {
    const std::size_t end = std::min(header.find("\r\n"), header.size());
    const std::string_view line = header.substr(0, end);
    header.remove_prefix(std::min(header.size(), end + 2));
    const std::size_t colon = line.find(':');
    if (colon == line.npos || lower(line.substr(0, colon)) != "content-disposition") continue;
    FormPart part{parameter(line, "name"), parameter(line, "filename"), std::string(bytes)};
    if (part.name.empty()) break;
    return part;
  }
  throw wrong("has a part without a name");
}

}  // namespace

std::vector<FormPart> parse_multipart(const std::string& content_type, std::string_view body) {
  if (!lower(content_type).starts_with("multipart/form-data"))
    throw ApiError(415, ErrorCode::bad_request, "this call takes a form: multipart/form-data");
  const std::string boundary = parameter(content_type, "boundary");
  if (boundary.empty() || boundary.size() > 70) throw wrong("has no boundary of 1 to 70 letters");
  const std::string mark = "\r\n--" + boundary;
  // The first mark has no line end before it where nothing stands before the first part.
  std::size_t at = 0;
  if (body.starts_with(std::string_view(mark).substr(2))) {
    at = mark.size() - 2;
  } else {
    at = body.find(mark);
    if (at == body.npos) throw wrong("does not begin with its boundary");
    at += mark.size();
  }
  std::vector<FormPart> parts;
  for (;;) {
    const std::string_view rest = body.substr(at);
    if (rest.starts_with("--")) return parts;
    if (!rest.starts_with("\r\n")) throw wrong("goes on otherwise behind a boundary");
    if (parts.size() >= kMostParts) throw wrong(fmt::format("has more than {} parts", kMostParts));
    const std::size_t end = body.find(mark, at);
    if (end == body.npos) throw wrong("ends before its last boundary");
    const std::size_t blank = body.find("\r\n\r\n", at);
    if (blank == body.npos || blank > end || blank - at > kMostPartHeader)
      throw wrong("has a part without a header's end");
    const std::size_t header = at + 2;
    const std::size_t begin = std::min(blank + 4, end);
    parts.push_back(part_of(body.substr(header, std::max(blank, header) - header),
                            body.substr(begin, end - begin)));
    at = end + mark.size();
  }
}

}  // namespace troupe::web
