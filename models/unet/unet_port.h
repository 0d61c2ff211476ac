#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/vae/halo_port.h"

namespace troupe::models::unet {

/// A feature map by patches: [B, C, rows, w] of each patch of this call, in the order of rows. A
/// patch may have no rows.
struct Features {
  std::vector<at::Tensor> patches;
  int level = 0;  ///< resolution, 0 is the latents'
};

/// A layer that looks beyond its patch, counted by kind in the order of the model.
struct Site {
  enum class Kind { conv, norm, attention };
  Kind kind = Kind::conv;
  int index = 0;
  int level = 0;  ///< level of the rows that are asked for

  auto operator<=>(const Site&) const = default;
};

/// Mean and mean square of each group over some rows, [2, B, groups] float64, and of how many rows.
struct Moments {
  at::Tensor values;
  std::int64_t rows = 0;
};

/// All that cutting a picture into patches of rows changes in a U-Net. Calls of the model ask its
/// sites in one order; a call that leaves layers out asks fewer.
class UNetPort {
 public:
  virtual ~UNetPort() = default;

  /// Rows of the whole feature map at `level`, and those of each patch of this call.
  virtual std::int64_t height(int level) const = 0;
  virtual std::vector<RowRun> rows(int level) const = 0;

  /// Returns for each patch of this call the row above its first and the one below its last,
  /// undefined where the picture ends.
  virtual std::vector<Halo> halos(const Site& site, const Features& x) = 0;

  /// Returns for each patch of this call the mean and variance that its group norm uses:
  /// [2, B, groups] float64.
  virtual std::vector<at::Tensor> moments(const Site& site, const std::vector<Moments>& own) = 0;

  /// Returns softmax(q · kᵀ / √d) · v over the keys of all patches, for each patch of this call;
  /// qkv [B, rows · w, 3, H, d], result [B, rows · w, H, d].
  virtual std::vector<at::Tensor> attend(const Site& site, const std::vector<at::Tensor>& qkv) = 0;
};

}  // namespace troupe::models::unet
