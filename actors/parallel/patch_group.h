#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "actors/parallel/wait_for_work.h"
#include "models/unet/patch_port.h"
#include "transport/tensor/group.h"

namespace troupe::actors {

/// A U-Net's patches over the members of a group: rank r computes the patches
/// RowShards(cuts.patches(), size).of(r). Values of this step come by all_gather at once. Those for
/// the next step go off in batches of layers while later ones are computed, and are waited for when
/// the next step first asks for one of the batch; their buffers are made in the first such step and
/// live as long as this. Nothing is negotiated: every size follows from cuts and width.
class PatchGroup final : public models::unet::PatchExchange {
 public:
  /// `group` outlives this object. `width` is that of the latents. A batch is sent when all ranks'
  /// values in it reach `batch_bytes`. Throws std::invalid_argument if a rank would have no patch.
  PatchGroup(tensor::Group& group, models::unet::PatchCuts cuts, std::int64_t width,
             WaitForWork wait, std::int64_t batch_bytes = std::int64_t{4} << 20);

  int begin() const override { return first_patch(group_.rank()); }
  int end() const override { return first_patch(group_.rank() + 1); }
  void begin_step() override;
  /// Makes the sites before and after this point lie in different batches, because a batch is sent
  /// only when all its values are there.
  void part() override;
  void finish() override;
  std::int64_t bytes() const override;
  std::vector<at::Tensor> fresh(const models::unet::Site& site, const std::vector<at::Tensor>& own,
                                bool keep) override;
  std::vector<at::Tensor> stale(const models::unet::Site& site, const std::vector<at::Tensor>& own,
                                bool keep) override;

  /// Bytes that this rank has sent so far, by kind of layer.
  const std::map<models::unet::Site::Kind, std::uint64_t>& bytes_sent() const { return sent_; }
  int batches() const { return static_cast<int>(batches_.size()); }

 private:
  /// Place of a site's values in a batch's buffer.
  struct Slot {
    models::unet::Site site;
    std::vector<std::vector<std::int64_t>> shapes;  // of each patch
    std::vector<std::int64_t> offsets;              // of each patch, within its rank's segment
  };
  struct Batch {
    std::vector<Slot> slots;
    std::vector<std::int64_t> segments;  // where each rank's begins, and the end
    at::Tensor all[2];                   // bytes; one set is read while the other is written
    tensor::Work work[2];
    int side = 0;  // that is written, or was last
    size_t filled = 0;
  };
  struct Kept {
    std::vector<at::Tensor> values;
    int batch = -1;  // that they come with; -1: they are here
    int side = 0;
  };
  struct Pending {
    models::unet::Site site;
    std::vector<at::Tensor> own;
  };

  int first_patch(int rank) const;
  std::vector<std::int64_t> shape_of(const models::unet::Site& site, const at::Tensor& like,
                                     int patch) const;
  std::int64_t bytes_of(const models::unet::Site& site, const at::Tensor& like) const;
  void count(const models::unet::Site& site, const std::vector<at::Tensor>& own);
  void put(const models::unet::Site& site, const std::vector<at::Tensor>& own);
  void fill(int batch, size_t slot, const std::vector<at::Tensor>& own);
  void make_batch();

  tensor::Group& group_;
  models::unet::PatchCuts cuts_;
  std::vector<std::int64_t> widths_;
  WaitForWork wait_;
  std::int64_t batch_bytes_;
  std::map<models::unet::Site, Kept> kept_;
  std::vector<Batch> batches_;
  std::map<models::unet::Site, std::pair<int, size_t>> slots_;
  std::vector<Pending> pending_;
  std::int64_t pending_bytes_ = 0;
  std::map<models::unet::Site::Kind, std::uint64_t> sent_;
};

}  // namespace troupe::actors
