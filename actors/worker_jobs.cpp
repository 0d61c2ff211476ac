#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "actors/stage/boundary.h"
#include "actors/stage/memory.h"
#include "actors/stage/rehearsal.h"
#include "actors/worker.h"

// How jobs begin and end at an actor.
namespace troupe::actors {
namespace {

constexpr std::chrono::milliseconds kBoundaryDeadline{60'000};

}  // namespace

at::Tensor Worker::fetch_init_latents(const wire::BeginJob& begin) {
  const auto& request = begin.request;
  const bool used =
      begin.stage.rank == 0 || begin.stage.rank + 1 == begin.stage.degree || begin.vae.degree > 0;
  if (request.init_latents_blob == 0 || begin.first_step > 0 || !used) return {};
  const auto blob = tools_.fetch_blob(request.init_latents_blob, request.init_latents_bytes,
                                      tools_.transfer_deadline);
  if (!blob) throw std::runtime_error("[actor] init latents did not arrive: " + blob.failure.what);
  const auto& spec = stages_.at(begin.deployment)->spec();
  const auto scale = spec.vae.scale_factor();
  const auto pictures =
      static_cast<std::int64_t>(request.prompts.size()) * request.images_per_prompt;
  auto latents = at::empty({pictures, spec.transformer.in_channels,
                            spec.latent_frames(request.num_frames) * request.height / scale,
                            request.width / scale});
  if (latents.nbytes() != blob.bytes->size()) {
    throw std::invalid_argument("[actor] init latents have " + std::to_string(blob.bytes->size()) +
                                " bytes, " + std::to_string(latents.nbytes()) + " are needed");
  }
  std::copy(blob.bytes->begin(), blob.bytes->end(), static_cast<char*>(latents.data_ptr()));
  return latents;
}

control::BlobBytes Worker::fetch_init_image(const wire::BeginJob& begin) {
  const auto& request = begin.request;
  if (request.init_image_bytes == 0 || begin.first_step > 0 || begin.vae.degree == 0)
    return nullptr;
  auto blob = tools_.fetch_blob(request.init_image_blob, request.init_image_bytes,
                                tools_.transfer_deadline);
  if (!blob) throw std::runtime_error("[actor] init image did not arrive: " + blob.failure.what);
  return blob.bytes;
}

at::Tensor Worker::fetch_boundary(const wire::BeginJob& begin) {
  const bool used =
      begin.stage.rank == 0 || begin.stage.rank + 1 == begin.stage.degree || begin.vae.degree > 0;
  if (begin.first_step == 0 || !used) return {};
  const auto& stage = *stages_.at(begin.deployment);
  const auto scale = stage.spec().vae.scale_factor();
  const BoundaryShape shape{.channels = stage.spec().transformer.in_channels,
                            .latent_height = stage.spec().latent_frames(begin.request.num_frames) *
                                             begin.request.height / scale,
                            .latent_width = begin.request.width / scale,
                            .patch_size = stage.spec().transformer.patch_size};
  return assemble_boundary(begin, shape, [this](const wire::BlobRef& piece) {
    tools_.progress.tick();
    return tools_.fetch_blob(piece.id, piece.bytes, kBoundaryDeadline);
  });
}

void Worker::begin(const wire::BeginJob& begin) {
  if (tools_.progress.ended(begin.epoch)) return;
  auto& begun = begun_[begin.epoch];
  if (!begun.insert(begin.job).second) return;
  if (begun.size() > WorkProgress::kRemembered) {
    // One that still runs would begin anew if its message came again.
    const auto over = std::ranges::find_if(
        begun, [&](std::uint64_t job) { return job != begin.job && !jobs_.contains(job); });
    if (over != begun.end()) begun.erase(over);
  }
  try {
    const auto stage = stages_.find(begin.deployment);
    if (stage == stages_.end()) {
      throw std::logic_error("[actor] deployment " + std::to_string(begin.deployment) +
                             " is not loaded");
    }
    reset_peak_memory();
    RunningJob running;
    running.began = std::chrono::steady_clock::now();
    running.counters_before = tools_.groups.counters(begin.epoch);
    running.sent_before = tools_.groups.sent_by_group(begin.epoch);
    tools_.post([before = running.control_before](control::Connection& connection) {
      *before = connection.counters();
    });
    const JobTools tools{
        *stage->second,           tools_.groups,      tools_.progress, tools_.blobs,
        tools_.transfer_deadline, tools_.cuda_graphs, tools_.clock};
    rehearse_once(begin, tools);
    const JobInputs inputs{fetch_init_latents(begin), fetch_boundary(begin),
                           fetch_init_image(begin)};
    running.job = std::make_unique<Job>(begin, tools, inputs);
    running.whole_step = running.newest_step = begin.first_step - 1;
    jobs_[begin.job] = std::move(running);
  } catch (const std::exception& error) {
    report_failure(begin.epoch, begin.job, std::nullopt, error);
  }
}

void Worker::rehearse_once(const wire::BeginJob& begin, const JobTools& tools) {
  if (!tools_.rehearses) return;
  const auto key = rehearsal_key(begin, tools.stage.spec());
  forget_after_flush();
  if (tools.stage.rehearsed(key)) return;
  note_event(WorkEvent::rehearses, begin.job);
  const auto once = [&] {
    rehearse(begin, tools, [&](bool whole) {
      note_event(whole ? WorkEvent::rehearses_whole : WorkEvent::rehearses_patches, begin.job);
    });
  };
  once();
  // What its first steps had left went, too; where it does not fit even so, the job may.
  if (forget_after_flush()) {
    once();
    forget_after_flush();
  }
  tools.stage.note_rehearsed(key);
  note_event(WorkEvent::rehearsed, begin.job);
}

bool Worker::forget_after_flush() {
  const auto flushes = tools_.cache_flushes();
  if (std::exchange(cache_flushes_, flushes) == flushes) return false;
  for (const auto& [id, stage] : stages_)
    stage->forget_rehearsed();
  return true;
}

bool Worker::is_over(std::uint64_t epoch, std::uint64_t job) const {
  const auto begun = begun_.find(epoch);
  return begun != begun_.end() && begun->second.contains(job) && !jobs_.contains(job);
}

void Worker::tell_why_plain(const GraphUse& use) {
  if (use.why_plain.empty() || !told_why_plain_.insert(use.why_plain).second) return;
  std::fprintf(stderr, "CUDA graphs are not used everywhere: %s\n", use.why_plain.c_str());
}

void Worker::end(const wire::Header& header, const wire::EndJob& end) {
  wire::ActorJobStats stats;
  auto control_before = std::make_shared<control::Counters>();
  if (const auto running = jobs_.find(end.job); running != jobs_.end()) {
    stats = running->second.stats;
    running->second.times->tell(stats);
    control_before = running->second.control_before;
    auto& job = *running->second.job;
    const auto now = tools_.groups.counters(job.begin().epoch);
    stats.tensor_bytes_sent = now.bytes_sent - running->second.counters_before.bytes_sent;
    for (const auto& [id, sent] : tools_.groups.sent_by_group(job.begin().epoch)) {
      const auto bytes = sent - running->second.sent_before[id];
      if (bytes > 0) stats.sent_by_group[id] = bytes;
    }
    stats.tensor_bytes_received =
        now.bytes_received - running->second.counters_before.bytes_received;
    stats.weight_bytes = stages_.at(job.begin().deployment)->weight_bytes();
    stats.kv_bytes = static_cast<std::uint64_t>(job.network().bytes());
    stats.sent_by_layer = job.network().sent_by_layer();
    if (tools_.cuda_graphs) {
      const auto use = job.network().graph_use();
      stats.graphs = {true, use.recorded, use.replayed, use.why_plain};
      tell_why_plain(use);
    }
    auto cache = job.step().cache_use();
    stats.cache_calls = static_cast<std::uint64_t>(cache.calls) * cache.skipped.size();
    stats.cache_skips = std::move(cache.skipped_by_step);
    stats.peak_memory_bytes = peak_memory_bytes();
    jobs_.erase(running);
  }
  tools_.post([header, stats, control_before](control::Connection& connection) mutable {
    stats.control_bytes_sent = connection.counters().bytes_sent - control_before->bytes_sent;
    stats.control_bytes_received =
        connection.counters().bytes_received - control_before->bytes_received;
    connection.reply(header, stats);
  });
}

}  // namespace troupe::actors
