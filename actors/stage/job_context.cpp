#include "actors/stage/job_context.h"

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "models/spec/resolution_bins.h"

namespace troupe::actors {
namespace {

/// Most waits of a task that are reported one by one.
constexpr std::size_t kMostWaits = 64;

std::int64_t nanoseconds_of(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

/// Waits a second at most; false when the operation is still under way then.
bool wait_slice(const tensor::Work& work, tensor::Deadline last) {
  const auto soon = std::min(last, tensor::within(std::chrono::seconds(1)));
  try {
    work.wait(soon);
    return true;
  } catch (const tensor::TransferError& error) {
    if (error.failure() != tensor::Failure::timeout || soon == last) throw;
    return false;
  }
}

}  // namespace

void JobWaits::wait(const tensor::Work& work) {
  const auto last = tensor::within(deadline_);
  if (work.done()) {
    work.wait(last);
    return;
  }
  if (clock_) return wait_on_device(work);
  const auto start = std::chrono::steady_clock::now();
  while (!wait_slice(work, last))
    progress_.tick_in(epoch_);  // waiting is no hanging
  note(start);
}

void JobWaits::wait_on_device(const tensor::Work& work) {
  const auto last = tensor::within(deadline_);
  if (device_spans_.size() >= kMostWaits) {
    work.join_stream(last);
    device_spans_.back().end = clock_->mark();
    return;
  }
  auto before = clock_->mark();
  work.join_stream(last);
  device_spans_.push_back({std::move(before), clock_->mark()});
}

void JobWaits::await_device() {
  if (!clock_) return;
  const auto mark = clock_->mark();
  for (const auto pause = pause_for_device(); !mark->passed();)
    pause();
}

std::function<void()> JobWaits::pause_for_device() const {
  return [this, last = tensor::within(deadline_), peers = std::make_shared<PeerWaits>(deadline_)] {
    const auto now = std::chrono::steady_clock::now();
    if (now > last)
      throw std::runtime_error(
          "[actor] the device has not done within its deadline what the host waits for");
    if (progress_.ended(epoch_))
      throw EpochEnded("[actor] epoch " + std::to_string(epoch_) + " has ended");
    // Waiting for a peer is no hanging; anything else is no progress.
    if (peers->now(device_spans_, nanoseconds_of(now))) progress_.tick();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  };
}

void JobWaits::note(std::chrono::steady_clock::time_point start) {
  const auto end = std::chrono::steady_clock::now();
  seconds_ += std::chrono::duration<double>(end - start).count();
  if (spans_.size() < kMostWaits) {
    spans_.push_back({nanoseconds_of(start), nanoseconds_of(end)});
  } else {
    spans_.back().end_ns = nanoseconds_of(end);
  }
}

PublishedBlobs::~PublishedBlobs() {
  for (const auto id : published_)
    store_.remove(id);
}

wire::BlobRef PublishedBlobs::publish(const std::string& name, std::string bytes,
                                      std::vector<std::int64_t> shape) {
  wire::BlobRef ref{.name = name, .id = 0, .bytes = bytes.size(), .shape = std::move(shape)};
  ref.id = store_.add(std::move(bytes));
  published_.push_back(ref.id);
  return ref;
}

wire::BlobRef PublishedBlobs::keep_newest(std::deque<control::BlobId>& kind, wire::BlobRef blob,
                                          std::size_t most) {
  kind.push_back(blob.id);
  if (kind.size() > most) {
    store_.remove(kind.front());
    std::erase(published_, kind.front());
    kind.pop_front();
  }
  return blob;
}

models::PictureSize latent_size(const spec::ModelSpec& spec, const wire::ImageRequest& request) {
  models::PictureSize size;
  size.frames = spec.latent_frames(request.num_frames);
  size.latent_height = size.frames * request.height / spec.vae.scale_factor();
  size.latent_width = request.width / spec.vae.scale_factor();
  if (spec.inputs.images == spec::PictureRole::first_frame &&
      spec.inputs.beside == spec::BesideLatents::none && !request.images.empty())
    size.given_frames = 1;
  return size;
}

std::vector<models::PictureSize> reference_sizes(const spec::ModelSpec& spec,
                                                 const wire::ImageRequest& request) {
  std::vector<models::PictureSize> sizes;
  if (spec.inputs.images != spec::PictureRole::edited) return sizes;
  const auto scale = spec.vae.scale_factor();
  for (const auto& image : request.images) {
    const auto size = spec::edited_size(spec, {image.height, image.width}).cut;
    sizes.push_back({size.height / scale, size.width / scale});
  }
  return sizes;
}

std::int64_t prompt_tokens(const spec::ModelSpec& spec, const wire::ImageRequest& request) {
  std::int64_t tokens = request.max_sequence_length;
  for (const auto& image : request.images)
    tokens += spec::seen_tokens(spec, {image.height, image.width});
  return tokens;
}

bool sees_images(const spec::ModelSpec& spec, const wire::BeginJob& begin) {
  for (std::size_t i = 0; i < spec.text_encoders.size(); ++i)
    if (spec.text_encoders[i].vision() && begin.encoder_ranks.at(i) == begin.caption_rank)
      return true;
  return false;
}

JobContext::JobContext(wire::BeginJob message, const JobTools& given)
    : begin(std::move(message)),
      tools(given),
      patch_size(tools.stage.spec().transformer.patch_size),
      channels(tools.stage.spec().transformer.in_channels),
      size(latent_size(tools.stage.spec(), begin.request)),
      references(reference_sizes(tools.stage.spec(), begin.request)),
      prompt_tokens(actors::prompt_tokens(tools.stage.spec(), begin.request)),
      waits(tools.progress, begin.epoch, tools.transfer_deadline, tools.clock),
      blobs(tools.blobs),
      finite(tools.stage.device(), tools.not_finite) {}

bool JobContext::guided() const {
  return tools.stage.spec().has_branches(begin.request.guidance_scale.value());
}

std::int64_t JobContext::branches() const {
  return guided() && begin.cfg.degree == 1 ? 2 : 1;
}

bool JobContext::ends_step(StepPlace place) const {
  return place.patch < 0 ? place.part + 1 == std::ssize(begin.batch_parts)
                         : place.patch + 1 == micro_steps();
}

NetworkStep JobContext::network_step(StepPlace place) const {
  const auto all = wire::RowRange{0, static_cast<std::int32_t>(images() * branches())};
  return {.place = place,
          .items = place.patch < 0 ? begin.batch_parts.at(place.part) : all,
          .refill = begin.steps.at(place.step) == wire::StepKind::refill,
          .last = place.step + 1 == begin.request.steps};
}

std::string JobContext::describe(StepPlace place) const {
  const auto& load = tools.stage.load();
  return "step " + std::to_string(place.step) +
         (place.patch >= 0 ? " patch " + std::to_string(place.patch) : std::string()) +
         (place.part > 0 ? " part " + std::to_string(place.part) : std::string()) + " stage " +
         std::to_string(begin.stage.rank) + " (blocks " + std::to_string(load.first_block) +
         " to " + std::to_string(load.last_block - 1) + ")";
}

std::vector<std::int64_t> JobContext::latent_shape(const RowRuns& rows) const {
  return {images(), channels, count_rows(rows) * patch_size, size.latent_width};
}

void JobContext::require_finite(const at::Tensor& values, const std::string& what) {
  waits.await_device();
  finite.require_now(values, what, to_string(begin.request.dtype));
}

std::shared_ptr<tensor::Group> JobContext::group(std::uint32_t id) const {
  return id == 0 ? nullptr : tools.groups.get(begin.epoch, id);
}

}  // namespace troupe::actors
