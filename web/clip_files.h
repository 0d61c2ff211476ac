#pragma once
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "models/image/clip_file.h"
#include "troupe/client.h"
#include "web/workers.h"

namespace troupe::web {

/// The video files of clips. To encode one takes a processor for seconds, so it happens on a thread
/// of its own, once for all who ask for the same file and as long as one of them waits, and the
/// file is kept. Those whose clips they are take turns, and have one thread each at most. Used on
/// the loop's thread.
class ClipFiles {
 public:
  struct Limits {
    std::size_t threads = 2;
    std::size_t waiting = 16;                    // files that are still to be encoded
    std::size_t waiting_of_one = 8;              // of one owner of clips
    std::size_t bytes = std::size_t{256} << 20;  // of files that are kept, the newest ones
  };
  struct Key {
    std::string job;  // its id
    std::size_t picture = 0;
    models::ClipFormat format = models::ClipFormat::mp4;
    int quality = models::kClipQuality;
    auto operator<=>(const Key&) const = default;
  };
  using File = std::shared_ptr<const std::string>;
  using Encode = std::function<std::string(std::string_view png, models::ClipFormat, int quality,
                                           std::stop_token)>;
  using Then = std::function<void(Result<File>)>;

  ClipFiles(boost::asio::io_context& io, Limits limits, Encode encode);
  /// Ends the encoding that is under way.
  ~ClipFiles();

  /// Returns a file; null if it is not kept.
  File find(const Key& key);
  /// Encodes the picture of that number, unless the file is being made already. `owner`: the key's
  /// name that the job came with. `then` is called later, or at once where too many wait:
  /// "overloaded". Answers with a number for `leave`.
  std::uint64_t make(const Key& key, const std::string& owner,
                     std::shared_ptr<const JobResult> result, Then then);
  /// Tells that the one who asked is gone; `then` is not called. A file that nobody waits for any
  /// more is not encoded, or no further than to the next frame.
  void leave(std::uint64_t asked);
  /// Drops the job's files.
  void drop(const std::string& job);

 private:
  struct Making {
    Key key;
    std::string owner;
    std::shared_ptr<const JobResult> result;
    std::map<std::uint64_t, Then> asked;
    std::stop_source stop;
    bool has_begun = false;
  };
  using MakingPtr = std::shared_ptr<Making>;

  void begin_next();
  std::size_t waiting(const std::string* owner) const;
  bool is_busy_for(const std::string& owner) const;
  void made(const MakingPtr& making, Result<std::string> file);
  void keep(const Key& key, File file);

  boost::asio::io_context& io_;
  Limits limits_;
  Encode encode_;
  std::list<std::pair<Key, File>> kept_;  // the file that was asked for last comes first
  std::size_t kept_bytes_ = 0;
  std::list<MakingPtr> making_;  // waiting or begun; of those who wait the next one first
  std::vector<std::string>
      busy_;  // whose clips threads encode, also what nobody waits for any more
  std::uint64_t last_asked_ = 0;
  Workers workers_;
};

}  // namespace troupe::web
