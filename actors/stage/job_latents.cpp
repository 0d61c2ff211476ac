#include "actors/stage/job_latents.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace troupe::actors {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw std::runtime_error("[boundary] " + what);
}

at::Tensor fetch_piece(const wire::BoundaryPiece& piece, const BoundaryShape& shape,
                       std::int64_t rows,
                       const std::function<control::BlobResult(const wire::BlobRef&)>& fetch) {
  const auto& ref = piece.blob;
  const bool fits = ref.shape.size() == 5 && ref.shape[0] >= 1 &&
                    ref.shape[1] == piece.last_image - piece.first_image &&
                    ref.shape[2] == shape.channels && ref.shape[3] == rows * shape.patch_size &&
                    ref.shape[4] == shape.latent_width;
  if (!fits) refuse("a piece has another shape than its rows and pictures ask for");
  const auto blob = fetch(ref);
  if (!blob) refuse("a piece did not arrive: " + blob.failure.what);
  auto tensor = at::empty(ref.shape, at::kFloat);
  if (blob.bytes->size() != tensor.nbytes()) {
    refuse("a piece has " + std::to_string(blob.bytes->size()) + " bytes, " +
           std::to_string(tensor.nbytes()) + " are needed");
  }
  std::memcpy(tensor.mutable_data_ptr(), blob.bytes->data(), blob.bytes->size());
  return tensor;
}

}  // namespace

NoiseSource::NoiseSource(std::uint64_t seed, std::vector<std::int64_t> shape,
                         at::ScalarType draw_type)
    : NoiseSource({{.pictures = static_cast<std::int32_t>(shape.at(0)), .seed = seed}}, shape,
                  draw_type) {}

NoiseSource::NoiseSource(const std::vector<wire::SeedRun>& runs, std::vector<std::int64_t> shape,
                         at::ScalarType draw_type)
    : shape_(std::move(shape)), draw_type_(draw_type) {
  std::int64_t pictures = 0;
  for (const auto& run : runs) {
    runs_.push_back({run.pictures, at::detail::createCPUGenerator(run.seed)});
    pictures += run.pictures;
  }
  if (runs_.empty() || pictures != shape_.at(0)) {
    throw std::invalid_argument("[noise] seeds are given for " + std::to_string(pictures) +
                                " pictures, there are " + std::to_string(shape_.at(0)));
  }
}

at::Tensor NoiseSource::draw() {
  if (runs_.size() == 1) return draw(runs_.front(), shape_.front());
  std::vector<at::Tensor> parts;
  for (auto& run : runs_)
    parts.push_back(draw(run, run.pictures));
  return at::cat(parts);
}

at::Tensor NoiseSource::draw_one_each() {
  std::vector<at::Tensor> parts;
  for (auto& run : runs_)
    parts.push_back(draw(run, 1));
  return at::cat(parts);
}

at::Tensor NoiseSource::draw(Run& run, std::int64_t pictures) {
  auto shape = shape_;
  shape.front() = pictures;
  return at::randn(shape, run.generator, at::TensorOptions().dtype(draw_type_)).to(at::kFloat);
}

at::Tensor assemble_boundary(
    const wire::BeginJob& begin, const BoundaryShape& shape,
    const std::function<control::BlobResult(const wire::BlobRef&)>& fetch) {
  const std::int64_t pictures = begin.last_image - begin.first_image;
  at::Tensor whole;
  std::int64_t covered = 0;
  for (const auto& piece : begin.boundary) {
    std::int64_t rows = 0;
    for (const auto& run : piece.rows)
      rows += run.end - run.begin;
    const auto part = fetch_piece(piece, shape, rows, fetch);
    if (!whole.defined()) {
      whole = at::empty(
          {part.size(0), pictures, shape.channels, shape.latent_height, shape.latent_width},
          at::kFloat);
    }
    if (whole.size(0) != part.size(0)) refuse("its pieces have histories of different lengths");
    const auto first = std::max(begin.first_image, piece.first_image);
    const auto last = std::min(begin.last_image, piece.last_image);
    const auto from = part.slice(1, first - piece.first_image, last - piece.first_image);
    const auto into = whole.slice(1, first - begin.first_image, last - begin.first_image);
    std::int64_t offset = 0;
    for (const auto& run : piece.rows) {
      const auto count = (run.end - run.begin) * shape.patch_size;
      into.slice(3, run.begin * shape.patch_size, run.end * shape.patch_size)
          .copy_(from.slice(3, offset, offset + count));
      offset += count;
    }
    covered += (last - first) * offset;
  }
  if (covered != pictures * shape.latent_height) refuse("its pieces do not cover the pictures");
  return whole;
}

