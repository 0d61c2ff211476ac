#include "actors/tensor_inspection.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "base/error_text.h"
#include "models/image/png.h"

namespace troupe::actors {
namespace {

constexpr std::chrono::seconds kFetchDeadline{20};

std::string bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace

void TensorInspection::answer(Inspection& inspection) {
  if (!inspection.claim()) return;
  const auto& header = inspection.header;
  try {
    std::visit([&](const auto& question) { answer(header, question); }, inspection.question);
  } catch (const std::invalid_argument& error) {
    tools_.reply(header, wire::Failure{wire::FailureCode::bad_request, error.what()});
  } catch (const std::out_of_range& error) {
    tools_.reply(header, wire::Failure{wire::FailureCode::not_found, error.what()});
  } catch (const std::exception& error) {
    tools_.reply(header, wire::Failure{wire::FailureCode::internal, first_line(error.what())});
  }
}

void TensorInspection::answer(const wire::Header& header, const wire::GetTensors& question) {
  const auto& running = jobs_.find(question.job);
  wire::TensorReport report{.at = running.last_task, .tensors = {}};
  for (const auto& [name, tensor] : running.job->tensors()) {
    report.tensors.push_back(tensor_row(name, tensor));
    tools_.progress.tick();
  }
  tools_.reply(header, std::move(report));
}

void TensorInspection::answer(const wire::Header& header, const wire::GetSlice& question) {
  const auto& running = jobs_.find(question.job);
  for (const auto& [name, tensor] : running.job->tensors()) {
    if (name == question.name) return tools_.reply(header, tensor_slice(tensor, question.ranges));
  }
  throw std::out_of_range("[actor] " + jobs_.name_of(question.job) + " has no tensor \"" +
                          question.name + "\" here");
}

void TensorInspection::answer(const wire::Header& header, const wire::GetLatentRows& question) {
  const auto& running = jobs_.find(question.job);
  auto [rows, runs] = running.job->latents().host_rows();
  wire::LatentRows answer;
  answer.first_step = running.whole_step;
  answer.last_step = running.newest_step;
  answer.first_image = running.job->begin().first_image;
  answer.shape = running.job->latents().all().sizes().vec();
  answer.runs = std::move(runs);
  answer.blob = publish("latent rows", bytes_of(rows), rows.sizes().vec());
  tools_.reply(header, std::move(answer));
}

void TensorInspection::answer(const wire::Header& header, const wire::RenderLatents& question) {
  const auto& begin = jobs_.find(question.job).job->begin();
  auto& stage = *stages_.at(begin.deployment);
  const auto& shape = question.latents.shape;
  if (shape.size() != 4 || shape[0] != 1) throw std::invalid_argument("[render] no latents");
  const auto blob = tools_.fetch_blob(question.latents.id, question.latents.bytes, kFetchDeadline,
                                      [this] { tools_.progress.tick(); });
  if (!blob) throw std::runtime_error("[render] the latents did not arrive: " + blob.failure.what);
  auto latents = at::empty(shape);
  if (latents.nbytes() != blob.bytes->size()) throw std::invalid_argument("[render] wrong size");
  std::memcpy(latents.data_ptr(), blob.bytes->data(), latents.nbytes());
  const auto rough = stage.rough_picture(latents.to(tools_.device), begin.request.num_frames,
                                         [this] { tools_.progress.tick(); });
  const auto picture = models::to_uint8(rough).to(at::kCPU)[0].contiguous();
  auto png = models::encode_png(picture, {});
  tools_.reply(header, wire::Rendered{publish("picture", std::move(png), picture.sizes().vec())});
}

wire::BlobRef TensorInspection::publish(const std::string& name, std::string bytes,
                                        std::vector<std::int64_t> shape) {
  constexpr std::size_t kKept = 4;
  return blobs_.keep_newest(kept_, blobs_.publish(name, std::move(bytes), std::move(shape)), kKept);
}

wire::TensorRow tensor_row(const std::string& name, const at::Tensor& tensor) {
  wire::TensorRow row;
  row.name = name;
  row.shape = tensor.sizes().vec();
  row.dtype = c10::toString(tensor.scalar_type());
  std::transform(row.dtype.begin(), row.dtype.end(), row.dtype.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  if (row.dtype == "float") row.dtype = "float32";
  if (row.dtype == "half") row.dtype = "float16";
  if (row.dtype == "long") row.dtype = "int64";
  if (tensor.numel() == 0) return row;
  const auto values = tensor.to(at::kCPU, at::kDouble).flatten();
  const auto finite = values.masked_select(at::isfinite(values));
  row.not_finite = static_cast<std::uint64_t>(values.numel() - finite.numel());
  if (finite.numel() == 0) return row;
  row.mean = finite.mean().item<double>();
  row.min = finite.min().item<double>();
  row.max = finite.max().item<double>();
  return row;
}

wire::TensorSlice tensor_slice(const at::Tensor& tensor,
                               const std::vector<wire::SliceRange>& ranges) {
  if (static_cast<std::int64_t>(ranges.size()) > tensor.dim()) {
    throw std::invalid_argument("[slice] " + std::to_string(ranges.size()) +
                                " dimensions, the tensor has " + std::to_string(tensor.dim()));
  }
  at::Tensor part = tensor;
  std::int64_t dimension = 0;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const auto& range = ranges[i];
    const auto size = tensor.size(static_cast<std::int64_t>(i));
    const auto placed = [&](std::int64_t index) { return index < 0 ? index + size : index; };
    const auto refuse = [&] {
      throw std::invalid_argument("[slice] dimension " + std::to_string(i) + " has " +
                                  std::to_string(size) + " places, from 0");
    };
    const auto begin = range.whole ? 0 : placed(range.begin);
    if (range.single) {
      if (begin < 0 || begin >= size) refuse();
      part = part.select(dimension, begin);
      continue;
    }
    const auto end = range.whole || range.end == 0 ? size : placed(range.end);
    if (begin < 0 || begin > size || end < begin || end > size) refuse();
    part = part.slice(dimension++, begin, end);
  }
  if (part.numel() > wire::kMaxSliceValues) {
    throw std::invalid_argument("[slice] " + std::to_string(part.numel()) + " values, at most " +
                                std::to_string(wire::kMaxSliceValues) + " are shown");
  }
  const auto values = part.to(at::kCPU, at::kDouble).contiguous();
  wire::TensorSlice slice;
  slice.dtype = tensor_row("", part.flatten().slice(0, 0, 0)).dtype;
  slice.shape = part.sizes().vec();
  const auto* data = values.const_data_ptr<double>();
  slice.values.assign(data, data + values.numel());
  return slice;
}

}  // namespace troupe::actors
