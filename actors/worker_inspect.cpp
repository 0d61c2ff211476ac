#include <ATen/ATen.h>

#include <cstring>

#include "actors/inspect.h"
#include "actors/worker.h"
#include "models/image/pixels.h"
#include "models/image/png.h"

// Questions about tensors, answered between two letters.
namespace troupe::actors {
namespace {

constexpr std::chrono::seconds kFetchDeadline{20};

std::string bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace

const Worker::RunningJob& Worker::job_to_look_at(std::uint64_t job) const {
  const auto found = jobs_.find(job);
  if (found != jobs_.end()) return found->second;
  throw std::out_of_range("[actor] job " + std::to_string(job) +
                          " is not here: it has not begun, has ended, or runs on other actors");
}

void Worker::inspect(Inspection& inspection) {
  if (!inspection.claim()) return;
  const auto& header = inspection.header;
  try {
    std::visit(
        [&](const auto& question) {
          using Question = std::decay_t<decltype(question)>;
          if constexpr (std::is_same_v<Question, wire::GetTensors>) look_at(header, question);
          if constexpr (std::is_same_v<Question, wire::GetSlice>) look_at(header, question);
          if constexpr (std::is_same_v<Question, wire::GetLatentRows>) give_rows(header, question);
          if constexpr (std::is_same_v<Question, wire::RenderLatents>) render(header, question);
        },
        inspection.question);
  } catch (const std::invalid_argument& error) {
    reply(header, wire::Failure{wire::FailureCode::bad_request, error.what()});
  } catch (const std::out_of_range& error) {
    reply(header, wire::Failure{wire::FailureCode::not_found, error.what()});
  } catch (const std::exception& error) {
    const std::string text = error.what();
    reply(header, wire::Failure{wire::FailureCode::internal, text.substr(0, text.find('\n'))});
  }
}

void Worker::look_at(const wire::Header& header, const wire::GetTensors& question) {
  const auto& running = job_to_look_at(question.job);
  wire::TensorReport report{.at = running.last_task, .tensors = {}};
  for (const auto& [name, tensor] : running.job->tensors()) {
    report.tensors.push_back(tensor_row(name, tensor));
    tools_.progress.tick();
  }
  reply(header, std::move(report));
}

void Worker::look_at(const wire::Header& header, const wire::GetSlice& question) {
  const auto& running = job_to_look_at(question.job);
  for (const auto& [name, tensor] : running.job->tensors()) {
    if (name == question.name) return reply(header, tensor_slice(tensor, question.ranges));
  }
  throw std::out_of_range("[actor] job " + std::to_string(question.job) + " has no tensor \"" +
                          question.name + "\" here");
}

void Worker::give_rows(const wire::Header& header, const wire::GetLatentRows& question) {
  const auto& running = job_to_look_at(question.job);
  auto [rows, runs] = running.job->latents().host_rows();
  wire::LatentRows answer;
  answer.first_step = running.whole_step;
  answer.last_step = running.newest_step;
  answer.first_image = running.job->begin().first_image;
  answer.shape = running.job->latents().all().sizes().vec();
  answer.runs = std::move(runs);
  answer.blob = keep_for_looking("latent rows", bytes_of(rows), rows.sizes().vec());
  reply(header, std::move(answer));
}

void Worker::render(const wire::Header& header, const wire::RenderLatents& question) {
  const auto& begin = job_to_look_at(question.job).job->begin();
  auto& stage = *stages_.at(begin.deployment);
  const auto& shape = question.latents.shape;
  if (shape.size() != 4 || shape[0] != 1) throw std::invalid_argument("[render] no latents");
  const auto blob = tools_.fetch_blob(question.latents.id, question.latents.bytes, kFetchDeadline);
  if (!blob) throw std::runtime_error("[render] the latents did not arrive: " + blob.failure.what);
  auto latents = at::empty(shape);
  if (latents.nbytes() != blob.bytes->size()) throw std::invalid_argument("[render] wrong size");
  std::memcpy(latents.data_ptr(), blob.bytes->data(), latents.nbytes());
  const auto rough = stage.rough_picture(latents.to(tools_.device), begin.request.num_frames,
                                         [this] { tools_.progress.tick(); });
  const auto picture = models::to_uint8(rough).to(at::kCPU)[0].contiguous();
  auto png = models::encode_png(picture, {});
  reply(header, wire::Rendered{keep_for_looking("picture", std::move(png), picture.sizes().vec())});
}

wire::BlobRef Worker::keep_for_looking(const std::string& name, std::string bytes,
                                       std::vector<std::int64_t> shape) {
  constexpr std::size_t kKept = 4;
  wire::BlobRef ref{.name = name, .id = 0, .bytes = bytes.size(), .shape = std::move(shape)};
  ref.id = tools_.blobs.add(std::move(bytes));
  looked_at_.push_back(ref.id);
  if (looked_at_.size() > kKept) {
    tools_.blobs.remove(looked_at_.front());
    looked_at_.pop_front();
  }
  return ref;
}

}  // namespace troupe::actors
