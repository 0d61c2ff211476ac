#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "models/unet/unet_port.h"

namespace troupe::models::unet {

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

}  // namespace troupe::models::unet
