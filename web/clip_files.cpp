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

std::size_t ClipFiles::waiting(const std::string* owner) const {
  return static_cast<std::size_t>(std::ranges::count_if(making_, [owner](const auto& making) {
    return !making->has_begun && (!owner || making->owner == *owner);
  }));
}

bool ClipFiles::is_busy_for(const std::string& owner) const {
  return std::ranges::find(busy_, owner) != busy_.end();
}

std::uint64_t ClipFiles::make(const Key& key, const std::string& owner,
                              std::shared_ptr<const JobResult> result, Then then) {
  const std::uint64_t asked = ++last_asked_;
  auto at = std::ranges::find(making_, key, &Making::key);
  if (at == making_.end()) {
    if (busy_.size() + waiting(nullptr) >= limits_.threads + limits_.waiting ||
        waiting(&owner) >= limits_.waiting_of_one) {
      then(Error{ErrorCode::overloaded, "too many clips are being encoded: try again"});
      return asked;
    }
    at = making_.insert(making_.end(), std::make_shared<Making>());
    (*at)->key = key;
    (*at)->owner = owner;
    (*at)->result = std::move(result);
  }
  (*at)->asked.emplace(asked, std::move(then));
  begin_next();
  return asked;
}

void ClipFiles::begin_next() {
  while (busy_.size() < limits_.threads) {
    const auto at = std::ranges::find_if(making_, [this](const MakingPtr& making) {
      return !making->has_begun && !is_busy_for(making->owner);
    });
    if (at == making_.end()) return;
    const MakingPtr making = *at;
    making->has_begun = true;
    busy_.push_back(making->owner);
    // The owner's other clips wait until all others have had their turns.
    making_.sort([&](const MakingPtr& one, const MakingPtr& other) {
      return (one->owner == making->owner) < (other->owner == making->owner);
    });
    workers_.post([this, making] {
      const auto file = std::make_shared<std::optional<Result<std::string>>>();
      try {
        const Key& key = making->key;
        file->emplace(encode_(making->result->pictures.at(key.picture).png, key.format, key.quality,
                              making->stop.get_token()));
      } catch (const std::exception& error) {
        file->emplace(Error{ErrorCode::failed, error.what()});
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
  busy_.erase(std::ranges::find(busy_, making->owner));
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
