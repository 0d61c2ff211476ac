#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "models/unet/unet_port.h"

namespace troupe::models::unet {

/// What patches tell each other at a site: one tensor a patch, of a shape that follows from site
/// and cuts.
class PatchExchange {
 public:
  virtual ~PatchExchange() = default;

  /// Patches [begin, end) are computed here.
  virtual int begin() const = 0;
  virtual int end() const = 0;

  /// Before each step, on every member.
  virtual void begin_step() {}
  /// Sites that are asked from here on may be left out in steps that ask those before.
  virtual void part() {}
  /// After the last step: returns when nothing of this is under way any more.
  virtual void finish() {}
  /// Of what is kept for the next step, and of the room that it arrives in.
  virtual std::int64_t bytes() const { return 0; }

  /// Everybody's values of this step, in the order of patches. Where `keep` is set, they are what
  /// the next step finds.
  virtual std::vector<at::Tensor> fresh(const Site& site, const std::vector<at::Tensor>& own,
                                        bool keep) = 0;

  /// Everybody's values as last kept, without waiting for any. Where `keep` is set, `own` are what
  /// the next step finds; no call of this step does. Throws std::logic_error where nothing was
  /// kept.
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
