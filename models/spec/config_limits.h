#pragma once
#include <cstddef>
#include <cstdint>

namespace troupe::spec {

// What a config may say at most: more than any published model has, and little enough that products
// of sizes stay exact.

inline constexpr std::int64_t kMaxWidth = 1 << 16;
inline constexpr std::int64_t kMaxBlocks = 1024;
/// Levels of a U-Net or an autoencoder.
inline constexpr std::size_t kMaxLevels = 8;

/// Features that diffusers' timestep embeddings begin with, in every family.
inline constexpr std::int64_t kTimeFrequencies = 256;

}  // namespace troupe::spec