JobLatents::JobLatents(JobContext& job, const at::Tensor& init_latents, const at::Tensor& boundary)
    : job_(job) {
  const auto& spec = job_.tools.stage.spec();
  const auto& begin = job_.begin;
  const auto& request = begin.request;
  sampler_ = models::make_sampler(
      spec.scheduler, request.sampler,
      {.num_steps = begin.sampler_steps,
       .image_tokens =
           job_.size.latent_height / job_.patch_size * (job_.size.latent_width / job_.patch_size),
       .even_sigmas = spec.even_sigmas,
       .shifts_by_steps = spec.shifts_by_steps,
       .fixed_shift = spec.fixed_shift,
       .first = begin.skipped_steps,
       .task = job_.is_masked() ? spec::PipelineTask::inpainting : spec::PipelineTask::generation,
       .settings = {request.eta, request.timesteps, request.sigmas}});
  if (sampler_->steps() != request.steps) {
    throw std::invalid_argument("[actor] sampler options make " +
                                std::to_string(sampler_->steps()) + " steps of the " +
                                std::to_string(request.steps) + " planned: ask for another number");
  }
  if (job_.first_stage() || job_.last_stage() || begin.vae.degree > 0) {
    latents_ = begin.first_step > 0 ? boundary[0].to(job_.tools.stage.device()).contiguous()
                                    : first_latents(init_latents);
  }
  if (!job_.last_stage()) return;
  states_.resize(begin.micro_steps.size());
  if (begin.first_step > 0) restore_histories(boundary);
}

NoiseSource JobLatents::make_noise() const {
  const auto& request = job_.begin.request;
  const auto pictures =
      static_cast<std::int64_t>(request.prompts.size()) * request.images_per_prompt;
  const auto type = request.noise_dtype == NoiseType::model ? job_.tools.stage.dtype() : at::kFloat;
  const std::vector<std::int64_t> shape{pictures, job_.channels, job_.size.latent_height,
                                        job_.size.latent_width};
  if (!request.seeds.empty()) return {request.seeds, shape, type};
  return {request.seed, shape, type};
}

at::Tensor JobLatents::first_latents(const at::Tensor& init_latents) const {
  const auto device = job_.tools.stage.device();
  if (needs_image(job_.begin, job_.tools.stage.spec())) {
    return at::zeros(
        {job_.images(), job_.channels, job_.size.latent_height, job_.size.latent_width},
        at::TensorOptions().dtype(at::kFloat).device(device));
  }
  auto source = make_noise();
  const auto noise = init_latents.defined() ? init_latents : first_noise(source).latents;
  return (noise.slice(0, job_.begin.first_image, job_.begin.last_image) *
          sampler_->init_noise_sigma())
      .to(device)
      .contiguous();
}

JobLatents::FirstNoise JobLatents::first_noise(NoiseSource& source) const {
  const auto& request = job_.begin.request;
  const bool control = job_.beside() == spec::BesideLatents::control_picture;
  FirstNoise drawn;
  // Where steps keep a picture's part, diffusers encodes that once more, for nothing: before a
  // control picture, or at the end.
  if (control && job_.is_masked()) source.draw_one_each();
  if (control) drawn.beside = source.draw();
  if (begins_with_picture(job_.begin, job_.tools.stage.spec()))
    drawn.picture = source.draw_one_each();
  if (request.init_latents_blob == 0) drawn.latents = source.draw();
  if (!control && job_.is_masked()) drawn.beside = source.draw_one_each();
  return drawn;
}

at::Tensor JobLatents::own_noise(const at::Tensor& drawn) const {
  return drawn.size(0) == 1 ? drawn : drawn.slice(0, job_.begin.first_image, job_.begin.last_image);
}

