#include "transport/control/keys.h"

#include <zmq.h>

#include <algorithm>
#include <array>
#include <set>
#include <stdexcept>

#include "base/format.h"

namespace troupe::control {
namespace {

constexpr std::size_t kKeyBytes = 32;
constexpr std::size_t kKeyText = 40;
constexpr std::string_view kKeyHead = "troupe-key 1";
constexpr std::string_view kListHead = "troupe-clients 1";

[[noreturn]] void fail(const std::string& why) {
  throw std::runtime_error("[keys] " + why);
}

/// Takes the text up to the next line's end; the line's end is taken away as well.
std::string_view take_line(std::string_view& rest) {
  const std::size_t end = std::min(rest.find('\n'), rest.size());
  std::string_view line = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

void expect_head(std::string_view& rest, std::string_view head) {
  if (take_line(rest) != head) fail("line 1 is not \"" + std::string(head) + "\"");
}

std::string take_key(std::string_view& rest, std::string_view word, int line_number) {
  std::string_view line = take_line(rest);
  if (!line.starts_with(word) || line.substr(word.size()).substr(0, 1) != " ")
    fail(fmt::format("line {} is not \"{} KEY\"", line_number, word));
  line.remove_prefix(word.size() + 1);
  if (!is_key(line)) fail(fmt::format("line {}: a key has 40 characters of Z85", line_number));
  return std::string(line);
}

void expect_end(std::string_view rest) {
  if (!rest.empty()) fail("there is more than the key");
}

}  // namespace

std::string why_no_curve() {
  if (zmq_has("curve")) return "";
  return "the ZeroMQ library of this machine was built without CURVE (libsodium): keys cannot be "
         "used";
}

KeyPair make_key_pair() {
  if (const auto why = why_no_curve(); !why.empty()) fail(why);
  std::array<char, kKeyText + 1> open{};
  std::array<char, kKeyText + 1> secret{};
  if (zmq_curve_keypair(open.data(), secret.data()) != 0)
    fail(std::string("no key pair: ") + zmq_strerror(zmq_errno()));
  return {open.data(), secret.data()};
}

bool is_key(std::string_view text) {
  if (text.size() != kKeyText) return false;
  const std::string terminated(text);
  std::array<std::uint8_t, kKeyBytes> bytes{};
  // The decoder looks only at how far a character is from the first; what it gave must give it
  // back.
  if (std::ranges::any_of(text, [](char letter) { return letter < '!' || letter > '~'; }))
    return false;
  return zmq_z85_decode(bytes.data(), terminated.c_str()) != nullptr &&
         key_text({reinterpret_cast<const char*>(bytes.data()), bytes.size()}) == text;
}

std::string key_text(std::string_view bytes) {
  if (bytes.size() != kKeyBytes) return "";
  std::array<char, kKeyText + 1> text{};
  zmq_z85_encode(text.data(), reinterpret_cast<const std::uint8_t*>(bytes.data()), kKeyBytes);
  return text.data();
}

bool same_secret(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  volatile unsigned char difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

std::string to_text(const ClientKeys& keys) {
  return keys.server_key + " " + keys.own.public_key + " " + keys.own.secret_key;
}

ClientKeys client_keys_from(std::string_view text, const std::string& origin) {
  const auto part = [&](std::size_t index) {
    return std::string(text.substr(index * (kKeyText + 1), kKeyText));
  };
  if (text.size() != 3 * kKeyText + 2 || text[kKeyText] != ' ' || text[2 * kKeyText + 1] != ' ' ||
      !is_key(part(0)) || !is_key(part(1)) || !is_key(part(2)))
    fail("keys from " + origin + " are not three keys");
  return {part(0), {part(1), part(2)}, origin};
}

const char* to_string(ClientRole role) {
  switch (role) {
    case ClientRole::own_jobs:
      return "own-jobs";
    case ClientRole::all_jobs:
      return "all-jobs";
    case ClientRole::operate:
      return "operate";
  }
  return "unknown";
}

std::optional<ClientRole> role_from(std::string_view text) {
  for (const auto role : {ClientRole::own_jobs, ClientRole::all_jobs, ClientRole::operate})
    if (text == to_string(role)) return role;
  return std::nullopt;
}

bool is_client_name(std::string_view name) {
  if (name.empty() || name.size() > 64 || name.front() == '.') return false;
  return std::ranges::all_of(name, [](char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
           (letter >= '0' && letter <= '9') || letter == '.' || letter == '_' || letter == '-';
  });
}

std::string key_file_text(const KeyPair& pair) {
  return std::string(kKeyHead) + "\npublic " + pair.public_key + "\nsecret " + pair.secret_key +
         "\n";
}

std::string public_file_text(const std::string& public_key) {
  return std::string(kKeyHead) + "\npublic " + public_key + "\n";
}

std::string allow_list_text(const std::vector<AllowedClient>& clients) {
  std::string text = std::string(kListHead) + "\n";
  for (const auto& client : clients)
    text += client.name + " " + client.public_key + " " + to_string(client.role) + "\n";
  return text;
}

KeyPair parse_key_file(std::string_view text) {
  if (text.size() > kMaxKeyFile) fail("longer than a key file");
  expect_head(text, kKeyHead);
  KeyPair pair;
  pair.public_key = take_key(text, "public", 2);
  pair.secret_key = take_key(text, "secret", 3);
  expect_end(text);
  return pair;
}

std::string parse_public_file(std::string_view text) {
  if (text.size() > kMaxKeyFile) fail("longer than a key file");
  expect_head(text, kKeyHead);
  std::string key = take_key(text, "public", 2);
  expect_end(text);
  return key;
}

std::vector<AllowedClient> parse_allow_list(std::string_view text) {
  if (text.size() > kMaxAllowList) fail("longer than a list of clients may be");
  expect_head(text, kListHead);
  std::vector<AllowedClient> clients;
  std::set<std::string, std::less<>> names;
  for (int number = 2; !text.empty(); ++number) {
    const std::string_view line = take_line(text);
    if (line.empty()) continue;
    const std::size_t blank = std::min(line.find(' '), line.size());
    const std::string_view name = line.substr(0, blank);
    const std::string_view rest = line.substr(std::min(blank + 1, line.size()));
    const std::string_view key = rest.substr(0, rest.find(' '));
    // Lists from before there were roles have none; then everybody could do everything.
    const auto role = key.size() == rest.size() ? std::optional(ClientRole::operate)
                                                : role_from(rest.substr(key.size() + 1));
    if (!is_client_name(name) || !is_key(key) || !role)
      fail(fmt::format("line {} is not \"NAME KEY ROLE\"", number));
    if (!names.emplace(name).second) fail(fmt::format("line {}: a name comes twice", number));
    clients.push_back({std::string(name), std::string(key), *role});
  }
  return clients;
}

DoorKeys DoorKeys::make() {
  return {make_key_pair(), make_key_pair()};
}

std::string DoorKeys::for_callers() const {
  return to_text(ClientKeys{door.public_key, callers, ""});
}

// Three keys as well: the other side's public one, and the own pair.
std::string DoorKeys::for_door() const {
  return to_text(ClientKeys{callers.public_key, door, ""});
}

Door door_from(std::string_view text, const std::string& origin) {
  const auto keys = client_keys_from(text, origin);
  return {keys.own, keys.server_key};
}

}  // namespace troupe::control
