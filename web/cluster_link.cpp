#include "web/cluster_link.h"

#include <boost/asio/post.hpp>

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

std::shared_ptr<Client> ClusterLink::client() const {
  std::lock_guard lock(mutex_);
  return client_;
}

std::shared_ptr<Inspector> ClusterLink::inspector() const {
  std::lock_guard lock(mutex_);
  return inspector_;
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
  std::shared_ptr<Client> client;
  std::shared_ptr<Inspector> inspector;
  {
    std::lock_guard lock(mutex_);
    client.swap(client_);
    inspector.swap(inspector_);
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
  {
    std::lock_guard lock(mutex_);
    client_ = std::make_shared<Client>(std::move(client.value()));
    inspector_ = std::make_shared<Inspector>(std::move(inspector.value()));
    jobs_asked_ = {};
  }
  boost::asio::post(io_, [handlers = handlers_] { handlers->on_connected(); });
  return true;
}

bool ClusterLink::ask() {
  const auto client = this->client();
  auto status = client->status();
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
  auto jobs = client->jobs();
  if (!jobs) {
    lose(jobs.error());
    return false;
  }
  boost::asio::post(
      io_, [handlers = handlers_, jobs = std::move(jobs.value())] { handlers->on_jobs(jobs); });
  return true;
}

}  // namespace troupe::web
