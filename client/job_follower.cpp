#include "client/job_follower.h"

#include "base/format.h"
#include "client/convert.h"

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

}  // namespace troupe::client
