#include "actors/job.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>

#include "actors/noise.h"
#include "models/dit/local_attention.h"

namespace troupe::actors {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Job::Job(wire::BeginJob begin, Tools tools, const at::Tensor& init_latents)
    : begin_(std::move(begin)), tools_(tools) {
  const auto& spec = tools_.stage.spec();
  const auto& request = begin_.request;
  sampler_ = models::make_sampler(spec.scheduler, request.sampler, request.steps);
  if (sampler_->steps() != request.steps) {
    throw std::invalid_argument(
        "[actor] sampler options make " + std::to_string(sampler_->steps()) + " steps of the " +
        std::to_string(request.steps) + " asked for: ask for another number");
  }
  patch_size_ = tools_.stage.transformer().patch_size();
  channels_ = spec.transformer.in_channels;
  size_ = {request.height / spec.vae.scale_factor(), request.width / spec.vae.scale_factor()};
  columns_ = size_.latent_width / patch_size_;
  if (first_stage() || last_stage()) {
    const auto pictures =
        static_cast<std::int64_t>(request.prompts.size()) * request.images_per_prompt;
    const auto draw = request.noise_dtype == "model" ? tools_.stage.dtype() : at::kFloat;
    const auto noise =
        init_latents.defined()
            ? init_latents
            : draw_noise(request.seed,
                         {pictures, channels_, size_.latent_height, size_.latent_width}, draw);
    latents_ =
        (noise.slice(0, begin_.first_image, begin_.last_image) * sampler_->init_noise_sigma())
            .to(tools_.stage.device())
            .contiguous();
  }
  if (last_stage()) sampler_states_.resize(begin_.patches.size());
  if (begin_.patches.size() > 1) {
    const auto total = size_.latent_height / patch_size_ * columns_;
    auto stale = std::make_unique<models::StaleKvAttention>(
        models::StaleKvAttention::Shape{.blocks = tools_.stage.transformer().part().blocks,
                                        .batch = images() * branches(),
                                        .tokens = total,
                                        .heads = tools_.stage.transformer().heads(),
                                        .head_dim = tools_.stage.transformer().head_dim()},
        tools_.stage.dtype(), tools_.stage.device());
    stale_kv_ = stale.get();
    attention_ = std::move(stale);
  } else {
    attention_ = std::make_unique<models::LocalAttention>();
  }
}

Job::~Job() {
  for (const auto id : published_)
    tools_.blobs.remove(id);
}

std::int64_t Job::branches() const {
  return begin_.request.guidance_scale > 1 && begin_.cfg_degree == 1 ? 2 : 1;
}

models::TokenRows Job::rows_of(int patch) const {
  if (patch < 0) return {0, size_.latent_height / patch_size_};
  const auto& rows = begin_.patches.at(patch);
  return {rows.begin, rows.end};
}

at::Tensor Job::rows_view(const at::Tensor& latents, models::TokenRows rows) const {
  return latents.slice(2, rows.begin * patch_size_, rows.end * patch_size_);
}

void Job::wait(const tensor::Work& work) {
  if (work.done()) {
    work.wait(deadline());
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  const auto last = deadline();
  if (tools_.stage.device().is_cuda()) {
    work.join_stream(last);  // the device waits, the work loop goes on
  } else {
    while (!wait_slice(work, last))
      tools_.progress.tick_in(begin_.epoch);  // waiting is no hanging
  }
  peer_wait_seconds_ += seconds_since(start);
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

void Job::post_receive(int step, int patch) {
  const auto rows = rows_of(patch);
  const auto options = at::TensorOptions().device(tools_.stage.device());
  Transfer transfer;
  if (first_stage()) {
    transfer.tensor = at::empty({images(), channels_, latent_rows(rows), size_.latent_width},
                                options.dtype(at::kFloat));
  } else {
    transfer.tensor = at::empty(
        {images() * branches(), tokens_of(rows), tools_.stage.transformer().hidden_width()},
        options.dtype(tools_.stage.dtype()));
  }
  transfer.work =
      tools_.groups.get(begin_.epoch, begin_.previous_group)->receive(transfer.tensor, 0);
  inbox_.emplace(Place{step, patch}, std::move(transfer));
}

at::Tensor Job::take_transfer(int step, int patch) {
  const auto entry = inbox_.find({step, patch});
  if (entry == inbox_.end()) {
    throw std::logic_error("[actor] no receive was posted for step " + std::to_string(step) +
                           " patch " + std::to_string(patch));
  }
  wait(entry->second.work);
  auto tensor = std::move(entry->second.tensor);
  inbox_.erase(entry);
  return tensor;
}

void Job::prune_sends() {
  std::erase_if(sends_, [](const tensor::Work& work) {
    if (!work.done()) return false;
    work.wait({});  // throws what ended it
    return true;
  });
}

void Job::send_on(const at::Tensor& out, bool needed) {
  prune_sends();
  if (!needed) return;
  sends_.push_back(tools_.groups.get(begin_.epoch, begin_.next_group)->send(out, 1));
}

std::uint64_t Job::kv_bytes() const {
  return static_cast<std::uint64_t>((stale_kv_ ? stale_kv_->bytes() : 0) +
                                    (caption_ ? caption_->bytes() : 0));
}

wire::BlobRef Job::publish(const std::string& name, std::string bytes,
                           std::vector<std::int64_t> shape) {
  wire::BlobRef ref{.name = name, .id = 0, .bytes = bytes.size(), .shape = std::move(shape)};
  ref.id = tools_.blobs.add(std::move(bytes));
  published_.push_back(ref.id);
  return ref;
}

wire::BlobRef Job::keep_interim(wire::BlobRef blob) {
  constexpr std::size_t kKept = 2;
  interim_.push_back(blob.id);
  if (interim_.size() > kKept) {
    tools_.blobs.remove(interim_.front());
    std::erase(published_, interim_.front());
    interim_.pop_front();
  }
  return blob;
}

wire::BlobRef Job::publish_latents() {
  const auto host = latents_.to(at::kCPU).contiguous();
  std::string bytes(static_cast<const char*>(host.const_data_ptr()), host.nbytes());
  return publish("latents", std::move(bytes), host.sizes().vec());
}

}  // namespace troupe::actors
