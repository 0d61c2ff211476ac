#pragma once
#include <cstdint>

#include "base/choice.h"

/// The choices of a request, as every room from the models up decides by them.
namespace troupe {

/// Division of a picture's denoising. exact: every step as one actor computes it; pipefusion,
/// distrifusion: patch by patch, with values of the step before where a patch's neighbours have no
/// newer ones.
enum class Method : std::uint8_t { exact, pipefusion, distrifusion };
template <>
inline constexpr auto kNamesOf<Method> = std::to_array<std::string_view>({"exact", "pipefusion",
                                                                          "distrifusion"});

/// Use of K,V that are not fresh: as they are (stale), or extrapolated (predict).
enum class KvUse : std::uint8_t { stale, predict };
template <>
inline constexpr auto kNamesOf<KvUse> = std::to_array<std::string_view>({"stale", "predict"});

/// Type of number that a job computes in.
enum class ComputeType : std::uint8_t { float32, bfloat16, float16 };
template <>
inline constexpr auto kNamesOf<ComputeType> =
    std::to_array<std::string_view>({"float32", "bfloat16", "float16"});

/// Bytes of one value.
constexpr int element_bytes(ComputeType type) {
  return type == ComputeType::float32 ? 4 : 2;
}

/// Form in which the denoiser's linear layers keep their weights.
enum class WeightChoice : std::uint8_t { as_computed, int8, fp8 };
template <>
inline constexpr auto kNamesOf<WeightChoice> = std::to_array<std::string_view>({"", "int8", "fp8"});

/// Part of the denoiser that is not kept in a device's memory. blocks: a stage keeps two of its
/// blocks, the one that computes and the next, and reads each when its turn comes.
enum class OffloadChoice : std::uint8_t { none, blocks };
template <>
inline constexpr auto kNamesOf<OffloadChoice> = std::to_array<std::string_view>({"", "blocks"});

/// Type of number that noise is drawn in; model: the type that is computed in.
enum class NoiseType : std::uint8_t { float32, model };
template <>
inline constexpr auto kNamesOf<NoiseType> = std::to_array<std::string_view>({"float32", "model"});

/// Rule that leaves out steps which change little.
enum class StepCacheRule : std::uint8_t { none, first_block, teacache };
template <>
inline constexpr auto kNamesOf<StepCacheRule> = std::to_array<std::string_view>({"", "first-block",
                                                                                 "teacache"});

/// Moments that the group norms of a U-Net use when it is computed by patches.
enum class GroupNormMoments : std::uint8_t { corrected, stale, synchronous, separate };
template <>
inline constexpr auto kNamesOf<GroupNormMoments> =
    std::to_array<std::string_view>({"corrected", "stale", "synchronous", "separate"});

/// Values of other patches that a patch sees. After the warm-up those of the step before (stale),
/// those of the last step of the warm-up (none), or all of this step (all); or never any, in no
/// layer of any step (naive: DistriFusion's Naive Patch).
enum class PatchExchange : std::uint8_t { stale, none, all, naive };
template <>
inline constexpr auto kNamesOf<PatchExchange> = std::to_array<std::string_view>({"stale", "none",
                                                                                 "all", "naive"});

/// Result of a job: pictures, or its final latents alone, which nothing decodes.
enum class OutputType : std::uint8_t { picture, latent };
template <>
inline constexpr auto kNamesOf<OutputType> = std::to_array<std::string_view>({"picture", "latent"});

/// Content of a job's progress messages.
enum class ProgressContent : std::uint8_t { none, latents, preview };
template <>
inline constexpr auto kNamesOf<ProgressContent> = std::to_array<std::string_view>({"", "latents",
                                                                                   "preview"});

/// Devices that actors compute on.
enum class DeviceKind : std::uint8_t { cpu, cuda };
template <>
inline constexpr auto kNamesOf<DeviceKind> = std::to_array<std::string_view>({"cpu", "cuda"});

}  // namespace troupe
