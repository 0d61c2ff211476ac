#pragma once
#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <string>

namespace troupe::web {

/// Runs on a few threads what must not hold up the loop: questions to a cluster, files of pictures.
/// Askers take turns, and one of them has at most half of the threads at once.
class Workers {
 public:
  static constexpr std::size_t kMostWaiting = 4096;
  static constexpr std::size_t kMostWaitingOfOne = 1024;

  explicit Workers(std::size_t threads) : threads_(threads), pool_(threads) {}
  ~Workers() { end(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// `asker`: for whom, a key's name or an address; "" is the gateway itself, which has all
  /// threads. False, and nothing happens, where too many wait already.
  bool post(std::function<void()> work, const std::string& asker = "") {
    std::lock_guard lock(mutex_);
    auto own = std::ranges::find(askers_, asker, &Asker::name);
    if (waiting_ >= kMostWaiting ||
        (own != askers_.end() && !asker.empty() && own->waiting.size() >= kMostWaitingOfOne))
      return false;
    if (own == askers_.end()) own = askers_.insert(askers_.end(), {asker, {}, 0});
    own->waiting.push_back(std::move(work));
    ++waiting_;
    begin_next();
    return true;
  }
  /// Returns when what has begun is done; the rest does not begin.
  void end() {
    {
      std::lock_guard lock(mutex_);
      has_ended_ = true;
    }
    pool_.stop();
    pool_.join();
  }

 private:
  struct Asker {
    std::string name;
    std::deque<std::function<void()>> waiting;
    std::size_t running;
  };

  bool may_begin(const Asker& asker) const {
    return !asker.waiting.empty() &&
           (asker.name.empty() || asker.running < std::max<std::size_t>(1, threads_ / 2));
  }
  /// Begins work that waits; the caller holds the lock.
  void begin_next() {
    while (running_ < threads_ && !has_ended_) {
      const auto own =
          std::ranges::find_if(askers_, [this](const Asker& asker) { return may_begin(asker); });
      if (own == askers_.end()) return;
      auto work = std::move(own->waiting.front());
      own->waiting.pop_front();
      --waiting_;
      ++own->running;
      ++running_;
      askers_.splice(askers_.end(), askers_, own);  // the next turn is others'
      boost::asio::post(pool_, [this, own, work = std::move(work)] {
        work();
        std::lock_guard lock(mutex_);
        --running_;
        if (--own->running == 0 && own->waiting.empty()) askers_.erase(own);
        begin_next();
      });
    }
  }

  const std::size_t threads_;
  std::mutex mutex_;
  std::list<Asker> askers_;  // the one whose turn it is first; those who run or wait
  std::size_t waiting_ = 0;
  std::size_t running_ = 0;
  bool has_ended_ = false;
  boost::asio::thread_pool pool_;
};

}  // namespace troupe::web
