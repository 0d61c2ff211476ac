#include "web/api_keys.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sodium.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "base/error_text.h"
#include "base/files.h"
#include "base/format.h"
#include "base/numbers.h"
#include "web/encodings.h"

namespace troupe::web {
namespace {

constexpr std::string_view kHash = "sha256:";
constexpr std::size_t kKeyBytes = 24;

std::string sha256(std::string_view text) {
  std::string hash(crypto_hash_sha256_BYTES, '\0');
  crypto_hash_sha256(reinterpret_cast<unsigned char*>(hash.data()),
                     reinterpret_cast<const unsigned char*>(text.data()), text.size());
  return hash;
}

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::ranges::all_of(name, [](char c) {
    const char lower = static_cast<char>(c | 0x20);
    return (lower >= 'a' && lower <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  });
}

/// The name of "name:port", without brackets.
std::string host_name(std::string_view host) {
  if (host.starts_with('[')) return std::string(host.substr(1, host.find(']') - 1));
  return std::string(host.substr(0, host.find(':')));
}

bool is_loopback_name(const std::string& name) {
  if (name == "localhost" || name == "::1") return true;
  return name.starts_with("127.") &&
         std::ranges::all_of(name, [](char c) { return c == '.' || (c >= '0' && c <= '9'); });
}

bool is_number(const std::string& name) {
  in6_addr address{};
  return inet_pton(AF_INET, name.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, name.c_str(), &address) == 1;
}

}  // namespace

ApiKeys ApiKeys::parse(std::string_view text) {
  ApiKeys keys;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::istringstream words(line);
    std::string name, hash, word;
    if (!(words >> name) || name.starts_with('#')) continue;
    const auto wrong = [&](const std::string& why) {
      return std::runtime_error(fmt::format("[keys] line {}: {}", number, why));
    };
    if (!is_name(name)) throw wrong("the name is not of letters, digits, dots, - and _");
    words >> hash;
    if (!hash.starts_with(kHash) || hash.size() != kHash.size() + 2 * crypto_hash_sha256_BYTES)
      throw wrong(name + ": no sha256: and 64 hexadecimal digits behind the name");
    KeyHolder caller{.name = name, .share = name, .operate = false};
    std::string bytes(crypto_hash_sha256_BYTES, '\0');
    std::size_t size = 0;
    sodium_hex2bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(),
                   hash.data() + kHash.size(), hash.size() - kHash.size(), nullptr, &size, nullptr);
    if (size != bytes.size()) throw wrong(name + ": the hash has other than hexadecimal digits");
    while (words >> word) {
      const std::size_t equals = std::min(word.find('='), word.size());
      const std::string what = word.substr(0, equals);
      const std::string value = equals < word.size() ? word.substr(equals + 1) : "";
      const auto count = parse_number<std::uint32_t>(value);
      if (what == "share" && is_name(value)) {
        caller.share = value;
      } else if (what == "jobs" && count && *count > 0) {
        caller.most_jobs = *count;
      } else if (what == "per-minute" && count && *count > 0) {
        caller.per_minute = *count;
      } else if (word == "role=operate") {
        caller.operate = true;
      } else {
        throw wrong(name + ": \"" + word +
                    "\" is not share=NAME, jobs=N, per-minute=N or role=operate");
      }
    }
    for (const Key& other : keys.keys_) {
      if (other.caller->name == name) throw wrong(name + " is there twice");
      if (other.hash == bytes) throw wrong(name + " has the same key as " + other.caller->name);
    }
    keys.keys_.push_back({bytes, std::make_shared<const KeyHolder>(std::move(caller))});
  }
  return keys;
}

