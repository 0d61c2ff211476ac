#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::web {

/// The one who asks, as far as the gateway cares: a key's name, and what it may do.
struct KeyHolder {
  std::string name;           // "" where no keys are asked for
  std::string share;          // the share that its jobs count for; "" = as the request says
  bool operate = true;        // sees everybody's jobs, logs, and may kill actors
  std::size_t most_jobs = 0;  // jobs that have not ended; 0 = no limit
  double per_minute = 0;      // jobs handed in; 0 = no limit
};

/// Keys that requests come with, each as the SHA-256 of its text. Pure.
///
/// A line of the file: NAME sha256:HEX [share=NAME] [jobs=N] [per-minute=N] [role=operate]. Empty
/// lines and those that begin with # are skipped.
class ApiKeys {
 public:
  /// Throws std::runtime_error naming the line that is wrong.
  static ApiKeys parse(std::string_view text);

  bool empty() const { return keys_.empty(); }
  /// Returns the caller whose key it is, or null. `authorization`: the header's value, "Bearer
  /// KEY".
  std::shared_ptr<const KeyHolder> find(std::string_view authorization) const;

 private:
  struct Key {
    std::string hash;  // 32 bytes
    std::shared_ptr<const KeyHolder> caller;
  };
  std::vector<Key> keys_;
};

/// A key that nobody has, and the line for it to put into the file.
struct NewKey {
  std::string key;
  std::string line;
};
NewKey make_key(const std::string& name);
/// Makes a key and adds its line to the file, which keeps all its keys: processes that add keys at
/// the same time wait for each other. Throws std::runtime_error, also if the file has a key of that
/// name.
NewKey add_key(const std::filesystem::path& file, const std::string& name);

/// Lets so many through within a minute, a few of them at once, but of a caller who was not seen
/// before one. Pure: `now` in seconds.
class RateLimits {
 public:
  /// Returns how many seconds the caller has to wait, or 0 if it may go on; then the request
  /// counts.
  double ask(const KeyHolder& caller, double now);

 private:
  struct Bucket {
    double tokens = 0;
    double at = 0;
  };
  std::map<std::string, Bucket> buckets_;  // one for each key with a limit
};

/// Returns why a browser's page must not ask here, or "": a request whose Origin is another place
/// than its Host, or, on a loopback address, whose Host is another name (a foreign page whose name
/// leads here). The same where `numeric`, for places without keys: Host is a number, a loopback
/// name or one of `names`, further names that this place has.
std::string foreign(const std::string& host, const std::string& origin,
                    const std::string& fetch_site, bool loopback,
                    const std::vector<std::string>& names, bool numeric = false);

}  // namespace troupe::web
