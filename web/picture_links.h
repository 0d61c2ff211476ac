#pragma once
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "web/job_board.h"

namespace troupe::web {

/// Links to pictures that whoever knows them may fetch, for a while: what OpenAI's "url" answers
/// are. Pure; `now` in seconds. The names come in, because they must not be guessed.
class PictureLinks {
 public:
  struct Link {
    std::weak_ptr<Job> job;  // dead when it is forgotten: another one may get its number
    std::size_t picture = 0;
    PictureKind kind;
    double until = 0;
  };
  static constexpr double kSeconds = 3600;
  static constexpr std::size_t kMost = 10'000;  // the oldest go first

  void add(const std::string& name, Link link, double now) {
    link.until = now + kSeconds;
    if (links_.insert_or_assign(name, std::move(link)).second) order_.push_back(name);
    while (links_.size() > kMost) {
      links_.erase(order_.front());
      order_.pop_front();
    }
  }
  std::optional<Link> find(const std::string& name, double now) const {
    const auto found = links_.find(name);
    if (found == links_.end() || found->second.until < now || found->second.job.expired())
      return std::nullopt;
    return found->second;
  }

 private:
  std::map<std::string, Link> links_;
  std::deque<std::string> order_;
};

}  // namespace troupe::web
