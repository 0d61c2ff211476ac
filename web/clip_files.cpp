#include "web/clip_files.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

namespace troupe::web {

ClipFiles::ClipFiles(boost::asio::io_context& io, Limits limits, Encode encode)
    : io_(io), limits_(limits), encode_(std::move(encode)), workers_(limits.threads) {}

ClipFiles::~ClipFiles() {
  for (const auto& making : making_)
    making->stop.request_stop();
  workers_.end();
}

ClipFiles::File ClipFiles::find(const Key& key) {
  const auto found = std::ranges::find(kept_, key, &std::pair<Key, File>::first);
  if (found == kept_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found);
  return found->second;
}

std::uint64_t ClipFiles::make(const Key& key, std::shared_ptr<const JobResult> result, Then then) {
  const std::uint64_t asked = ++last_asked_;
  auto at = std::ranges::find(making_, key, &Making::key);
  if (at == making_.end()) {
    const auto waiting = std::ranges::count(making_, false, &Making::has_begun);
    if (busy_ + static_cast<std::size_t>(waiting) >= limits_.threads + limits_.waiting) {
      then(Error{"overloaded", "too many clips are being encoded: try again"});
      return asked;
    }
    at = making_.insert(making_.end(), std::make_shared<Making>());
    (*at)->key = key;
    (*at)->result = std::move(result);
  }
  (*at)->asked.emplace(asked, std::move(then));
  begin_next();
  return asked;
}

void ClipFiles::begin_next() {
  while (busy_ < limits_.threads) {
    const auto at = std::ranges::find(making_, false, &Making::has_begun);
    if (at == making_.end()) return;
    const MakingPtr making = *at;
    making->has_begun = true;
    ++busy_;
    workers_.post([this, making] {
      const auto file = std::make_shared<std::optional<Result<std::string>>>();
      try {
        const Key& key = making->key;
        file->emplace(encode_(making->result->pictures.at(key.picture).png, key.format, key.quality,
                              making->stop.get_token()));
      } catch (const std::exception& error) {
        file->emplace(Error{"failed", error.what()});
      }
      boost::asio::post(io_, [this, making, file] { made(making, std::move(**file)); });
    });
  }
}

void ClipFiles::leave(std::uint64_t asked) {
  std::erase_if(making_, [asked](const MakingPtr& making) {
    if (making->asked.erase(asked) == 0 || !making->asked.empty()) return false;
    making->stop.request_stop();
    return true;
  });
}

void ClipFiles::made(const MakingPtr& making, Result<std::string> file) {
  --busy_;
  making_.remove(making);
  begin_next();
  const auto asked = std::exchange(making->asked, {});
  if (asked.empty()) return;
  if (!file) {
    for (const auto& [number, then] : asked)
      then(file.error());
    return;
  }
  const auto bytes = std::make_shared<const std::string>(std::move(file.value()));
  keep(making->key, bytes);
  for (const auto& [number, then] : asked)
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
