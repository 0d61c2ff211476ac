#include "models/dit/load_transformer.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <variant>

#include "models/dit/blocks.h"
#include "models/dit/flux.h"
#include "models/dit/flux2.h"
#include "models/dit/hunyuan.h"
#include "models/dit/krea2.h"
#include "models/dit/pixart.h"
#include "models/dit/qwen_image.h"
#include "models/dit/sd3.h"
#include "models/dit/wan.h"
#include "models/dit/zimage.h"
#include "models/lora/lora_weights.h"
#include "models/safetensors.h"

namespace troupe::models {
namespace {

/// The class of each family's stages.
struct MakeTransformer {
  using Made = std::unique_ptr<DiffusionTransformer>;

  const spec::ModelSpec& model;
  const StagePart& part;
  const WeightLoader& weights;
  at::ScalarType compute;
  at::Device device;

  Made operator()(const spec::PixArtSpec& of) const {
    return std::make_unique<PixArt>(of, model.vae.scale_factor(), part, weights, compute, device);
  }
  Made operator()(const spec::Sd3Spec& of) const { return made<Sd3>(of); }
  Made operator()(const spec::FluxSpec& of) const { return made<Flux>(of); }
  Made operator()(const spec::HunyuanSpec& of) const {
    return std::make_unique<Hunyuan>(of, model.vae.scale_factor(), part, weights, compute, device);
  }
  Made operator()(const spec::WanSpec& of) const { return made<Wan>(of); }
  Made operator()(const spec::QwenImageSpec& of) const { return made<QwenImage>(of); }
  Made operator()(const spec::ZImageSpec& of) const { return made<ZImage>(of); }
  Made operator()(const spec::Flux2Spec& of) const { return made<Flux2>(of); }
  Made operator()(const spec::Krea2Spec& of) const { return made<Krea2>(of); }
  Made operator()(const spec::UserSpec& of) const {
    return user_networks().find(of.class_name)(*of.transformer, model, part, weights, compute,
                                               device);
  }
  Made operator()(const spec::UNetSpec&) const {
    throw std::logic_error("[transformer] a U-Net is not made here");
  }

 private:
  template <class Model, class Spec>
  Made made(const Spec& of) const {
    return std::make_unique<Model>(of, part, weights, compute, device);
  }
};

}  // namespace

spec::UserMakers<MakeNetwork>& user_networks() {
  static spec::UserMakers<MakeNetwork> networks("transformer class");
  return networks;
}

std::unique_ptr<DiffusionTransformer> load_transformer(const spec::ModelSpec& spec,
                                                       const StagePart& part,
                                                       at::ScalarType compute, at::Device device,
                                                       const std::function<void()>& tick,
                                                       const LoraWeights* loras,
                                                       kernels::WeightType type, KeepBlocks keep) {
  kernels::require_weight_type(type, device);
  const WeightStore store(part.of_second ? spec.second_transformer.value().weights
                                         : spec.transformer_weights);
  const std::string component = part.of_second ? spec::kSecondTransformer : spec::kDenoiser;
  WeightLoader weights;
  weights.type = type;
  if (keep != KeepBlocks::all) weights.stream = std::make_shared<BlockStream>(device);
  weights.from_host = keep == KeepBlocks::from_host;
  // Tensors that a LoRA is added to are rounded to the compute dtype once, afterwards.
  const auto touched = [loras, component](const std::string& name) {
    return loras != nullptr && loras->touches(component, name);
  };
  // Streamed blocks are read later, too, and then nobody counts.
  const auto counted = std::make_shared<std::function<void()>>(tick);
  const auto adapted = [=](const std::string& name, const at::Tensor& stored, int64_t row,
                           int64_t column) {
    const auto sum = loras->add(component, name, stored, row, column).to(compute);
    if (compute == at::kHalf)
      require_finite(sum.cpu().contiguous(), "with its LoRA in float16, tensor \"" + name + "\" ");
    return sum;
  };
  // Biases and norms are adapted where they are read, matrices part by part.
  weights.get = [=](const std::string& name, at::IntArrayRef shape) {
    if (*counted) (*counted)();
    if (!touched(name)) return store.get(name, shape, compute, device);
    const auto stored = store.get(name, shape, at::kFloat, device);
    return shape.size() < 2 ? adapted(name, stored, 0, 0) : stored;
  };
  weights.release = [=](const std::string& name) { store.release(name); };
  if (type == kernels::WeightType::as_computed) {
    weights.packed = [=](const std::string& name) {
      return touched(name) ? std::nullopt : store.packed(name);
    };
  }
  if (loras != nullptr && !loras->empty()) {
    weights.adapt = [=](const std::string& name, const at::Tensor& stored, int64_t row,
                        int64_t column) {
      return touched(name) && stored.dim() > 1 ? adapted(name, stored, row, column) : stored;
    };
  }
  auto made =
      std::visit(MakeTransformer{spec, part, weights, compute, device}, spec.transformer.family);
  *counted = nullptr;
  return made;
}

void StepCondition::take(const StepCondition& fresh) {
  const auto into = tensors(), from = fresh.tensors();
  if (into.size() != from.size())
    throw std::logic_error("[transformer] a step's condition is another model's");
  for (size_t i = 0; i < into.size(); ++i) {
    if (!into[i].defined()) continue;
    // Batch items that share their values lie at one place.
    at::Tensor target = into[i], source = from[i];
    for (int64_t d = 0; d < target.dim(); ++d) {
      if (target.stride(d) != 0 || target.size(d) < 2) continue;
      target = target.narrow(d, 0, 1);
      source = source.narrow(d, 0, 1);
    }
    target.copy_(source);
  }
}

at::Tensor DiffusionTransformer::embed_text(const CaptionCache&, int64_t, int64_t) const {
  throw std::logic_error("[transformer] no text tokens are part of this model's sequence");
}

}  // namespace troupe::models
