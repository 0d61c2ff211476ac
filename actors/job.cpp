#include "actors/job.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "actors/inspect.h"
#include "actors/noise.h"

namespace troupe::actors {
namespace {

/// That a task tells of one by one.
constexpr std::size_t kMostWaits = 64;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Job::Job(wire::BeginJob begin, Tools tools, const Beginning& beginning)
    : begin_(std::move(begin)),
      tools_(tools),
      init_image_(beginning.init_image),
      finite_(tools_.stage.device(),
              tools_.rehearses ? FiniteCheck::Answers::dropped : FiniteCheck::Answers::heeded) {
  const auto& spec = tools_.stage.spec();
  const auto& request = begin_.request;
  patch_size_ = spec.transformer.patch_size;
  channels_ = spec.transformer.in_channels;
  size_.frames = spec.latent_frames(request.num_frames);
  size_.latent_height = size_.frames * request.height / spec.vae.scale_factor();
  size_.latent_width = request.width / spec.vae.scale_factor();
  sampler_ = models::make_sampler(
      spec.scheduler, request.sampler,
      {.num_steps = begin_.sampler_steps,
       .image_tokens = size_.latent_height / patch_size_ * (size_.latent_width / patch_size_),
       .even_sigmas = spec.even_sigmas,
       .first = begin_.skipped_steps});
  if (sampler_->steps() != request.steps) {
    throw std::invalid_argument("[actor] sampler options make " +
                                std::to_string(sampler_->steps()) + " steps of the " +
                                std::to_string(request.steps) + " planned: ask for another number");
  }
  if (first_stage() || last_stage() || begin_.vae.degree > 0) {
    if (begin_.first_step > 0) {
      latents_ = beginning.boundary[0].to(tools_.stage.device()).contiguous();
    } else {
      draw_latents(beginning.init_latents);
    }
  }
  if (last_stage()) sampler_states_.resize(begin_.micro_steps.size());
  if (last_stage() && begin_.first_step > 0) restore_histories(beginning.boundary);
  network_ =
      tools_.stage.network().begin({.begin = begin_,
                                    .sampler = *sampler_,
                                    .size = size_,
                                    .images = images(),
                                    .branches = branches(),
                                    .wait = [this](const tensor::Work& work) { wait(work); },
                                    .group = [this](std::uint32_t id) { return group(id); },
                                    .tick = [this] { tools_.progress.tick_in(begin_.epoch); },
                                    .await_device = [this] { await_device(); },
                                    .layers = layers_,
                                    .graphs = tools_.cuda_graphs});
  // Of each task that is under way at an actor one answer may be outstanding, and one more. Each
  // job has its own: others' are still in use.
  constexpr std::size_t kAnswers = 8;
  finite_.reserve(kAnswers);
}

std::shared_ptr<tensor::Group> Job::group(std::uint32_t id) const {
  return id == 0 ? nullptr : tools_.groups.get(begin_.epoch, id);
}

Job::~Job() {
  for (const auto id : published_)
    tools_.blobs.remove(id);
}

bool Job::guided() const {
  return tools_.stage.spec().has_branches(begin_.request.guidance_scale);
}

std::int64_t Job::branches() const {
  return guided() && begin_.cfg.degree == 1 ? 2 : 1;
}

at::Tensor Job::rows_view(const at::Tensor& latents, models::TokenRows rows) const {
  return latents.slice(2, rows.begin * patch_size_, rows.end * patch_size_);
}

at::Tensor Job::gather_rows(const at::Tensor& latents, const RowRuns& rows) const {
  if (rows.size() == 1) return rows_view(latents, rows.front());
  std::vector<at::Tensor> parts{latents.slice(2, 0, 0)};
  for (const auto& run : rows)
    parts.push_back(rows_view(latents, run));
  return at::cat(parts, 2);
}

void Job::scatter_rows(const at::Tensor& latents, const RowRuns& rows,
                       const at::Tensor& from) const {
  std::int64_t offset = 0;
  for (const auto& run : rows) {
    const auto count = (run.end - run.begin) * patch_size_;
    rows_view(latents, run).copy_(from.slice(2, offset, offset + count));
    offset += count;
  }
}

void Job::wait(const tensor::Work& work) {
  if (work.done()) {
    work.wait(deadline());
    return;
  }
  if (tools_.clock) return wait_on_device(work);
  const auto start = std::chrono::steady_clock::now();
  const auto last = deadline();
  while (!wait_slice(work, last))
    tools_.progress.tick_in(begin_.epoch);  // waiting is no hanging
  peer_wait_seconds_ += seconds_since(start);
  note_wait(start);
}

void Job::wait_on_device(const tensor::Work& work) {
  if (device_waits_.size() >= kMostWaits) {
    work.join_stream(deadline());
    device_waits_.back().end = tools_.clock->mark();
    return;
  }
  auto before = tools_.clock->mark();
  work.join_stream(deadline());
  device_waits_.push_back({std::move(before), tools_.clock->mark()});
}

void Job::await_device() {
  if (!tools_.clock) return;
  const auto mark = tools_.clock->mark();
  for (const auto pause = pause_for_device(); !mark->passed();)
    pause();
}

std::function<void()> Job::pause_for_device() {
  return [this, last = deadline(), peers = std::make_shared<PeerWaits>(tools_.transfer_deadline)] {
    if (std::chrono::steady_clock::now() > last)
      throw std::runtime_error(
          "[actor] the device has not done within its deadline what the host "
          "waits for");
    if (tools_.progress.ended(begin_.epoch))
      throw EpochEnded("[actor] epoch " + std::to_string(begin_.epoch) + " has ended");
    // Waiting for a peer is no hanging; anything else is no progress.
    if (peers->now(device_waits_, monotonic_ns())) tools_.progress.tick();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  };
}

void Job::note_wait(std::chrono::steady_clock::time_point start) {
  const auto ns = [](std::chrono::steady_clock::time_point time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  };
  const auto end = ns(std::chrono::steady_clock::now());
  if (waits_.size() < kMostWaits) {
    waits_.push_back({ns(start), end});
  } else {
    waits_.back().end_ns = end;
  }
}

bool Job::wait_slice(const tensor::Work& work, tensor::Deadline last) {
  const auto soon = std::min(last, tensor::within(std::chrono::seconds(1)));
  try {
    work.wait(soon);
    return true;
  } catch (const tensor::TransferError& error) {
    if (error.failure() != tensor::Failure::timeout || soon == last) throw;
    return false;
  }
}

wire::RowRange Job::items_of(Place place) const {
  if (place.patch < 0) return begin_.batch_parts.at(place.part);
  return {0, static_cast<std::int32_t>(images() * branches())};
}

CacheUse Job::cache_use() const {
  const bool counts = first_stage() && sequence_rank() == 0 && begin_.tp.rank == 0;
  return counts ? network_->cache_use() : CacheUse{};
}

std::optional<GraphUse> Job::graph_use() const {
  return tools_.cuda_graphs ? std::optional(network_->graph_use()) : std::nullopt;
}

}  // namespace troupe::actors
