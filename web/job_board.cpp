#include "web/job_board.h"

#include <algorithm>
#include <filesystem>

#include "base/format.h"
#include "base/text.h"
#include "base/xxh64.h"
#include "models/image/clip_file.h"
#include "models/image/png_text.h"
#include "models/spec/hub.h"
#include "transport/json/info_json.h"
#include "web/api_error.h"

namespace troupe::web {
namespace {

JobState state_of(JobPhase phase) {
  if (phase == JobPhase::queued) return JobState::queued;
  return phase == JobPhase::loading ? JobState::loading : JobState::running;
}

/// Returns the phase where it is known, else the state.
std::string phase_text(const Job& job) {
  if (job.unreachable_since > 0) return to_string(JobPhase::unreachable);
  return job.phase ? to_string(*job.phase) : to_string(job.info.state);
}

std::size_t bytes_of(const JobResult& result) {
  std::size_t bytes = result.report.size();
  for (const Picture& picture : result.pictures)
    bytes += picture.png.size();
  return bytes + (result.latents ? result.latents->data.size() * sizeof(float) : 0);
}

/// Returns the cause of a job's state that its cluster has told; of an end that was asked for here,
/// by whom.
std::string cause_of(const Job& job, const std::string& told) {
  if (job.info.state == JobState::cancelled && !job.cancelled_by.empty())
    return "cancelled by " + job.cancelled_by;
  return in_fields(told);
}

/// Brings a job that is followed, or has ended, up to date: its own progress and its result say
/// more than the list. Returns whether it was paused or resumed.
bool listed_one(Job& job, const JobInfo& listed) {
  JobInfo& info = job.info;
  info.seed = listed.seed;
  info.own_seeds = listed.own_seeds;
  info.parallelism = listed.parallelism;
  info.batch = listed.batch;
  info.with_jobs = listed.with_jobs;
  info.not_batched = listed.not_batched;
  if (job.ended()) return false;
  info.seconds = listed.seconds;
  info.cause = in_fields(listed.cause);
  info.queue_position = listed.queue_position;
  // A job that is followed ends by its result alone, which may still be on its way.
  if (has_ended(listed.state)) return false;
  const bool is_turned = (listed.state == JobState::paused) != (info.state == JobState::paused);
  if (is_turned) info.state = listed.state;
  return is_turned;
}

}  // namespace

std::string JobKey::id() const {
  return fmt::format("{}-{}", number, series);
}

std::string series_name(const std::string& series) {
  Xxh64 hash;
  hash.update(series.data(), series.size());
  return fmt::format("{:08x}", static_cast<std::uint32_t>(hash.digest()));
}

std::string model_id(const std::string& folder) {
  return spec::model_label(folder);
}

std::vector<ModelName> name_models(const std::vector<std::string>& folders) {
  std::vector<ModelName> models;
  for (const std::string& folder : folders)
    if (std::ranges::none_of(models, [&](const auto& one) { return one.path == folder; }))
      models.push_back({model_id(folder), folder});
  const auto is_shared = [&](const std::string& id) {
    return std::ranges::count(models, id, &ModelName::id) > 1;
  };
  std::vector<std::string> longer;
  for (const ModelName& model : models) {
    const auto above = std::filesystem::path(model.path).lexically_normal().parent_path();
    longer.push_back(is_shared(model.id) ? model_id(above.string()) + "/" + model.id : model.id);
  }
  for (std::size_t i = 0; i < models.size(); ++i)
    models[i].id = longer[i];
  // Folders whose last two names are the same go by their whole paths.
  for (ModelName& model : models)
    if (std::ranges::count(longer, model.id) > 1) model.id = model.path;
  return models;
}

nlohmann::json to_json(const Job& job) {
  nlohmann::json pictures = nlohmann::json::array();
  for (int i = 0; i < job.info.pictures && job.info.state == JobState::succeeded; ++i) {
    nlohmann::json picture = {{"url", fmt::format("/api/v1/jobs/{}/pictures/{}", job.id, i)}};
    if (job.result && static_cast<std::size_t>(i) < job.result->pictures.size()) {
      const auto size = models::png_size(job.result->pictures[i].png);
      picture["width"] = size.width;
      picture["height"] = size.height;
      if (const int frames = models::clip_of(job.result->pictures[i].png).frames; frames > 1)
        picture["frames"] = frames;
    }
    pictures.push_back(std::move(picture));
  }
  nlohmann::json document = to_json(job.info), since, pace;
  if (job.unreachable_since > 0) since = job.unreachable_since;
  if (job.seconds_per_step > 0) pace = job.seconds_per_step;
  document.update({{"id", job.id},
                   {"number", job.key.number},
                   {"phase", phase_text(job)},
                   {"unreachable_since", std::move(since)},
                   {"timestep", job.timestep ? nlohmann::json(*job.timestep) : nlohmann::json()},
                   {"seconds_per_step", std::move(pace)},
                   {"pictures", std::move(pictures)},
                   {"warnings", job.warnings},
                   {"created_at", job.created_at}});
  return document;
}

JobPtr JobBoard::add(const JobKey& key, double now) {
  const std::string id = key.id();
  auto& job = jobs_[id];
  if (!job) {
    job = std::make_shared<Job>();
    job->id = id;
    job->key = key;
    job->info.id = key.number;
    job->info.parallelism.automatic = true;  // its degrees are not known yet
    job->created_at = now;
    order_.push_front(job);
    const JobPtr added = job;
    forget_jobs();
    return added;
  }
  return job;
}

JobPtr JobBoard::submitted(const JobKey& key, double now) {
  const JobPtr job = add(key, now);
  job->followed = true;
  if (job->ended() && !job->result && !job->error) {
    job->info.state = JobState::running;
    job->phase.reset();
  }
  return job;
}

void JobBoard::progress(const JobPtr& job, const Progress& progress, double now) {
  if (job->ended()) return;
  job->info.seconds = now - job->created_at;
  job->phase = progress.phase;
  if (job->info.state != JobState::paused) job->info.state = state_of(progress.phase);
  job->info.step = progress.step;
  job->timestep = progress.timestep;
  if (progress.steps > 0) job->info.steps = progress.steps;
  job->seconds_per_step = progress.seconds_per_step;
  job->info.queue_position = progress.phase == JobPhase::queued ? progress.queue_position : 0;
  for (const std::string& warning : progress.warnings)
    job->warnings.push_back(in_fields(warning));
  constexpr std::size_t kMostWarnings = 100;
  if (job->warnings.size() > kMostWarnings)
    job->warnings.erase(job->warnings.begin(), job->warnings.end() - kMostWarnings);
  tell(job, What::progress);
  if (progress.preview_png.empty()) return;
  job->preview = progress.preview_png;
  job->preview_step = progress.interim_step;
  tell(job, What::preview);
}

void JobBoard::end(const JobPtr& job, const Outcome& outcome, double now) {
  if (job->ended()) return;
  job->followed = false;
  job->unreachable_since = 0;
  job->preview.clear();
  job->info.queue_position = 0;
  job->info.seconds = now - job->created_at;
  if (outcome) {
    job->info.state = JobState::succeeded;
    job->info.step = job->info.steps;
    job->info.pictures = static_cast<int>(outcome.value()->pictures.size());
    keep(job, outcome.value());
  } else {
    job->error = outcome.error();
    job->info.state =
        outcome.error().code == ErrorCode::cancelled ? JobState::cancelled : JobState::failed;
    job->info.cause = cause_of(*job, outcome.error().what);
    if (job->info.state == JobState::cancelled) job->error->what = job->info.cause;
  }
  job->phase.reset();
  tell(job, What::end);
  forget_jobs();
}

void JobBoard::lose(std::size_t cluster, const Error& error, double now) {
  end_all([&](const Job& job) { return job.key.cluster == cluster; }, error, now);
}

void JobBoard::set_unreachable(std::size_t cluster, const std::string& why, double now) {
  // Who listens may ask for further changes.
  for (const JobPtr& job : std::vector(order_.begin(), order_.end())) {
    if (job->ended() || job->key.cluster != cluster) continue;
    job->unreachable_since = why.empty() ? 0 : now;
    job->info.cause = why;
    tell(job, What::progress);
  }
}

void JobBoard::begin_series(std::size_t cluster, const std::string& series, const Error& error,
                            double now) {
  end_all([&](const Job& job) { return job.key.cluster == cluster && job.key.series != series; },
          error, now);
}

void JobBoard::end_all(const std::function<bool(const Job&)>& which, const Error& error,
                       double now) {
  // Who listens may ask for further changes.
  for (const JobPtr& job : std::vector(order_.begin(), order_.end()))
    if (!job->ended() && which(*job)) end(job, error, now);
}

void JobBoard::keep(const JobPtr& job, std::shared_ptr<const JobResult> result) {
  if (job->result) return;
  const std::size_t bytes = bytes_of(*result);
  job->result = std::move(result);
  results_.emplace_front(job, bytes);
  result_bytes_ += bytes;
  forget_results();
}

void JobBoard::forget_results() {
  while (result_bytes_ > limits_.result_bytes && results_.size() > 1) {
    result_bytes_ -= results_.back().second;
    results_.back().first->result.reset();
    results_.pop_back();
  }
}

void JobBoard::drop_result(const JobPtr& job) {
  const auto kept = std::find_if(results_.begin(), results_.end(),
                                 [&](const auto& entry) { return entry.first == job; });
  if (kept == results_.end()) return;
  result_bytes_ -= kept->second;
  results_.erase(kept);
  job->result.reset();
}

void JobBoard::forget_jobs() {
  for (auto at = order_.end(); jobs_.size() > limits_.jobs && at != order_.begin();) {
    --at;
    if ((*at)->ended() && !listeners_.contains((*at)->id)) at = forget(at);
  }
}

std::list<JobPtr>::iterator JobBoard::forget(std::list<JobPtr>::iterator at) {
  drop_result(*at);
  jobs_.erase((*at)->id);
  return order_.erase(at);
}

void JobBoard::listed(std::size_t cluster, const std::string& series,
                      const std::vector<JobInfo>& jobs, double now) {
  std::vector<JobPtr> changed;  // paused, or resumed
  for (const JobInfo& info : jobs) {
    const JobKey key{cluster, series, info.id};
    JobPtr job = find(key.id());
    if (job) job->passes = 0;
    if (job && job->error && job->error->code == ErrorCode::lost)
      job->error.reset();  // it is not
    else if (job && (job->followed || job->ended())) {
      if (listed_one(*job, info)) changed.push_back(job);
      continue;
    }
    if (!job) {
      if (jobs_.size() >= limits_.jobs && !order_.empty() &&
          order_.back()->created_at > now - info.seconds)
        continue;
      job = add(key, now - info.seconds);
    }
    job->info = info;
    job->info.cause = cause_of(*job, info.cause);
    job->info.model = model_id(info.model);
    job->phase.reset();
    job->caller = info.on_behalf_of;
    tell(job, job->ended() ? What::end : What::progress);
  }
  sort();
  for (const JobPtr& job : changed)
    tell(job, What::progress);
}

void JobBoard::listed_all(std::size_t cluster, const std::string& series) {
  for (auto at = order_.begin(); at != order_.end();) {
    const Job& job = **at;
    const bool concerned = job.key.cluster == cluster && job.key.series == series && !job.ended() &&
                           !job.followed && !listeners_.contains(job.id);
    at = concerned && ++(*at)->passes > 2 ? forget(at) : std::next(at);
  }
}

void JobBoard::sort() {
  // Of equal ages the higher number is the newer one.
  order_.sort([](const JobPtr& a, const JobPtr& b) {
    return std::tie(a->created_at, a->key.number) > std::tie(b->created_at, b->key.number);
  });
}

JobPtr JobBoard::find(const std::string& id) const {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : found->second;
}

std::vector<JobPtr> JobBoard::list(const std::string& before, std::size_t limit,
                                   const std::function<bool(const Job&)>& wanted) const {
  std::vector<JobPtr> list;
  bool behind = before.empty();
  for (const JobPtr& job : order_) {
    if (list.size() >= limit) break;
    if (behind && wanted(*job)) list.push_back(job);
    behind = behind || job->id == before;
  }
  return list;
}

std::size_t JobBoard::open_jobs(const std::string& caller) const {
  return static_cast<std::size_t>(std::count_if(order_.begin(), order_.end(), [&](const auto& job) {
    return !job->ended() && job->caller == caller;
  }));
}

std::uint64_t JobBoard::listen(const std::string& id, Listener listener) {
  listeners_[id][++last_listener_] = std::move(listener);
  return last_listener_;
}

void JobBoard::unlisten(const std::string& id, std::uint64_t number) {
  const auto found = listeners_.find(id);
  if (found == listeners_.end()) return;
  found->second.erase(number);
  if (found->second.empty()) listeners_.erase(found);
}

void JobBoard::tell(const JobPtr& job, What what) {
  const auto found = listeners_.find(job->id);
  if (found == listeners_.end()) return;
  // A listener may remove itself, or another one.
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, listener] : found->second)
    numbers.push_back(number);
  for (const auto number : numbers) {
    const auto list = listeners_.find(job->id);
    if (list == listeners_.end()) return;
    const auto one = list->second.find(number);
    if (one == list->second.end()) continue;
    const Listener listener = one->second;
    listener(*job, what);
  }
}

}  // namespace troupe::web
