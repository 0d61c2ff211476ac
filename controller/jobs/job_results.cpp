#include <algorithm>
#include <memory>

#include "controller/jobs/report.h"
#include "controller/jobs/run.h"

namespace troupe::jobs {
namespace {

constexpr control::Milliseconds kBlobDeadline{120'000};
constexpr control::Milliseconds kEndDeadline{30'000};
/// How long clients may still fetch the last previews and latents of a job that has ended, seconds.
constexpr double kInterimGrace = 30;
/// Steps whose previews and latents are kept for clients to fetch.
constexpr std::size_t kInterimSteps = 4;
const std::string kBoundary = "boundary";

}  // namespace

void JobRunner::task_complete(Run& run, std::uint32_t task_id) {
  JobEntry& job = entry(run);
  const auto& task = dispatcher_.task(run.job, task_id);
  const double now = tools_.environment.now();
  const int replicas = job.plan.degrees.dp;
  switch (task.kind) {
    case wire::TaskKind::encode_text:
      if (++run.texts_done < replicas) return;
      if (run.text_done == 0) run.text_done = now;
      // Taken up after its last step.
      if (run.denoised == 0 && job.step == job.plan.request.steps) run.denoised = now;
      job.phase = "denoising";
      progress(job);
      return;
    case wire::TaskKind::micro_step:
      if (!task.ends_step || ++run.replicas_past[task.step] < replicas) return;
      job.step = task.step + 1;
      // A warm-up says nothing of the steps by patches after it.
      if (job.step > job.plan.synchronous_steps ||
          job.plan.synchronous_steps == job.plan.request.steps)
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
  if (done.blobs.empty() || !dispatcher_.has(run.job) || entry(run).cancel_asked) return;
  if (done.task >= dispatcher_.graph(run.job).tasks.size()) return;
  const auto& member = tools_.members.at(actor);
  const auto& task = dispatcher_.task(run.job, done.task);
  const auto rank = member.parts.at(run.deployment->id);
  const bool result = task.kind == wire::TaskKind::decode;
  const auto& parts = entry(run).plan.decode_parts.at(static_cast<std::size_t>(task.dp));
  const auto first = result ? parts.at(static_cast<std::size_t>(task.part)).begin : 0;
  if (result) run.results[done.task].resize(done.blobs.size());
  for (std::size_t index = 0; index < done.blobs.size(); ++index) {
    const auto& ref = done.blobs[index];
    ++run.blobs_to_come;
    const auto arrived = [this, id = run.job, life = run.life, rank, ref, result,
                          task_id = done.task, step = task.step, replica = task.dp, index,
                          first](control::BlobResult blob) {
      Run* waiting = find(id, life);
      if (!waiting) return;
      const auto own = blob_arrived(*waiting, ref, result, blob);
      waiting = find(id, life);  // not if it has failed by this
      if (!waiting) return;
      JobEntry& job = entry(*waiting);
      const Origin from{step, replica, index + static_cast<std::size_t>(first), result};
      if (own && !job.members.empty() && ref.name != kBoundary) {
        hand_out(*waiting, from, *own, *blob.bytes);
      } else if (own && result) {
        waiting->results[task_id][index] = *own;
      } else if (own && ref.name == kBoundary) {
        keep_piece(*waiting, step, rank, *own);
      } else if (own) {
        pass_on(job, waiting->interim, own->name == "latents" ? job.plan.degrees.dp : 1, from,
                *own);
      }
      maybe_end(*waiting);
    };
    tools_.environment.fetch_blob(member.incarnation, ref, kBlobDeadline, arrived);
  }
}

std::optional<wire::BlobRef> JobRunner::blob_arrived(Run& run, const wire::BlobRef& ref,
                                                     bool needed,
                                                     const control::BlobResult& result) {
  --run.blobs_to_come;
  if (entry(run).cancel_asked) return std::nullopt;  // nobody wants it any more
  if (!result) {
    // Of a boundary the actor keeps the newest only.
    if (ref.name == kBoundary) return std::nullopt;
    const std::string what = ref.name + " did not arrive from its actor: " + result.failure.what;
    if (needed && result.failure.code == wire::FailureCode::lost) {
      fail_later(run, {result.failure.code, what});
    } else if (needed) {
      fail(run.job, {result.failure.code, what});
    } else {
      run.warnings.push_back(what);
      progress(entry(run), {}, {what});
    }
    return std::nullopt;
  }
  run.blob_bytes += result.bytes->size();
  wire::BlobRef own = ref;
  own.id = tools_.environment.keep_blob(result.bytes);
  return own;
}

void JobRunner::pass_on(JobEntry& job, Interim& interim, int expected, const Origin& from,
                        const wire::BlobRef& own) {
  auto& parts = interim[from.step];
  parts[from.replica] = own;
  if (static_cast<int>(parts.size()) < expected) return;
  std::vector<wire::BlobRef> whole;
  for (const auto& [dp, part] : parts)
    whole.push_back(part);
  interim.erase(from.step);
  job.interim.push_back(whole);
  if (job.interim.size() > kInterimSteps) {
    for (const auto& old : job.interim.front())
      tools_.environment.drop_blob(old.id);
    job.interim.pop_front();
  }
  progress(job, std::move(whole));
}

void JobRunner::keep_piece(Run& run, std::int32_t step, std::int32_t rank,
                           const wire::BlobRef& own) {
  JobEntry& job = entry(run);
  const auto& plan = job.plan;
  if (job.boundary && job.boundary->next_step > step) {
    tools_.environment.drop_blob(own.id);
    return;
  }
  std::size_t expected = 0;
  for (int dp = 0; dp < plan.degrees.dp; ++dp) {
    const auto holders = plan.latent_holders(dp);
    for (std::size_t sp = 0; sp < holders.size(); ++sp) {
      const auto rows = plan::rows_of_rank(plan, static_cast<int>(sp));
      expected += rows.empty() ? 0 : 1;
      if (holders[sp] == rank)
        run.pieces[step][rank] = {own, plan.images[dp].begin, plan.images[dp].end, rows};
    }
  }
  if (run.pieces[step].size() < expected) return;
  drop_boundary(job);
  job.boundary = Boundary{.next_step = step + 1, .pieces = {}};
  for (auto& [holder, piece] : run.pieces[step])
    job.boundary->pieces.push_back(std::move(piece));
  run.pieces.erase(step);
  for (auto older = run.pieces.begin(); older != run.pieces.end() && older->first < step;
       older = run.pieces.erase(older)) {
    for (const auto& [holder, piece] : older->second)
      tools_.environment.drop_blob(piece.blob.id);
  }
  run.losses = 0;
  // A batch is in no journal: its jobs begin anew with the next controller.
  if (job.members.empty()) tools_.on_boundary(job);
}

void JobRunner::drop_boundary(JobEntry& job) {
  if (!job.boundary) return;
  for (const auto& piece : job.boundary->pieces)
    tools_.environment.drop_blob(piece.blob.id);
  job.boundary.reset();
}

void JobRunner::forget_blobs(Run& run, JobEntry& job, bool succeeded) {
  for (const auto& [step, parts] : run.interim) {
    for (const auto& [replica, part] : parts)
      tools_.environment.drop_blob(part.id);
  }
  run.interim.clear();
  for (const auto& [step, pieces] : run.pieces) {
    for (const auto& [rank, piece] : pieces)
      tools_.environment.drop_blob(piece.blob.id);
  }
  run.pieces.clear();
  for (auto& [member, portion] : run.portions)
    drop_portion(portion);
  if (succeeded) return;
  for (const auto& [task, blobs] : run.results) {
    for (const auto& blob : blobs) {
      if (blob.id != 0) tools_.environment.drop_blob(blob.id);  // 0: it is still on its way
    }
  }
  run.results.clear();
  job.blobs.clear();
}

void JobRunner::forget_interim(JobEntry& job) {
  tools_.environment.after(kInterimGrace, [this, interim = std::move(job.interim)] {
    for (const auto& step : interim) {
      for (const auto& blob : step)
        tools_.environment.drop_blob(blob.id);
    }
  });
  job.interim.clear();
}

void JobRunner::maybe_end(Run& run) {
  if (!run.begun || run.ending || run.collateral) return;
  // Of a cancelled job nothing is awaited but what its actors are doing: they let go of its blobs.
  if (run.blobs_to_come > 0 && !entry(run).cancel_asked) return;
  if (dispatcher_.has(run.job) && dispatcher_.drained(run.job)) end_at_actors(run);
}

void JobRunner::end_at_actors(Run& run) {
  run.ending = true;
  const auto& actors = run.deployment->actor_of_rank;
  run.stats_to_come = actors.size();
  for (std::size_t rank = 0; rank < actors.size(); ++rank) {
    const auto answer = [this, id = run.job, life = run.life, rank](const control::Reply& reply) {
      Run* ending = find(id, life);
      if (!ending) return;
      if (reply.ok()) {
        ending->stats[rank] = reply.as<wire::ActorJobStats>();
      } else {
        ending->warnings.push_back("the figures of rank " + std::to_string(rank) +
                                   " are missing: " + reply.failure().what);
      }
      if (--ending->stats_to_come == 0) succeed(*ending);
    };
    tools_.environment.request(tools_.members.at(actors[rank]).peer, wire::EndJob{run.job},
                               kEndDeadline, answer);
  }
}

void JobRunner::succeed(Run& run) {
  JobEntry& job = entry(run);
  // Since it was asked to end, results that arrived were let go of.
  if (job.cancel_asked || !dispatcher_.complete(run.job)) {
    finish(run.job, wire::JobState::cancelled, job.failure);
    return;
  }
  record([&](auto& recorder, auto) {
    for (const auto& stats : run.stats)
      recorder.cost(stats);
  });
  const PhaseSeconds seconds{.queued = job.started - job.submitted,
                             .loading = run.began - job.started,
                             .text = run.text_done - run.began,
                             .denoising = run.denoised - run.text_done,
                             .decoding = run.decoded - run.denoised,
                             .total = tools_.environment.now() - job.submitted,
                             .steps = job.plan.request.steps - run.first_step};
  if (!job.members.empty()) return succeed_together(run, seconds);
  for (const auto& [task, blobs] : run.results)
    job.blobs.insert(job.blobs.end(), blobs.begin(), blobs.end());
  std::stable_partition(job.blobs.begin(), job.blobs.end(),
                        [](const auto& blob) { return blob.name == "picture"; });
  job.report = make_report(job, *run.deployment, seconds, run.stats, run.blob_bytes, run.warnings);
  try {
    wire::encode(finished_message(job));
  } catch (const wire::WireError& error) {
    job.report.clear();
    job.blobs.clear();
    return fail(job.id, {wire::FailureCode::internal,
                         std::string("its report cannot be sent: ") + error.what()});
  }
  finish(run.job, wire::JobState::succeeded, {});
}

}  // namespace troupe::jobs
