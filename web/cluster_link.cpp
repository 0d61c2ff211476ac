#include "web/cluster_link.h"

#include <boost/asio/post.hpp>

#include "web/job_board.h"

namespace troupe::web {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kAskEvery{500};
constexpr milliseconds kTryAgain{500};
constexpr milliseconds kConnectDeadline{5000};
constexpr std::chrono::seconds kJobsWanted{10};
constexpr std::chrono::seconds kJobsEvery{5};  // where nobody wants them

}  // namespace

ClusterLink::ClusterLink(boost::asio::io_context& io, Target target, Handlers handlers)
    : io_(io),
      target_(std::move(target)),
      handlers_(std::make_shared<Handlers>(std::move(handlers))),
      thread_([this] { run(); }) {}

ClusterLink::~ClusterLink() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

std::shared_ptr<ClusterLink::Connection> ClusterLink::connection() const {
  std::lock_guard lock(mutex_);
  return connection_;
}

void ClusterLink::want_jobs() {
  std::lock_guard lock(mutex_);
  const bool slept = jobs_wanted_until_ < Clock::now();
  jobs_wanted_until_ = Clock::now() + kJobsWanted;
  if (slept) changed_.notify_all();
}

/// False when it is time to end.
bool ClusterLink::pause(milliseconds time) {
  std::unique_lock lock(mutex_);
  if (!ending_) changed_.wait_for(lock, time);
  return !ending_;
}

void ClusterLink::run() {
  do {
    while (!connect())
      if (!pause(kTryAgain)) return;
    while (ask())
      if (!pause(kAskEvery)) return;
  } while (pause(kTryAgain));
}

void ClusterLink::lose(const Error& why) {
  std::shared_ptr<Connection> lost;  // ends when the lock is given back
  {
    std::lock_guard lock(mutex_);
    lost.swap(connection_);
  }
  boost::asio::post(io_, [handlers = handlers_, why] { handlers->on_status(why); });
}

bool ClusterLink::connect() {
  auto client = Client::connect(target_.endpoint, kConnectDeadline, target_.keys);
  if (!client) {
    lose(client.error());
    return false;
  }
  auto inspector = Inspector::connect(target_.endpoint, kConnectDeadline, target_.keys);
  if (!inspector) {
    lose(inspector.error());
    return false;
  }
  const std::string series = series_name(inspector.value().job_series());
  {
    std::lock_guard lock(mutex_);
    connection_ = std::make_shared<Connection>(
        Connection{std::move(client.value()), std::move(inspector.value()), series});
    jobs_asked_ = {};
  }
  boost::asio::post(io_, [handlers = handlers_, series] { handlers->on_connected(series); });
  return true;
}

bool ClusterLink::ask() {
  const auto connection = this->connection();
  auto status = connection->client.status();
  if (!status) {
    lose(status.error());
    return false;
  }
  boost::asio::post(
      io_, [handlers = handlers_, status = std::move(status)] { handlers->on_status(status); });
  const auto now = Clock::now();
  {
    std::lock_guard lock(mutex_);
    if (now > jobs_wanted_until_ && now < jobs_asked_ + kJobsEvery) return true;
  }
  jobs_asked_ = now;
  auto jobs = connection->client.jobs();
  if (!jobs) {
    lose(jobs.error());
    return false;
  }
  boost::asio::post(
      io_, [handlers = handlers_, jobs = std::move(jobs.value())] { handlers->on_jobs(jobs); });
  return true;
}

}  // namespace troupe::web
