#include "client/conversation.h"

#include "base/format.h"
#include "base/numbers.h"
#include "client/convert.h"
#include "client/link.h"

namespace troupe::client {

void JobFollower::end(Result<JobResult> outcome) {
  if (std::exchange(ended_, true)) return;
  events_.clear();
  on_end_(std::move(outcome));
}

void JobFollower::push(Event event) {
  if (ended_) return;
  events_.push_back(std::move(event));
  if (!fetching_) fetch_next();
}

const std::vector<wire::BlobRef>& JobFollower::blobs_of_front() const {
  return std::visit(
      [](const auto& event) -> const std::vector<wire::BlobRef>& { return event.blobs; },
      events_.front());
}

void JobFollower::fetch_next() {
  fetching_ = true;
  while (!events_.empty() && !ended_) {
    const std::vector<wire::BlobRef> blobs = blobs_of_front();
    if (!blobs.empty()) {
      missing_ = blobs.size();
      fetched_.assign(blobs.size(), {});
      for (std::size_t i = 0; i < blobs.size(); ++i) {
        fetch_(blobs[i], [self = shared_from_this(), i](control::BlobResult blob) {
          self->fetched(i, std::move(blob));
        });
      }
      return;
    }
    Event event = std::move(events_.front());
    events_.pop_front();
    std::visit([&](auto& message) { hand_on(message); }, event);
  }
  fetching_ = false;
}

void JobFollower::fetched(std::size_t index, control::BlobResult blob) {
  if (ended_) return;
  fetched_[index] = std::move(blob);
  if (--missing_ > 0) return;
  Event event = std::move(events_.front());
  events_.pop_front();
  std::visit([&](auto& message) { hand_on(message); }, event);
  fetch_next();
}

void JobFollower::hand_on(wire::JobProgress& from) {
  if (!on_progress_) return;
  Progress progress;
  progress.job = job_;
  // A word about the job's client, not about the job: that is where it was.
  if (!from.phase) std::tie(from.phase, from.step, from.steps, from.timestep) = last_;
  last_ = {from.phase, from.step, from.steps, from.timestep};
  progress.phase = from.phase.value_or(JobPhase::queued);
  progress.step = from.step;
  progress.steps = from.steps;
  progress.timestep = from.timestep;
  if (progress.phase == JobPhase::queued) progress.queue_position = queue_position_;
  progress.seconds_per_step = from.seconds_per_step;
  progress.warnings = std::move(from.warnings);
  progress.interim_step = from.blobs_step;
  for (std::size_t i = 0; i < from.blobs.size(); ++i) {
    const control::BlobResult& blob = fetched_[i];
    const std::string name = from.blobs[i].name;
    if (!blob) {
      progress.warnings.push_back(
          fmt::format("{} of step {} did not come: {}", name, from.blobs_step, blob.failure.what));
    } else if (name == "latents") {
      auto part = latents_from(*blob.bytes, from.blobs[i].shape);
      if (!part || !append_latents(progress.latents, std::move(*part))) {
        progress.warnings.push_back(
            fmt::format("latents of step {} do not fill their shape", from.blobs_step));
      }
    } else if (name == "preview") {
      progress.preview_png = *blob.bytes;
    }
  }
  on_progress_(progress);
}

void JobFollower::hand_on(wire::JobFinished& from) {
  if (from.state != JobState::succeeded) return end(job_error(from));
  const std::string job = fmt::format("job {}", job_);
  JobResult result;
  result.job = job_;
  result.report = std::move(from.report);
  for (std::size_t i = 0; i < from.blobs.size(); ++i) {
    const wire::BlobRef& ref = from.blobs[i];
    const control::BlobResult& blob = fetched_[i];
    if (!blob) {
      return end(Error{ErrorCode::not_fetched,
                       job + ": its " + ref.name + " could not be fetched: " + blob.failure.what});
    }
    if (ref.name == "picture") {
      result.pictures.push_back({*blob.bytes});
    } else if (ref.name == "latents") {
      auto part = latents_from(*blob.bytes, ref.shape);
      if (!part || !append_latents(result.latents, std::move(*part))) {
        return end(Error{ErrorCode::protocol,
                         fmt::format("{}: its latents have {} bytes, which do not fill their shape",
                                     job, blob.bytes->size())});
      }
    }
  }
  end(std::move(result));
}

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
