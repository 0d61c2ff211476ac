#pragma once
#include <cstdint>

#include "base/choice.h"

/// The choices of a request, as every room from the models up decides by them.
namespace troupe {

/// How a picture's denoising is parted. exact: every step as one actor computes it; pipefusion,
/// distrifusion: patch by patch, with values of the step before where a patch's neighbours have no
/// newer ones.
enum class Method : std::uint8_t { exact, pipefusion, distrifusion };
template <>
inline constexpr auto kNamesOf<Method> = std::to_array<std::string_view>({"exact", "pipefusion",
                                                                          "distrifusion"});

/// K,V that are not fresh: used as they are, or extrapolated.
enum class KvUse : std::uint8_t { stale, predict };
template <>
inline constexpr auto kNamesOf<KvUse> = std::to_array<std::string_view>({"stale", "predict"});

/// What is computed in.
enum class ComputeType : std::uint8_t { float32, bfloat16, float16 };
template <>
inline constexpr auto kNamesOf<ComputeType> =
    std::to_array<std::string_view>({"float32", "bfloat16", "float16"});

/// Bytes of one value.
constexpr int element_bytes(ComputeType type) {
  return type == ComputeType::float32 ? 4 : 2;
}

/// How the denoiser's linear layers keep their weights.
enum class WeightChoice : std::uint8_t { as_computed, int8, fp8 };
template <>
inline constexpr auto kNamesOf<WeightChoice> = std::to_array<std::string_view>({"", "int8", "fp8"});

/// What of the denoiser is not kept in a device's memory. blocks: a stage keeps two of its blocks,
/// the one that computes and the next, and reads each when its turn comes.
enum class OffloadChoice : std::uint8_t { none, blocks };
template <>
inline constexpr auto kNamesOf<OffloadChoice> = std::to_array<std::string_view>({"", "blocks"});

/// What noise is drawn in; model: the type that is computed in.
enum class NoiseType : std::uint8_t { float32, model };
template <>
inline constexpr auto kNamesOf<NoiseType> = std::to_array<std::string_view>({"float32", "model"});

/// Which rule leaves out steps that change little.
enum class StepCacheRule : std::uint8_t { none, first_block, teacache };
template <>
inline constexpr auto kNamesOf<StepCacheRule> = std::to_array<std::string_view>({"", "first-block",
                                                                                 "teacache"});

/// Of a U-Net by patches: the moments that its group norms use.
enum class GroupNormMoments : std::uint8_t { corrected, stale, synchronous, separate };
template <>
inline constexpr auto kNamesOf<GroupNormMoments> =
    std::to_array<std::string_view>({"corrected", "stale", "synchronous", "separate"});

/// Of patches: what they see of each other. After the warm-up what the others had in the step
/// before (stale), what they had in the last step of the warm-up (none), or everything of this step
/// (all); or never anything, in no layer of no step (naive: DistriFusion's Naive Patch).
enum class PatchExchange : std::uint8_t { stale, none, all, naive };
template <>
inline constexpr auto kNamesOf<PatchExchange> = std::to_array<std::string_view>({"stale", "none",
                                                                                 "all", "naive"});

/// What a job ends with: pictures, or its final latents alone, which nothing decodes.
enum class OutputType : std::uint8_t { picture, latent };
template <>
inline constexpr auto kNamesOf<OutputType> = std::to_array<std::string_view>({"picture", "latent"});

/// What comes with a job's progress.
enum class ProgressContent : std::uint8_t { none, latents, preview };
template <>
inline constexpr auto kNamesOf<ProgressContent> = std::to_array<std::string_view>({"", "latents",
                                                                                   "preview"});

/// Devices that actors compute on.
enum class DeviceKind : std::uint8_t { cpu, cuda };
template <>
inline constexpr auto kNamesOf<DeviceKind> = std::to_array<std::string_view>({"cpu", "cuda"});

}  // namespace troupe
