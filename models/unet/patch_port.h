#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "models/unet/unet_port.h"
#include "models/vae/halo_port.h"

namespace troupe::models::unet {

/// Rows that each patch has at every level of a U-Net. At level 0, the latents, rows are divided
/// evenly, remainders first. Level l + 1 is half as high, rounded up, and a patch has those of its
/// rows that lie on an even row of its own at level l: so a convolution needs one row beyond either
/// end of a patch at the same level, whichever way it goes. Patches may have no row at deeper
/// levels.
class PatchCuts {
 public:
  /// Throws std::invalid_argument where a patch would have no row of latents.
  PatchCuts(std::int64_t height, int patches, int levels);

  int patches() const { return patches_; }
  int levels() const { return static_cast<int>(levels_.size()); }
  std::int64_t height(int level) const { return levels_.at(level).back(); }
  RowRun rows(int level, int patch) const {
    return {levels_.at(level).at(patch), levels_.at(level).at(patch + 1)};
  }

 private:
  int patches_;
  std::vector<std::vector<std::int64_t>> levels_;  // where patches begin, and the height
};

/// Length of the next level.
inline std::int64_t halved(std::int64_t length) {
  return (length + 1) / 2;
}

/// Exchange of the values that patches send each other at a site: one tensor per patch, of a shape
/// that follows from site and cuts.
class PatchExchange {
 public:
  virtual ~PatchExchange() = default;

  /// First patch that is computed here, and the one after the last.
  virtual int begin() const = 0;
  virtual int end() const = 0;

  /// Begins a step; called before each step, on every member.
  virtual void begin_step() {}
  /// Marks the point from which sites may be left out in steps that ask the sites before it.
  virtual void part() {}
  /// Ends the exchange after the last step: returns when nothing of this exchange is under way any
  /// more.
  virtual void finish() {}
  /// Returns the bytes of the values kept for the next step, and of the buffers that they arrive
  /// in.
  virtual std::int64_t bytes() const { return 0; }

  /// Returns the values of all patches of this step, in the order of patches. With `keep`, the next
  /// step finds these values.
  virtual std::vector<at::Tensor> fresh(const Site& site, const std::vector<at::Tensor>& own,
                                        bool keep) = 0;

  /// Returns the values of all patches as last kept, without waiting for any. With `keep`, the next
  /// step finds `own`; no call of this step does. Throws std::logic_error if nothing was kept.
  virtual std::vector<at::Tensor> stale(const Site& site, const std::vector<at::Tensor>& own,
                                        bool keep) = 0;
};

/// All patches are computed in this process, in one call.
class LocalExchange final : public PatchExchange {
 public:
  explicit LocalExchange(int patches) : patches_(patches) {}
  int begin() const override { return 0; }
  int end() const override { return patches_; }
  std::vector<at::Tensor> fresh(const Site& site, const std::vector<at::Tensor>& own,
                                bool keep) override;
  std::vector<at::Tensor> stale(const Site& site, const std::vector<at::Tensor>& own,
                                bool keep) override;
  std::int64_t bytes() const override;
  /// Bytes kept, by kind of layer.
  std::map<Site::Kind, std::int64_t> bytes_by_kind() const;

 private:
  int patches_;
  std::map<Site, std::vector<at::Tensor>> kept_;
};

/// Mean and variance of a group norm in a step that is not synchronous.
enum class NormMode {
  /// The whole picture's moments of the step before, plus what changed in the patch itself; the
  /// patch's own variance if that sum gives none. DistriFusion's (arXiv 2402.19481).
  corrected,
  /// The patch's moments of this step and the other patches' of the step before.
  stale,
  /// All patches' moments of this step: exact, and the patches wait for each other at every norm.
  synchronous,
  /// The patch's own moments alone.
  separate,
};

/// Values of other patches that a patch uses in a step.
enum class StepMode {
  /// All values of this step: equal to computing the whole picture.
  synchronous,
  /// All values are of the step before, except the first convolution's rows and what NormMode says.
  stale,
  /// Same as stale, but with the values of the last synchronous step.
  frozen,
  /// No values: each patch is computed as a picture of its own, with zeros beyond its rows,
  /// whatever the NormMode. DistriFusion's baseline (Naive Patch).
  naive,
};

/// Patches of rows that see each other through an exchange: exact in synchronous steps,
/// DistriFusion in the others.
class PatchPort final : public UNetPort {
 public:
  /// `ever_stale`: not all steps are synchronous, so these keep values for the ones that are not.
  PatchPort(PatchCuts cuts, PatchExchange& exchange, NormMode norm = NormMode::corrected,
            bool ever_stale = true)
      : cuts_(std::move(cuts)), exchange_(exchange), norm_(norm), ever_stale_(ever_stale) {}

  /// Begins a step; called before each step. The first step of a picture is synchronous, or all are
  /// naive; the last may be `frozen` instead of stale, since nobody reads the values that it would
  /// keep.
  void begin_step(StepMode mode) {
    mode_ = mode;
    exchange_.begin_step();
  }

  std::int64_t height(int level) const override { return cuts_.height(level); }
  std::vector<RowRun> rows(int level) const override;
  std::vector<Halo> halos(const Site& site, const Features& x) override;
  std::vector<at::Tensor> moments(const Site& site, const std::vector<Moments>& own) override;
  std::vector<at::Tensor> attend(const Site& site, const std::vector<at::Tensor>& qkv) override;

 private:
  bool keeps() const { return mode_ == StepMode::stale; }
  at::Tensor weighted(const Site& site, const std::vector<at::Tensor>& values) const;
  std::vector<Halo> zeros_beyond(const Features& x) const;

  PatchCuts cuts_;
  PatchExchange& exchange_;
  NormMode norm_;
  bool ever_stale_;
  StepMode mode_ = StepMode::synchronous;
};

}  // namespace troupe::models::unet
