#include "controller/service/side_thread.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>

namespace troupe::service {
namespace {

constexpr std::chrono::seconds kEndDeadline{2};

}  // namespace

struct SideThread::Shared {
  std::function<void(OnLoop)> to_loop;  // by the thread only while not `closed`
  std::size_t most = 0;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Work> waiting;
  int threads = 0;  // that have not ended
  int busy = 0;
  bool closed = false;
};

SideThread::SideThread(std::function<void(OnLoop)> to_loop, std::size_t most, int threads)
    : shared_(std::make_shared<Shared>()) {
  shared_->to_loop = std::move(to_loop);
  shared_->most = most;
  shared_->threads = threads;
  try {
    for (int i = 0; i < threads; ++i)
      threads_.emplace_back([shared = shared_] { run(shared); });
  } catch (...) {
    // Those that run have nothing to do yet.
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->closed = true;
    }
    shared_->changed.notify_all();
    for (auto& thread : threads_)
      thread.join();
    throw;
  }
}

SideThread::~SideThread() {
  std::unique_lock lock(shared_->mutex);
  shared_->closed = true;
  shared_->changed.notify_all();
  const bool ended =
      shared_->changed.wait_for(lock, kEndDeadline, [this] { return shared_->threads == 0; });
  shared_->waiting.clear();
  lock.unlock();
  for (auto& thread : threads_) {
    if (ended) {
      thread.join();
    } else {
      thread.detach();
    }
  }
}

bool SideThread::post(Work work) {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->waiting.size() >= shared_->most) return false;
  shared_->waiting.push_back(std::move(work));
  shared_->changed.notify_one();  // each of the others would cost a wake-up
  return true;
}

bool SideThread::idle() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->waiting.empty() && shared_->busy == 0;
}

SideThread::OnLoop SideThread::done(const Work& work) {
  try {
    return work();
  } catch (...) {
    return [error = std::current_exception()] { std::rethrow_exception(error); };
  }
}

void SideThread::run(const std::shared_ptr<Shared>& shared) {
  std::unique_lock lock(shared->mutex);
  for (;;) {
    shared->changed.wait(lock, [&] { return shared->closed || !shared->waiting.empty(); });
    if (shared->waiting.empty()) break;
    auto work = std::move(shared->waiting.front());
    shared->waiting.pop_front();
    ++shared->busy;
    lock.unlock();
    auto answer = done(work);
    work = nullptr;
    lock.lock();
    --shared->busy;
    if (!answer || shared->closed) continue;
    shared->to_loop([shared, answer = std::move(answer)] {
      {
        const std::lock_guard on_loop(shared->mutex);
        if (shared->closed) return;
      }
      answer();
    });
  }
  --shared->threads;
  shared->changed.notify_all();
}

}  // namespace troupe::service
