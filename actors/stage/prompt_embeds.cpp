#include "actors/stage/prompt_embeds.h"

#include <ATen/ATen.h>

#include <cstring>
#include <map>
#include <stdexcept>

#include "models/spec/prompt_embeds.h"

namespace troupe::actors {
namespace {

using TensorKind = spec::PromptTensor::Kind;

[[noreturn]] void refuse_tensor(const std::string& name, const std::string& why) {
  throw std::invalid_argument("[actor] " + name + " " + why);
}

std::map<std::string, at::Tensor> read_tensors(const wire::ImageRequest& request,
                                               const std::string& bytes) {
  std::map<std::string, at::Tensor> tensors;
  std::size_t offset = 0;
  for (const auto& [name, shape] : request.prompt_embeds) {
    auto tensor = at::empty(shape, at::kFloat);
    if (tensor.nbytes() > bytes.size() - offset)
      refuse_tensor(name, "ends behind the " + std::to_string(bytes.size()) + " bytes that came");
    std::memcpy(tensor.mutable_data_ptr(), bytes.data() + offset, tensor.nbytes());
    offset += tensor.nbytes();
    if (!tensor.isfinite().all().item<bool>()) refuse_tensor(name, "is not finite");
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

/// Returns the number of tokens that each row of a mask [B, L] lets through: [B] int64.
at::Tensor lengths_of(const std::string& name, const at::Tensor& mask) {
  const auto lengths = mask.sum(1).to(at::kLong);
  const auto ones = at::arange(mask.size(1), at::kLong).unsqueeze(0).lt(lengths.unsqueeze(1));
  if (!mask.eq(ones.to(mask.scalar_type())).all().item<bool>() || lengths.eq(0).any().item<bool>())
    refuse_tensor(name, "is not ones, at least one, and then zeros in each of its rows");
  return lengths;
}

}  // namespace

std::vector<models::EncoderOutput> read_prompt_embeds(const spec::ModelSpec& model,
                                                      const wire::BeginJob& begin, bool guided,
                                                      const std::string& bytes) {
  const auto tensors = read_tensors(begin.request, bytes);
  const auto prompts = at::arange(begin.first_image, begin.last_image, at::kLong)
                           .floor_divide(begin.request.images_per_prompt);
  std::vector<models::EncoderOutput> outputs;
  for (const auto& part : spec::prompt_tensors(model)) {
    auto rows = tensors.at(part.name).index_select(0, prompts);
    if (guided) {
      const auto negative = tensors.find(std::string(spec::kNegativeTensor) + part.name);
      // If a model's negative text may be missing, it is zeros.
      rows = at::cat({negative == tensors.end() ? at::zeros_like(rows)
                                                : negative->second.index_select(0, prompts),
                      rows});
    }
    outputs.resize(std::max(outputs.size(), part.output + 1));
    auto& output = outputs[part.output];
    switch (part.kind) {
      case TensorKind::states:
        output.states = rows;
        output.tokens = rows.size(1);
        break;
      case TensorKind::mask:
        output.lengths = lengths_of(part.name, rows);
        break;
      case TensorKind::pooled:
        output.pooled = rows;
        break;
    }
  }
  for (auto& output : outputs) {
    if (output.states.defined() && !output.lengths.defined())
      output.lengths = at::full({output.states.size(0)}, output.tokens, at::kLong);
  }
  return outputs;
}

}  // namespace troupe::actors
