#include "web/cluster_link.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <iterator>

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
constexpr std::size_t kPage = 400;             // jobs of one request
constexpr std::size_t kMostSought = 64;

}  // namespace

ClusterLink::ClusterLink(boost::asio::io_context& io, Target target, Handlers handlers)
    : io_(io),
      target_(std::move(target)),
      handlers_(std::make_shared<Handlers>(std::move(handlers))),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

ClusterLink::~ClusterLink() {
  {
    std::lock_guard lock(mutex_);
    thread_.request_stop();
    changed_.notify_all();
  }
  thread_.join();
}

std::shared_ptr<ClusterLink::Clients> ClusterLink::connection() const {
  std::lock_guard lock(mutex_);
  return connection_;
}

void ClusterLink::want_jobs() {
  std::lock_guard lock(mutex_);
  const bool slept = jobs_wanted_until_ < Clock::now();
  jobs_wanted_until_ = Clock::now() + kJobsWanted;
  if (slept) changed_.notify_all();
}

bool ClusterLink::seek(std::uint64_t job) {
  std::lock_guard lock(mutex_);
  if (sought_.contains(job)) return true;
  if (sought_.size() >= kMostSought) return false;
  sought_.insert(job);
  changed_.notify_all();
  return true;
}

/// Waits for `time`. False when it is time to end.
bool ClusterLink::pause(milliseconds time, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  if (!stop.stop_requested()) changed_.wait_for(lock, time);
  return !stop.stop_requested();
}

void ClusterLink::run(const std::stop_token& stop) {
  do {
    while (!connect(stop))
      if (!pause(kTryAgain, stop)) return;
    while (ask(stop))
      if (!pause(kAskEvery, stop)) return;
  } while (pause(kTryAgain, stop));
}

void ClusterLink::lose(const Error& why) {
  std::shared_ptr<Clients> lost;  // ends when the lock is given back
  {
    std::lock_guard lock(mutex_);
    lost.swap(connection_);
  }
  boost::asio::post(io_, [handlers = handlers_, why] { handlers->on_status(why); });
}

Result<std::shared_ptr<Inspector>> ClusterLink::inspect(const std::stop_token& stop) const {
  auto inspector = Inspector::connect(target_.endpoint, kConnectDeadline, target_.keys, stop);
  if (!inspector) return inspector.error();
  return std::make_shared<Inspector>(std::move(inspector.value()));
}

bool ClusterLink::connect(const std::stop_token& stop) {
  auto client = Client::connect(target_.endpoint, kConnectDeadline, target_.keys, stop);
  if (!client) {
    lose(client.error());
    return false;
  }
  auto inspector = inspect(stop);
  if (!inspector) {
    lose(inspector.error());
    return false;
  }
  const std::string series = series_name(inspector.value()->job_series());
  {
    std::lock_guard lock(mutex_);
    connection_ = std::make_shared<Clients>(Clients{
        std::make_shared<Client>(std::move(client.value())), std::move(inspector.value()), series});
    jobs_asked_ = {};
  }
  status_asked_ = {};
  next_page_ = 0;
  boost::asio::post(io_, [handlers = handlers_, series] { handlers->on_connected(series); });
  return true;
}

bool ClusterLink::ask(const std::stop_token& stop) {
  const auto connection = this->connection();
  const auto now = Clock::now();
  std::set<std::uint64_t> sought;
  {
    std::lock_guard lock(mutex_);
    sought.swap(sought_);
  }
  // Whoever seeks a job ends the pause: then this job alone is asked for.
  const bool is_early = !sought.empty() && now < status_asked_ + kAskEvery;
  if (!is_early && !ask_status(*connection, stop)) return false;
  bool with_pages = false;
  if (!is_early) {
    std::lock_guard lock(mutex_);
    with_pages = now <= jobs_wanted_until_ || now >= jobs_asked_ + kJobsEvery;
  }
  if (sought.empty() && !with_pages) return true;
  if (with_pages) jobs_asked_ = now;
  auto listing = list(*connection->client, with_pages, sought);
  if (!listing) {
    lose(listing.error());
    return false;
  }
  boost::asio::post(io_, [handlers = handlers_, listing = std::move(listing.value())]() mutable {
    handlers->on_jobs(std::move(listing));
  });
  return true;
}

/// Asks how the cluster is. False when the connection is lost.
bool ClusterLink::ask_status(const Clients& connection, const std::stop_token& stop) {
  status_asked_ = Clock::now();
  auto status = connection.client->status();
  if (!status) {
    lose(status.error());
    return false;
  }
  if (connection.inspector->lost()) {
    if (auto inspector = inspect(stop)) {
      std::lock_guard lock(mutex_);
      connection_ = std::make_shared<Clients>(
          Clients{connection.client, std::move(inspector.value()), connection.series});
    }
  }
  boost::asio::post(
      io_, [handlers = handlers_, status = std::move(status)] { handlers->on_status(status); });
  return true;
}

/// Asks for the jobs that are sought and, with pages, for the first one (what runs, and what is
/// next) and another one in turn, so that a long queue costs two requests each time and not all of
/// its pages. The first time it asks for all of them.
Result<ClusterLink::Listing> ClusterLink::list(Client& client, bool with_pages,
                                               const std::set<std::uint64_t>& sought) {
  Listing listing;
  std::size_t all = 0;
  const auto add = [&](const JobQuery& query) -> std::optional<Error> {
    auto page = client.jobs(query);
    if (!page) return page.error();
    if (query.job == 0) all = page.value().all;
    std::ranges::move(page.value().jobs, std::back_inserter(listing.jobs));
    return std::nullopt;
  };
  if (with_pages) {
    if (auto error = add({.skip = 0, .most = kPage})) return *error;
    const bool is_first = next_page_ == 0;
    std::size_t next = std::max(next_page_, kPage);
    while (next < all) {
      if (auto error = add({.skip = next, .most = kPage})) return *error;
      next += kPage;
      if (!is_first) break;
    }
    listing.all_seen = next >= all;
    next_page_ = listing.all_seen ? kPage : next;
  }
  for (const auto job : sought) {
    if (auto error = add({.job = job})) return *error;
    listing.sought.push_back(job);
  }
  return listing;
}

}  // namespace troupe::web
