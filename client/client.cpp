#include "troupe/client.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>

#include "client/convert.h"
#include "client/job_follower.h"
#include "client/link.h"
#include "troupe/actor.h"

namespace troupe {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAnswerDeadline = std::chrono::seconds(30);
constexpr milliseconds kUploadDeadline = std::chrono::minutes(10);
constexpr milliseconds kLongestWait = std::chrono::hours(24 * 365);

Error called_from_callback(const std::string& call) {
  return {"bad_request", "[client] " + call + " would wait for itself inside a progress callback"};
}

std::string seconds_text(milliseconds time) {
  std::string text = std::to_string(time.count() / 1000.0);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

}  // namespace

struct Client::Impl {
  struct Ending {
    std::optional<Result<JobResult>> result;
    int waiters = 0;
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::uint64_t, Ending>
      endings;  // of jobs that are followed, or ended and not yet asked for
  std::map<std::uint64_t, std::shared_ptr<client::JobFollower>> followers;  // link's thread
  std::map<std::uint64_t, control::BlobId> uploads;                         // link's thread
  std::unique_ptr<client::Link> link;  // last: its thread ends before the rest goes

  static std::unique_ptr<Impl> open(const std::string& endpoint, milliseconds timeout,
                                    const std::string& keys, Error& error);
  void follow(std::uint64_t job, OnProgress on_progress);
  void attach(std::uint64_t job, bool ask, const OnProgress& on_progress);
  void end(std::uint64_t job, Result<JobResult> result);
  void lose(const Error& error);
  Result<JobResult> await(std::uint64_t job, milliseconds timeout,
                          std::chrono::steady_clock::time_point until);
};

std::unique_ptr<Client::Impl> Client::Impl::open(const std::string& endpoint, milliseconds timeout,
                                                 const std::string& keys, Error& error) {
  auto impl = std::make_unique<Impl>();
  Impl* self = impl.get();
  client::Link::Handlers handlers;
  const auto pass_on = [self](auto message) {
    const auto found = self->followers.find(message.job);
    if (found == self->followers.end()) return;
    const std::shared_ptr<client::JobFollower> follower = found->second;
    follower->add(std::move(message));
  };
  handlers.on_progress = pass_on;
  handlers.on_finished = pass_on;
  handlers.on_lost = [self](const Error& why) { self->lose(why); };
  impl->link = client::Link::open(endpoint, timeout, std::move(handlers), error, keys);
  return impl->link ? std::move(impl) : nullptr;
}

void Client::Impl::follow(std::uint64_t job, OnProgress on_progress) {
  {
    std::lock_guard lock(mutex);
    endings.try_emplace(job);
  }
  auto& follower = followers[job];
  if (!follower) {
    follower = std::make_shared<client::JobFollower>(
        job,
        [this](const wire::BlobRef& blob, control::BlobHandler handler) {
          link->fetch(blob, std::move(handler));
        },
        [this, job](Result<JobResult> result) { end(job, std::move(result)); });
  }
  if (on_progress) follower->on_progress(std::move(on_progress));
}

/// Follows a job that may be over, or another client's: then the controller is asked to tell of it.
void Client::Impl::attach(std::uint64_t job, bool ask, const OnProgress& on_progress) {
  {
    std::lock_guard lock(mutex);
    const auto found = endings.find(job);
    if (found == endings.end() || found->second.result) return;
  }
  follow(job, on_progress);
  if (!ask) return;
  link->request<wire::Done>(wire::WaitJob{job}, kAnswerDeadline,
                            [this, job](const Result<wire::Done>& done) {
                              const auto found = followers.find(job);
                              if (done || found == followers.end()) return;
                              const std::shared_ptr<client::JobFollower> follower = found->second;
                              follower->end(done.error());
                            });
}

void Client::Impl::end(std::uint64_t job, Result<JobResult> result) {
  followers.erase(job);
  if (const auto upload = uploads.find(job); upload != uploads.end()) {
    link->drop(upload->second);
    uploads.erase(upload);
  }
  std::lock_guard lock(mutex);
  endings[job].result = std::move(result);
  changed.notify_all();
}

void Client::Impl::lose(const Error& error) {
  const auto open_jobs = followers;
  for (const auto& [job, follower] : open_jobs) {
    follower->end(Error{error.code, "job " + std::to_string(job) + ": " + error.what});
  }
}

Result<JobResult> Client::Impl::await(std::uint64_t job, milliseconds timeout,
                                      std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(mutex);
  Ending& ending = endings[job];
  ++ending.waiters;
  const bool ended = changed.wait_until(lock, until, [&] { return ending.result.has_value(); });
  --ending.waiters;
  if (!ended) {
    return Error{"timeout", "job " + std::to_string(job) + " has not ended within " +
                                seconds_text(timeout) + "; it goes on"};
  }
  if (ending.waiters > 0) return *ending.result;
  Result<JobResult> result = std::move(*ending.result);
  endings.erase(job);
  return result;
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

Result<Client> Client::connect(const std::string& endpoint, milliseconds timeout,
                               const std::string& keys) {
  Error error;
  const char* set = keys.empty() ? std::getenv("TROUPE_KEYS") : nullptr;
  auto impl = Impl::open(endpoint, std::clamp(timeout, milliseconds(1), kLongestWait),
                         set ? set : keys, error);
  if (!impl) return error;
  return Client(std::move(impl));
}

Result<std::uint64_t> Client::submit(const Submission& submission, OnProgress on_progress) {
  if (impl_->link->on_thread()) return called_from_callback("submit");
  if (const auto error = client::check_init_latents(submission.request)) return *error;
  wire::SubmitJob message{client::to_wire(submission), submission.detached};
  control::BlobId upload = 0;
  if (submission.request.init_latents) {
    std::string bytes = client::latents_bytes(*submission.request.init_latents);
    message.job.request.init_latents_bytes = bytes.size();
    upload = impl_->link->hold(std::move(bytes));
    message.job.request.init_latents_blob = upload;
  }
  const std::function<void(const wire::JobAccepted&)> follow =
      [impl = impl_.get(), upload, on_progress,
       steps = submission.request.steps](const wire::JobAccepted& accepted) {
        if (upload != 0) impl->uploads[accepted.job] = upload;
        impl->follow(accepted.job, on_progress);
        if (accepted.queue_position > 0 || !accepted.warnings.empty()) {
          wire::JobProgress progress;
          progress.job = accepted.job;
          progress.phase = "queued";
          progress.steps = steps;
          progress.warnings = accepted.warnings;
          impl->followers[accepted.job]->add(std::move(progress));
        }
      };
  auto accepted = impl_->link->ask<wire::JobAccepted>(
      message, upload ? kUploadDeadline : kAnswerDeadline, follow);
  if (accepted) return accepted.value().job;
  if (upload != 0) impl_->link->drop(upload);
  return accepted.error();
}

Result<JobResult> Client::wait(std::uint64_t job, milliseconds timeout, OnProgress on_progress) {
  if (impl_->link->on_thread()) return called_from_callback("wait");
  timeout = std::clamp(timeout, milliseconds(0), kLongestWait);
  const auto until = std::chrono::steady_clock::now() + timeout;
  bool known;
  {
    std::lock_guard lock(impl_->mutex);
    known = !impl_->endings.try_emplace(job).second;
  }
  Impl* impl = impl_.get();
  if (!known || on_progress) {
    impl->link->post([impl, job, known, on_progress = std::move(on_progress)] {
      impl->attach(job, !known, on_progress);
    });
  }
  return impl->await(job, timeout, until);
}

Result<std::string> Client::cancel(std::uint64_t job) {
  if (impl_->link->on_thread()) {
    impl_->link->request<wire::Done>(wire::CancelJob{job}, kAnswerDeadline,
                                     [](const Result<wire::Done>&) {});
    return std::string("asked to cancel job " + std::to_string(job));
  }
  auto done = impl_->link->ask<wire::Done>(wire::CancelJob{job}, kAnswerDeadline);
  if (!done) return done.error();
  return done.value().note;
}

Result<std::vector<JobInfo>> Client::jobs() {
  if (impl_->link->on_thread()) return called_from_callback("jobs");
  auto list = impl_->link->ask<wire::JobList>(wire::ListJobs{}, kAnswerDeadline);
  if (!list) return list.error();
  return client::to_public(std::move(list.value()));
}

Result<ClusterInfo> Client::status() {
  if (impl_->link->on_thread()) return called_from_callback("status");
  auto status = impl_->link->ask<wire::ClusterStatus>(wire::GetStatus{}, kAnswerDeadline);
  if (!status) return status.error();
  return client::to_public(std::move(status.value()));
}

Actors Client::actors() {
  return Actors(impl_->link->exchange());
}

Result<std::string> Client::stop_cluster() {
  if (impl_->link->on_thread()) return called_from_callback("stop_cluster");
  auto done = impl_->link->ask<wire::Done>(wire::StopCluster{}, kAnswerDeadline);
  if (!done) return done.error();
  return done.value().note;
}

}  // namespace troupe
