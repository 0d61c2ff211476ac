#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace troupe::service {

/// A thread (or a few) beside the loop for what may take long, so that a slow disk or a long text
/// does not keep the loop from its heartbeats. Belongs to the thread that runs the loop.
class SideThread {
 public:
  using OnLoop = std::function<void()>;
  /// Work for the thread; what it answers, if anything, runs on the loop, and what it throws is
  /// thrown there. The work holds what it needs: it may outlive whoever posted it.
  using Work = std::function<OnLoop()>;

  /// `to_loop` brings something to the loop; it is called on the thread. Of several `threads` each
  /// takes what was posted first.
  explicit SideThread(std::function<void(OnLoop)> to_loop, std::size_t most = 64, int threads = 1);
  /// Lets nothing come to the loop any more. What was posted is done first, for a moment; work that
  /// hangs in the file system is left to itself.
  ~SideThread();
  SideThread(const SideThread&) = delete;
  SideThread& operator=(const SideThread&) = delete;

  /// Posts work, which is begun in the order of these calls. False, and nothing will be done, where
  /// `most` are waiting already.
  bool post(Work work);
  /// True when nothing waits or is being done.
  bool idle() const;

 private:
  struct Shared;
  static void run(const std::shared_ptr<Shared>& shared);
  static OnLoop done(const Work& work);

  std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
};

}  // namespace troupe::service
