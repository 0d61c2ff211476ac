#include "client/cli/verbs/starting.h"

#include <unistd.h>

#include <iostream>
#include <stdexcept>

#include "base/text.h"
#include "client/cli/progress.h"
#include "client/cli/terminal.h"
#include "controller/hosts/capacity.h"

namespace troupe::cli {
namespace {

constexpr int kSeconds = 120;
constexpr int kSecondsAnActor = 5;
constexpr std::chrono::milliseconds kTickEvery{200};

}  // namespace

void check_crowding(int actors, int threads_per_actor, const std::string& device) {
  const auto capacity = cluster::local_capacity();
  if (const auto why = cluster::too_crowded(actors, capacity)) throw std::runtime_error(*why);
  if (const auto what = cluster::crowding(actors, threads_per_actor, device, capacity))
    std::cerr << coloured("troupe: warning:", Colour::yellow, STDERR_FILENO) << " " << *what
              << std::endl;
}

std::chrono::seconds ready_deadline(int actors) {
  return std::chrono::seconds(kSeconds +
                              kSecondsAnActor * actors / cluster::local_capacity().cores);
}

StartingView::StartingView(int actors, bool quiet) {
  if (actors == 0 || progress_style(quiet) != ProgressStyle::bar) return;
  thread_ = std::thread([this, actors] {
    ProgressView view(std::cerr, ProgressStyle::bar);
    std::unique_lock lock(mutex_);
    view.show("starting " + counted(actors, "actor"));
    while (!over_.wait_for(lock, kTickEvery, [this] { return ends_; }))
      view.tick();
    view.finish();
  });
}

StartingView::~StartingView() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  over_.notify_all();
  thread_.join();
}

}  // namespace troupe::cli
