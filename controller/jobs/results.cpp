#include "controller/jobs/results.h"

#include <algorithm>

#include "base/format.h"
#include "controller/jobs/batching.h"

namespace troupe::jobs {
namespace {

/// Steps whose previews and latents are kept for clients to fetch.
constexpr std::size_t kInterimSteps = 4;

std::string text_of(const wire::Warning& warning) {
  if (!warning.prompt) return warning.what;
  return fmt::format("prompt {} {}", *warning.prompt, warning.what);
}

}  // namespace

void Results::pass_on(JobEntry& job, Interim& interim, int expected, const Origin& from,
                      const wire::BlobRef& own) {
  auto& parts = interim[from.step];
  parts[from.replica] = own;
  if (static_cast<int>(parts.size()) < expected) return;
  std::vector<wire::BlobRef> whole;
  for (const auto& [replica, part] : parts)
    whole.push_back(part);
  interim.erase(from.step);
  auto& kept = job.outcome.interim;
  kept.push_back(whole);
  if (kept.size() > kInterimSteps) {
    for (const auto& old : kept.front())
      tools_.environment.drop_blob(old.id);
    kept.pop_front();
  }
  tools_.callbacks.tell(job, {from.step + 1, std::move(whole)}, {});
}

void Results::drop_interim(Interim& interim) {
  for (const auto& [step, parts] : interim) {
    for (const auto& [replica, part] : parts)
      tools_.environment.drop_blob(part.id);
  }
  interim.clear();
}

void Results::say(JobEntry& job, const std::vector<wire::Warning>& warnings) {
  std::vector<std::string> news;
  auto& known = job.outcome.warnings;
  for (const auto& warning : warnings) {
    auto text = text_of(warning);
    if (std::ranges::find(known, text) != known.end()) continue;
    known.push_back(text);
    news.push_back(std::move(text));
  }
  if (!news.empty()) tools_.callbacks.tell(job, {}, std::move(news));
}

std::optional<std::string> Results::check_message_size(const JobEntry& job) {
  try {
    wire::encode(finished_message(job));
  } catch (const wire::WireError& error) {
    return std::string("its report cannot be sent: ") + error.what();
  }
  return std::nullopt;
}

std::string OwnResults::name() const {
  return jobs_text({job_.id});
}

void OwnResults::progress(const std::vector<std::string>& warnings) {
  tools_.callbacks.tell(job_, {}, warnings);
}

void OwnResults::take(const Origin& from, const wire::BlobRef& own, const std::string&) {
  if (from.result) {
    results_[{from.task, from.index}] = own;
  } else {
    pass_on(job_, interim_, own.name == "latents" ? job_.plan.degrees.dp : 1, from, own);
  }
}

void OwnResults::boundary_kept() {
  tools_.listener->boundary(job_);
}

void OwnResults::drop() {
  drop_interim(interim_);
  for (const auto& [place, blob] : results_)
    tools_.environment.drop_blob(blob.id);
  results_.clear();
}

void OwnResults::succeed(const RunFigures& figures) {
  auto& blobs = job_.outcome.blobs;
  for (const auto& [place, blob] : results_)
    blobs.push_back(blob);
  std::stable_partition(blobs.begin(), blobs.end(),
                        [](const auto& blob) { return blob.name == "picture"; });
  job_.outcome.report = make_report(job_, figures.deployment, figures.seconds, figures.stats,
                                    figures.blob_bytes, figures.warnings);
  if (const auto why = check_message_size(job_)) {
    job_.outcome.report.clear();
    blobs.clear();
    return tools_.callbacks.fail(job_.id, {wire::FailureCode::internal, *why});
  }
  results_.clear();  // they are the job's now
  tools_.callbacks.finish(job_.id, JobState::succeeded, {});
}

void OwnResults::fail(const wire::Failure& why) {
  end(JobState::failed, why);
}

void OwnResults::end(JobState state, const wire::Failure& failure) {
  tools_.callbacks.finish(job_.id, state, failure);
}

}  // namespace troupe::jobs
