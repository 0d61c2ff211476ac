#pragma once
#include <cstdint>
#include <vector>

#include "models/unet/patch_cuts.h"
#include "models/unet/patch_exchange.h"
#include "models/unet/unet_port.h"

namespace troupe::models::unet {

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
