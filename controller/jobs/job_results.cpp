#include <algorithm>
#include <memory>

#include "controller/jobs/report.h"
#include "controller/jobs/run.h"

namespace troupe::jobs {
namespace {

constexpr control::Milliseconds kBlobDeadline{120'000};
constexpr control::Milliseconds kEndDeadline{30'000};
/// How long clients may still fetch the last previews and latents of a job that has ended.
constexpr std::chrono::seconds kInterimGrace{30};
/// Steps whose previews and latents are kept for clients to fetch.
constexpr std::size_t kInterimSteps = 2;

}  // namespace

void JobRunner::task_complete(Run& run, std::uint32_t task_id) {
  JobEntry& job = *tools_.table.find(run.job);
  const auto& task = dispatcher_.task(run.job, task_id);
  const double now = tools_.now();
  const int replicas = job.plan.degrees.dp;
  switch (task.kind) {
    case wire::TaskKind::encode_text:
      if (++run.texts_done < replicas) return;
      run.text_done = now;
      run.clock.completed(0, now);
      job.phase = "denoising";
      progress(job);
      return;
    case wire::TaskKind::micro_step:
      if (!task.ends_step || ++run.replicas_past[task.step] < replicas) return;
      job.step = task.step + 1;
      run.clock.completed(job.step, now);
      progress(job);
      if (job.step == job.plan.request.steps) {
        run.denoised = now;
        job.phase = "decoding";
        progress(job);
      }
      return;
    case wire::TaskKind::decode:
      run.decoded = now;
      return;
  }
}

void JobRunner::take_blobs(Run& run, cluster::ActorId actor, const wire::TaskDone& done) {
  if (done.blobs.empty() || !dispatcher_.has(run.job)) return;
  if (done.task >= dispatcher_.graph(run.job).tasks.size()) return;
  const JobId job = run.job;
  const auto& task = dispatcher_.task(job, done.task);
  const bool interim = task.kind != wire::TaskKind::decode;
  if (!interim) run.results[done.task].resize(done.blobs.size());
  for (std::size_t index = 0; index < done.blobs.size(); ++index) {
    const auto& ref = done.blobs[index];
    ++run.blobs_to_come;
    tools_.blob_server.fetch(tools_.members.at(actor).incarnation, ref.id, ref.bytes, kBlobDeadline,
                             [this, job, interim, id = done.task, step = task.step,
                              replica = task.dp, index, ref](control::BlobResult result) {
                               const auto own = blob_arrived(job, ref, interim, std::move(result));
                               if (own && interim) pass_on(job, step, replica, *own);
                               if (own && !interim) keep_result(job, id, index, *own);
                             });
  }
}

std::optional<wire::BlobRef> JobRunner::blob_arrived(JobId id, const wire::BlobRef& ref,
                                                     bool interim, control::BlobResult result) {
  Run* run = find(id);
  if (!run) return std::nullopt;
  --run->blobs_to_come;
  if (!result) {
    const std::string what = ref.name + " did not arrive from its actor: " + result.failure.what;
    if (!interim) {
      fail_with_cause(id, {result.failure.code, what});
      return std::nullopt;
    }
    run->warnings.push_back(what);
    progress(*tools_.table.find(id), {}, {what});
    maybe_end(id);
    return std::nullopt;
  }
  run->blob_bytes += result.bytes->size();
  wire::BlobRef own = ref;
  own.id = tools_.blobs.add(result.bytes);
  return own;
}

void JobRunner::keep_result(JobId id, std::uint32_t decode_task, std::size_t index,
                            const wire::BlobRef& own) {
  find(id)->results[decode_task][index] = own;
  maybe_end(id);
}

void JobRunner::pass_on(JobId id, std::int32_t step, std::int32_t replica,
                        const wire::BlobRef& own) {
  JobEntry& job = *tools_.table.find(id);
  auto& parts = find(id)->interim[step];
  parts[replica] = own;
  const int expected = own.name == "latents" ? job.plan.degrees.dp : 1;
  if (static_cast<int>(parts.size()) == expected) {
    std::vector<wire::BlobRef> whole;
    for (const auto& [dp, part] : parts)
      whole.push_back(part);
    find(id)->interim.erase(step);
    job.interim.push_back(whole);
    if (job.interim.size() > kInterimSteps) {
      for (const auto& old : job.interim.front())
        tools_.blobs.remove(old.id);
      job.interim.pop_front();
    }
    progress(job, std::move(whole));
  }
  maybe_end(id);
}

void JobRunner::forget_blobs(Run& run, JobEntry& job, wire::JobState state) {
  for (const auto& [step, parts] : run.interim) {
    for (const auto& [replica, part] : parts)
      tools_.blobs.remove(part.id);
  }
  if (state == wire::JobState::succeeded) return;
  for (const auto& [task, blobs] : run.results) {
    for (const auto& blob : blobs)
      tools_.blobs.remove(blob.id);
  }
  job.blobs.clear();
}

void JobRunner::forget_interim(JobEntry& job) {
  auto timer = std::make_shared<boost::asio::steady_timer>(tools_.io, kInterimGrace);
  timer->async_wait(
      [timer, interim = std::move(job.interim), &blobs = tools_.blobs](const auto& error) {
        if (error) return;
        for (const auto& step : interim) {
          for (const auto& blob : step)
            blobs.remove(blob.id);
        }
      });
  job.interim.clear();
}

void JobRunner::maybe_end(JobId id) {
  Run* run = find(id);
  if (!run || !run->begun || run->ending || run->blobs_to_come > 0) return;
  if (dispatcher_.has(id) && dispatcher_.drained(id)) end_at_actors(*run);
}

void JobRunner::end_at_actors(Run& run) {
  run.ending = true;
  const auto& actors = run.deployment->actor_of_rank;
  run.stats_to_come = actors.size();
  for (std::size_t rank = 0; rank < actors.size(); ++rank) {
    tools_.server.request(
        tools_.members.at(actors[rank]).peer, wire::EndJob{run.job}, kEndDeadline,
        [this, id = run.job, rank](const control::Reply& reply) {
          Run* ending = find(id);
          if (!ending) return;
          if (!reply.ok()) {
            fail_with_cause(
                id, {reply.failure().code, "actor of rank " + std::to_string(rank) +
                                               " did not end the job: " + reply.failure().what});
            return;
          }
          ending->stats[rank] = reply.as<wire::ActorJobStats>();
          if (--ending->stats_to_come == 0) succeed(*ending);
        });
  }
}

void JobRunner::succeed(Run& run) {
  JobEntry& job = *tools_.table.find(run.job);
  if (!dispatcher_.complete(run.job)) {
    finish(run.job, wire::JobState::cancelled, job.failure);
    return;
  }
  for (const auto& [task, blobs] : run.results)
    job.blobs.insert(job.blobs.end(), blobs.begin(), blobs.end());
  std::stable_partition(job.blobs.begin(), job.blobs.end(),
                        [](const auto& blob) { return blob.name == "picture"; });
  const PhaseSeconds seconds{.queued = job.started - job.submitted,
                             .loading = run.began - job.started,
                             .text = run.text_done - run.began,
                             .denoising = run.denoised - run.text_done,
                             .decoding = run.decoded - run.denoised,
                             .total = tools_.now() - job.submitted};
  job.report = make_report(job, *run.deployment, seconds, run.stats, run.blob_bytes, run.warnings);
  try {
    wire::encode(finished_message(job));
  } catch (const wire::WireError& error) {
    job.report.clear();
    return fail(job.id, {wire::FailureCode::internal,
                         std::string("its report cannot be sent: ") + error.what()});
  }
  finish(run.job, wire::JobState::succeeded, {});
}

}  // namespace troupe::jobs