at::Tensor JobLatents::image_noise() const {
  auto source = make_noise();
  return own_noise(first_noise(source).picture);
}

at::Tensor JobLatents::beside_noise() const {
  auto source = make_noise();
  return own_noise(first_noise(source).beside);
}

std::int64_t JobLatents::beside_count() const {
  const bool own =
      job_.beside() == spec::BesideLatents::control_picture || job_.begin.request.seeds.size() > 1;
  return own ? job_.images() : 1;
}

void JobLatents::put_beside(const at::Tensor& channels) {
  if (job_.first_stage()) beside_ = channels.to(job_.tools.stage.dtype());
}

at::Tensor JobLatents::input(int step, const RowRuns& rows) const {
  const auto latents = sampler_->scale_model_input(gather(rows), step).to(job_.tools.stage.dtype());
  if (job_.beside() == spec::BesideLatents::none) return latents;
  if (!beside_.defined())
    throw std::logic_error("[actor] a micro-step came before the channels beside its latents");
  return at::cat({latents, gather(beside_, rows).expand({job_.images(), -1, -1, -1})}, 1);
}

void JobLatents::begin_with(const at::Tensor& clean, const at::Tensor& mask) {
  if (!latents_.defined()) return;
  auto source = make_noise();
  const auto noise = own_noise(first_noise(source).latents).to(latents_.device());
  if (mask.defined() && job_.last_stage()) kept_ = Kept{clean, noise, mask};
  if (job_.begin.first_step > 0) return;  // they are a boundary's
  const bool noise_alone = mask.defined() && job_.begin.request.strength == 1;
  latents_.copy_(noise_alone ? noise * sampler_->init_noise_sigma()
                             : sampler_->add_noise(clean, noise, 0));
}

void JobLatents::begin_with_frames(const at::Tensor& frames) {
  if (latents_.defined()) latents_.narrow(2, 0, frames.size(2)).copy_(frames);
}

at::Tensor JobLatents::keep_unmasked(int step, models::TokenRows rows,
                                     const at::Tensor& sample) const {
  if (!kept_) return sample;
  auto kept = rows_view(kept_->clean, rows);
  if (step + 1 < sampler_->steps())
    kept = sampler_->add_noise(kept, rows_view(kept_->noise, rows), step + 1);
  const auto mask = rows_view(kept_->mask, rows);
  return (1 - mask) * kept + mask * sample;
}

void JobLatents::restore_histories(const at::Tensor& boundary) {
  for (int micro = 0; micro < job_.micro_steps(); ++micro) {
    const auto rows = job_.own_rows(micro);
    if (rows.empty()) continue;
    for (std::int64_t i = 1; i < boundary.size(0); ++i) {
      states_[micro].history.push_back(
          gather(boundary[i].to(latents_.device()), rows).contiguous());
    }
  }
}

at::Tensor JobLatents::rows_view(const at::Tensor& latents, models::TokenRows rows) const {
  return latents.slice(2, rows.begin * job_.patch_size, rows.end * job_.patch_size);
}

at::Tensor JobLatents::gather(const at::Tensor& latents, const RowRuns& rows) const {
  if (rows.size() == 1) return rows_view(latents, rows.front());
  std::vector<at::Tensor> parts{latents.slice(2, 0, 0)};
  for (const auto& run : rows)
    parts.push_back(rows_view(latents, run));
  return at::cat(parts, 2);
}

void JobLatents::scatter(const RowRuns& rows, const at::Tensor& from) {
  std::int64_t offset = 0;
  for (const auto& run : rows) {
    const auto count = (run.end - run.begin) * job_.patch_size;
    rows_view(latents_, run).copy_(from.slice(2, offset, offset + count));
    offset += count;
  }
}

at::Tensor JobLatents::step_noise(int step) {
  if (!sampler_->noise_needed(step)) return {};
  const auto& begin = job_.begin;
  if (!noise_) {
    noise_ = make_noise();
    first_noise(*noise_);
  }
  while (noise_step_ < step) {
    if (!sampler_->noise_needed(++noise_step_)) continue;
    const auto drawn = noise_->draw();
    if (noise_step_ == step)
      step_noise_ = drawn.slice(0, begin.first_image, begin.last_image).to(latents_.device());
  }
  return step_noise_;
}

