#include "client/conversation.h"

#include "base/format.h"
#include "base/numbers.h"
#include "client/link.h"

namespace troupe::client {
namespace {

using std::chrono::milliseconds;

std::string seconds_text(milliseconds time) {
  return number_text(static_cast<double>(time.count()) / 1000) + " s";
}

}  // namespace

std::shared_ptr<Conversation> Conversation::open(const std::string& endpoint, milliseconds timeout,
                                                 const std::string& keys, Error& error,
                                                 const std::stop_token& stop) {
  auto made = std::make_shared<Conversation>();
  Conversation* self = made.get();
  Link::Handlers handlers;
  const auto pass_on = [self](auto message) {
    const auto found = self->followers_.find(message.job);
    if (found == self->followers_.end()) return;
    const std::shared_ptr<JobFollower> follower = found->second;
    follower->add(std::move(message));
  };
  handlers.on_progress = pass_on;
  handlers.on_finished = pass_on;
  handlers.on_notice = [self](const std::string& text) {
    for (const auto& [job, follower] : std::map(self->followers_)) {
      wire::JobProgress progress;
      progress.job = job;
      progress.warnings = {text};
      follower->add(std::move(progress));
    }
  };
  handlers.on_lost = [self](const Error& why) { self->lose(why); };
  made->link_ = Link::open(endpoint, timeout, std::move(handlers), error, keys, stop);
  return made->link_ ? made : nullptr;
}

void Conversation::follow(std::uint64_t job, Client::OnProgress on_progress) {
  {
    std::lock_guard lock(mutex_);
    endings_.try_emplace(job);
  }
  auto& follower = followers_[job];
  if (!follower) {
    follower = std::make_shared<JobFollower>(
        job,
        [this](const wire::BlobRef& blob, control::BlobHandler handler) {
          link_->fetch(blob, std::move(handler));
        },
        [this, job](Result<JobResult> result) { end(job, std::move(result)); });
  }
  if (on_progress) follower->on_progress(std::move(on_progress), link_->own_thread());
}

/// Follows a job that may be over, or another client's: then the controller is asked to tell of it.
void Conversation::attach(std::uint64_t job, bool ask, const Client::OnProgress& on_progress) {
  {
    std::lock_guard lock(mutex_);
    const auto found = endings_.find(job);
    if (found == endings_.end() || found->second.result) return;
  }
  follow(job, on_progress);
  if (!ask) return;
  link_->request<wire::Done>(wire::WaitJob{job}, kAnswerDeadline,
                             [this, job](const Result<wire::Done>& done) {
                               const auto found = followers_.find(job);
                               if (done || found == followers_.end()) return;
                               const std::shared_ptr<JobFollower> follower = found->second;
                               follower->end(done.error());
                             });
}

void Conversation::end(std::uint64_t job, Result<JobResult> result) {
  followers_.erase(job);
  Client::OnEnd watcher;
  if (const auto found = watchers_.find(job); found != watchers_.end()) {
    watcher = std::move(found->second);
    watchers_.erase(found);
  }
  {
    std::lock_guard lock(mutex_);
    Ending& ending = endings_[job];
    if (watcher && ending.waiters == 0) {
      endings_.erase(job);
    } else if (watcher) {
      ending.result = result;
    } else {
      ending.result = std::move(result);
    }
    changed_.notify_all();
  }
  if (watcher) watcher(result);
}

void Conversation::watch(std::uint64_t job, Client::OnProgress on_progress, Client::OnEnd on_end) {
  link_->post(
      [this, job, on_progress = std::move(on_progress), on_end = std::move(on_end)]() mutable {
        std::optional<Result<JobResult>> ended;
        bool known;
        {
          std::lock_guard lock(mutex_);
          const auto [ending, added] = endings_.try_emplace(job);
          known = !added;
          ended = ending->second.result;
          if (ended && ending->second.waiters == 0) endings_.erase(ending);
        }
        if (ended) return on_end(*ended);
        watchers_[job] = std::move(on_end);
        attach(job, !known, on_progress);
      });
}

void Conversation::lose(const Error& error) {
  const auto open_jobs = followers_;
  for (const auto& [job, follower] : open_jobs) {
    follower->end(Error{error.code, fmt::format("job {}: {}", job, error.what)});
  }
}

Result<JobResult> Conversation::await(std::uint64_t job, milliseconds timeout,
                                      std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(mutex_);
  Ending& ending = endings_[job];
  ++ending.waiters;
  const bool ended = changed_.wait_until(lock, until, [&] { return ending.result.has_value(); });
  --ending.waiters;
  if (!ended) {
    return Error{ErrorCode::timeout, fmt::format("job {} has not ended within {}; it goes on", job,
                                                 seconds_text(timeout))};
  }
  if (ending.waiters > 0) return *ending.result;
  Result<JobResult> result = std::move(*ending.result);
  endings_.erase(job);
  return result;
}

void Conversation::accepted(const wire::JobAccepted& accepted, Client::OnProgress on_progress) {
  follow(accepted.job, std::move(on_progress));
  if (accepted.queue_position <= 0 && accepted.warnings.empty()) return;
  wire::JobProgress progress;
  progress.job = accepted.job;
  progress.phase = JobPhase::queued;
  progress.steps = accepted.steps;
  progress.warnings = accepted.warnings;
  followers_[accepted.job]->set_queue_position(accepted.queue_position);
  followers_[accepted.job]->add(std::move(progress));
}

Result<JobResult> Conversation::wait(std::uint64_t job, milliseconds timeout,
                                     std::chrono::steady_clock::time_point until,
                                     const Client::OnProgress& on_progress) {
  bool known;
  {
    std::lock_guard lock(mutex_);
    known = !endings_.try_emplace(job).second;
  }
  if (!known || on_progress)
    link_->post([this, job, known, on_progress] { attach(job, !known, on_progress); });
  return await(job, timeout, until);
}

}  // namespace troupe::client
