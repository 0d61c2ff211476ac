#include "tests/process/support/listening_sockets.h"

#include <filesystem>
#include <set>
#include <sstream>

#include "tests/support/text.h"

namespace troupe::testing {
namespace {

namespace fs = std::filesystem;

std::vector<std::vector<std::string>> words_of(const std::string& file) {
  std::vector<std::vector<std::string>> lines;
  std::istringstream text(read_all(file));
  for (std::string line; std::getline(text, line);) {
    std::istringstream words(line);
    lines.emplace_back();
    for (std::string one; words >> one;)
      lines.back().push_back(one);
  }
  return lines;
}

/// "0100007F" is 127.0.0.1.
std::string dotted(const std::string& hex) {
  if (hex.size() != 8) return hex;
  std::string text;
  for (int at = 6; at >= 0; at -= 2)
    text += std::to_string(std::stoi(hex.substr(static_cast<std::size_t>(at), 2), nullptr, 16)) +
            (at > 0 ? "." : "");
  return text;
}

}  // namespace

ListeningSockets listening_sockets_of(pid_t pid) {
  const std::string process = "/proc/" + std::to_string(pid);
  std::set<std::string> inodes;
  for (const auto& entry : fs::directory_iterator(process + "/fd")) {
    std::error_code error;
    const std::string target = fs::read_symlink(entry.path(), error).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  ListeningSockets doors;
  for (const char* file : {"/net/tcp", "/net/tcp6"}) {
    for (const auto& word : words_of(process + file)) {
      if (word.size() < 10 || word[3] != "0A" || !inodes.contains(word[9])) continue;
      const auto colon = word[1].find(':');
      doors.tcp.push_back(
          {dotted(word[1].substr(0, colon)),
           static_cast<std::uint16_t>(std::stoul(word[1].substr(colon + 1), nullptr, 16))});
    }
  }
  for (const auto& word : words_of(process + "/net/unix")) {
    if (word.size() > 7 && word[3] == "00010000" && inodes.contains(word[6]) &&
        word[7].starts_with("@"))
      doors.names.push_back(word[7].substr(1));
  }
  return doors;
}

}  // namespace troupe::testing