std::shared_ptr<const KeyHolder> ApiKeys::find(std::string_view authorization) const {
  constexpr std::string_view kBearer = "bearer ";
  if (authorization.size() < kBearer.size()) return nullptr;
  for (std::size_t i = 0; i < kBearer.size(); ++i)
    if ((authorization[i] | (kBearer[i] == ' ' ? 0 : 0x20)) != kBearer[i]) return nullptr;
  const std::string hash = sha256(authorization.substr(kBearer.size()));
  std::shared_ptr<const KeyHolder> found;
  for (const Key& key : keys_)
    if (sodium_memcmp(key.hash.data(), hash.data(), hash.size()) == 0) found = key.caller;
  return found;
}

NewKey make_key(const std::string& name) {
  if (!is_name(name))
    throw std::runtime_error("\"" + name + "\" is not of letters, digits, dots, - and _");
  if (sodium_init() < 0) throw std::runtime_error("libsodium does not start");
  std::string bytes(kKeyBytes, '\0');
  randombytes_buf(bytes.data(), bytes.size());
  const std::string key = "troupe-" + hex(bytes);
  return {key, name + " " + std::string(kHash) + hex(sha256(key))};
}

NewKey add_key(const std::filesystem::path& file, const std::string& name) {
  constexpr std::chrono::seconds kPatience{10};
  const auto wrong = [](const std::filesystem::path& path, const std::string& why) {
    return std::runtime_error("[keys] " + path.string() + ": " + why);
  };
  NewKey made = make_key(name);
  const std::filesystem::path lock_file = file.string() + ".lock";
  const FileHandle lock(::open(lock_file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) throw wrong(lock_file, error_text(errno));
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) throw wrong(lock_file, error_text(errno));
    if (std::chrono::steady_clock::now() > until)
      throw wrong(lock_file, "another process holds it");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  struct stat before {};
  std::string text;
  const bool is_there = ::stat(file.c_str(), &before) == 0;
  if (is_there) {
    std::ifstream old(file);
    std::stringstream kept;
    kept << old.rdbuf();
    if (!old) throw wrong(file, "cannot be read");
    text = std::move(kept).str();
  }
  if (!text.empty() && !text.ends_with('\n')) text += '\n';
  text += made.line + "\n";
  ApiKeys::parse(text);  // the name may be taken
  // Through a link to where the file is.
  const auto place = is_there ? std::filesystem::canonical(file) : file;
  const auto why = write_whole(place, text, is_there ? before.st_mode & 07777 : 0600);
  if (!why.empty()) throw wrong(file, "cannot be written: " + why);
  return made;
}

double RateLimits::ask(const KeyHolder& caller, double now) {
  if (caller.per_minute <= 0) return 0;
  const double rate = caller.per_minute / 60;
  const double most = std::max(1.0, caller.per_minute / 6);  // what may come at once: 10 s' worth
  // A caller who was not seen yet may have spent the rest before this process was started.
  auto [at, added] = buckets_.try_emplace(caller.name, Bucket{1, now});
  Bucket& bucket = at->second;
  bucket.tokens = std::min(most, bucket.tokens + std::max(0.0, now - bucket.at) * rate);
  bucket.at = now;
  if (bucket.tokens < 1) return (1 - bucket.tokens) / rate;
  bucket.tokens -= 1;
  return 0;
}

std::string foreign(const std::string& host, const std::string& origin,
                    const std::string& fetch_site, bool loopback,
                    const std::vector<std::string>& names, bool numeric) {
  const std::string name = host_name(host);
  const bool known = std::ranges::find(names, name) != names.end();
  const bool may_be_number = numeric && !loopback && is_number(name);
  if ((loopback || numeric) && !known && !host.empty() && !is_loopback_name(name) && !may_be_number)
    return "Host is " + host + ", which is no name of this place (see --allow-host)";
  if (fetch_site == "cross-site") return "another site's page may not ask here";
  if (origin.empty()) return "";
  const std::size_t scheme = origin.find("://");
  const std::string from = scheme == origin.npos ? origin : origin.substr(scheme + 3);
  if (from == host) return "";
  return "the page of " + origin + " may not ask here: Host is " + host;
}

}  // namespace troupe::web
