#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/choices.h"
#include "models/spec/flux2_spec.h"
#include "models/spec/flux_spec.h"
#include "models/spec/hunyuan_spec.h"
#include "models/spec/krea2_spec.h"
#include "models/spec/pixart_spec.h"
#include "models/spec/planned_tensors.h"
#include "models/spec/qwen_image_spec.h"
#include "models/spec/sd3_spec.h"
#include "models/spec/transformer_facts.h"
#include "models/spec/unet_spec.h"
#include "models/spec/user_spec.h"
#include "models/spec/wan_spec.h"
#include "models/spec/zimage_spec.h"

namespace troupe::spec {

/// The families, in the order in which errors name them. Each has, and the compiler asks for it:
/// `kClasses`, `read` and `pipelines`, and beside it `planned_tensors`, `facts_of` and `check_fit`.
using OwnFamilies =
    std::variant<PixArtSpec, Sd3Spec, FluxSpec, HunyuanSpec, UNetSpec, WanSpec, QwenImageSpec,
                 ZImageSpec, ChromaSpec, Flux2Spec, OvisImageSpec, LongCatImageSpec, Krea2Spec>;

/// One of these, or one that a plugin brought.
template <class Families>
struct WithUsers;
template <class... Families>
struct WithUsers<std::variant<Families...>> {
  using Type = std::variant<Families..., UserSpec>;
};
using TransformerFamily = WithUsers<OwnFamilies>::Type;

/// visit(std::type_identity<Family>{}) for each of Troupe's own.
template <class Visit>
void each_family(Visit&& visit) {
  [&]<class... Families>(std::type_identity<std::variant<Families...>>) {
    (visit(std::type_identity<Families>{}), ...);
  }(std::type_identity<OwnFamilies>{});
}

/// A transformer, or a U-Net: the facts that every family has, and the family itself for code that
/// computes with it.
struct TransformerSpec : TransformerFacts {
  TransformerSpec() : TransformerSpec(PixArtSpec{}) {}
  explicit TransformerSpec(TransformerFamily of);
  /// A family is a transformer.
  template <class Family>
  requires(std::is_constructible_v<TransformerFamily, Family> &&
           !std::is_same_v<Family, TransformerFamily>) TransformerSpec(const Family& of)
      : TransformerSpec(TransformerFamily(of)) {}

  TransformerFamily family;
  KeptWeights kept;

  /// Returns null if the network is a transformer.
  const UNetSpec* unet() const { return std::get_if<UNetSpec>(&family); }

  bool operator==(const TransformerSpec&) const = default;
};

/// `transformer/config.json`; the class that it names, or else `fallback_class`, tells the family.
/// Refuses what is not supported by key and value.
TransformerSpec read_transformer_spec(const ConfigReader& config,
                                      const std::string& fallback_class);

std::vector<PlannedTensor> planned_tensors(const TransformerSpec& spec);
std::vector<ExpectedTensor> expected_tensors(const TransformerSpec& spec);
/// Returns the number of elements of weights that a part keeps in memory.
inline std::uint64_t kept_elements(const TransformerSpec& spec, const TransformerPart& part) {
  return spec.kept.elements(part);
}
/// Returns the bytes of weights that a part keeps in memory, as KeptWeights::bytes counts them.
inline std::uint64_t kept_bytes(const TransformerSpec& spec, const TransformerPart& part,
                                std::uint64_t element, KeptAs as) {
  return spec.kept.bytes(part, element, as);
}

/// Returns the bytes that a part keeps if only two of its blocks are in memory at a time,
/// neighbours, the last and the first among them.
std::uint64_t streamed_bytes(const TransformerSpec& spec, const TransformerPart& part,
                             std::uint64_t element, KeptAs as);

/// Buffers that some published checkpoints carry and no computation reads.
bool is_ignorable_tensor(const TransformerSpec& spec, std::string_view name);

/// Returns the threshold of a request that names none: diffusers' own for the first-block cache,
/// TeaCache's mildest published one for TeaCache.
double default_cache_threshold(StepCacheRule rule);

/// Returns the polynomial that turns the relative change of a model's step signal into that of its
/// output, highest power first. It is published for FLUX.1 and Wan 2.1 1.3B and 14B from text; for
/// all other models it is x itself. Source: TeaCache (Liu et al.), github.com/ali-vilab/TeaCache.
std::vector<double> teacache_polynomial(const TransformerSpec& transformer);

}  // namespace troupe::spec
