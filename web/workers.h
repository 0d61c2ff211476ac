#pragma once
#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>

namespace troupe::web {

/// A few threads for what must not hold up the loop: questions to a cluster, files of pictures.
class Workers {
 public:
  explicit Workers(std::size_t threads) : pool_(threads) {}
  ~Workers() { end(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// False, and nothing happens, where too many wait already.
  bool post(std::function<void()> work) {
    constexpr int kMostWaiting = 4096;
    if (waiting_.load() >= kMostWaiting) return false;
    ++waiting_;
    boost::asio::post(pool_, [this, work = std::move(work)] {
      --waiting_;
      work();
    });
    return true;
  }
  /// Returns when what has begun is done; the rest does not begin.
  void end() {
    pool_.stop();
    pool_.join();
  }

 private:
  std::atomic<int> waiting_ = 0;
  boost::asio::thread_pool pool_;
};

}  // namespace troupe::web