void JobLatents::sample(int step, int patch, const at::Tensor& prediction) {
  const auto noise = step_noise(step);
  const bool clean = job_.begin.sampler_steps == 1 && job_.tools.stage.spec().one_step_is_clean;
  std::int64_t offset = 0;
  for (int micro = 0; micro < job_.micro_steps(); ++micro) {
    if (patch >= 0 && micro != patch) continue;
    for (const auto& run : job_.own_rows(micro)) {
      const auto count = (run.end - run.begin) * job_.patch_size;
      auto target = rows_view(latents_, run);
      const auto out = prediction.slice(2, offset, offset + count);
      auto& state = states_[micro];
      const auto own_noise = noise.defined() ? rows_view(noise, run) : noise;
      const auto sample = clean ? sampler_->clean(state, step, out, target, own_noise)
                                : sampler_->step(state, step, out, target, own_noise);
      const auto given =
          std::clamp<std::int64_t>(job_.size.given_rows() - run.begin * job_.patch_size, 0, count);
      target.slice(2, given).copy_(keep_unmasked(step, run, sample).slice(2, given));
      offset += count;
    }
  }
}

std::optional<wire::BlobRef> JobLatents::publish_boundary() {
  constexpr std::size_t kKept = 4;
  const auto rows = job_.own_rows(-1);
  if (job_.begin.cfg.rank != 0 || job_.begin.tp.rank != 0 || rows.empty()) return std::nullopt;
  std::vector<at::Tensor> parts{gather(rows)};
  std::size_t history = 0;
  for (const auto& state : states_)
    history = std::max(history, state.history.size());
  for (std::size_t i = 0; i < history; ++i) {
    std::vector<at::Tensor> of_rows;
    for (int micro = 0; micro < job_.micro_steps(); ++micro) {
      if (!job_.own_rows(micro).empty()) of_rows.push_back(states_[micro].history.at(i));
    }
    parts.push_back(at::cat(of_rows, 2));
  }
  job_.waits.await_device();
  const auto all = at::stack(parts).to(at::kCPU, at::kFloat).contiguous();
  job_.finite.read();  // the host has waited: answers about what led to these rows are here
  std::string bytes(static_cast<const char*>(all.const_data_ptr()), all.nbytes());
  return job_.blobs.keep_newest(
      boundaries_, job_.blobs.publish("boundary", std::move(bytes), all.sizes().vec()), kKept);
}

wire::BlobRef JobLatents::publish() const {
  job_.waits.await_device();
  const auto host = latents_.to(at::kCPU).contiguous();
  std::string bytes(static_cast<const char*>(host.const_data_ptr()), host.nbytes());
  return job_.blobs.publish("latents", std::move(bytes), host.sizes().vec());
}

std::vector<std::pair<std::string, at::Tensor>> JobLatents::tensors() const {
  std::vector<std::pair<std::string, at::Tensor>> named{{"latents", latents_}};
  if (beside_.defined()) named.emplace_back("channels beside the latents", beside_);
  for (std::size_t micro = 0; micro < states_.size(); ++micro) {
    const auto& history = states_[micro].history;
    for (std::size_t i = 0; i < history.size(); ++i) {
      if (!history[i].defined()) continue;
      named.emplace_back("history " + std::to_string(i) + " of micro-step " + std::to_string(micro),
                         history[i]);
    }
  }
  return named;
}

std::pair<at::Tensor, std::vector<wire::LatentRun>> JobLatents::host_rows() const {
  const auto rows = job_.own_rows(-1);
  std::vector<wire::LatentRun> runs;
  for (const auto& run : rows)
    runs.push_back({run.begin * job_.patch_size, run.end * job_.patch_size});
  const auto own = rows.empty() ? latents_.slice(2, 0, 0) : gather(rows);
  return {own.to(at::kCPU, at::kFloat).contiguous(), std::move(runs)};
}

}  // namespace troupe::actors
