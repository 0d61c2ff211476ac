#include "web/clip_files.h"

#include <algorithm>
#include <boost/asio/post.hpp>

namespace troupe::web {

ClipFiles::ClipFiles(boost::asio::io_context& io, Limits limits, Encode encode)
    : io_(io), limits_(limits), encode_(std::move(encode)), workers_(limits.threads) {}

ClipFiles::~ClipFiles() {
  ending_.request_stop();
  workers_.end();
}

ClipFiles::File ClipFiles::find(const Key& key) {
  const auto found = std::ranges::find(kept_, key, &std::pair<Key, File>::first);
  if (found == kept_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found);
  return found->second;
}

void ClipFiles::make(const Key& key, std::shared_ptr<const JobResult> result, Then then) {
  if (const auto begun = making_.find(key); begun != making_.end())
    return begun->second.push_back(std::move(then));
  const auto refuse = [&] {
    then(Error{"overloaded", "too many clips are being encoded: try again"});
  };
  if (making_.size() >= limits_.threads + limits_.waiting) return refuse();
  const bool begun = workers_.post([this, key, result = std::move(result)] {
    const auto file = std::make_shared<std::optional<Result<std::string>>>();
    try {
      file->emplace(encode_(result->pictures.at(key.picture).png, key.format, key.quality,
                            ending_.get_token()));
    } catch (const std::exception& error) {
      file->emplace(Error{"failed", error.what()});
    }
    boost::asio::post(io_, [this, key, file] { made(key, std::move(**file)); });
  });
  if (!begun) return refuse();
  making_[key].push_back(std::move(then));
}

void ClipFiles::made(const Key& key, Result<std::string> file) {
  const auto waiting = std::move(making_.extract(key).mapped());
  if (!file) {
    for (const auto& then : waiting)
      then(file.error());
    return;
  }
  const auto bytes = std::make_shared<const std::string>(std::move(file.value()));
  keep(key, bytes);
  for (const auto& then : waiting)
    then(bytes);
}

void ClipFiles::keep(const Key& key, File file) {
  kept_bytes_ += file->size();
  kept_.emplace_front(key, std::move(file));
  while (kept_bytes_ > limits_.bytes) {
    kept_bytes_ -= kept_.back().second->size();
    kept_.pop_back();
  }
}

void ClipFiles::drop(const std::string& job) {
  std::erase_if(kept_, [&](const auto& entry) {
    if (entry.first.job != job) return false;
    kept_bytes_ -= entry.second->size();
    return true;
  });
}

}  // namespace troupe::web
