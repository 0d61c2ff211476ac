#include "actors/parallel/patch_group.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <string>

#include "models/vae/halo_port.h"

namespace troupe::actors {
namespace {

using models::unet::Site;

constexpr std::int64_t kAlignment = 16;

std::int64_t elements(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape)
    count *= size;
  return count;
}

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

at::Tensor flat(const std::vector<at::Tensor>& values) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& value : values)
    parts.push_back(value.reshape({-1}));
  return parts.size() == 1 ? parts.front().contiguous() : at::cat(parts);
}

}  // namespace

PatchGroup::PatchGroup(tensor::Group& group, models::unet::PatchCuts cuts, std::int64_t width,
                       WaitForWork wait, std::int64_t batch_bytes)
    : group_(group), cuts_(std::move(cuts)), wait_(std::move(wait)), batch_bytes_(batch_bytes) {
  if (cuts_.patches() < group_.size()) {
    throw std::invalid_argument("[PatchGroup] " + std::to_string(cuts_.patches()) +
                                " patches over " + std::to_string(group_.size()) +
                                " ranks: each needs one at least");
  }
  for (int level = 0; level < cuts_.levels(); ++level, width = models::unet::halved(width))
    widths_.push_back(width);
}

int PatchGroup::first_patch(int rank) const {
  const models::RowShards shares(cuts_.patches(), group_.size());
  return rank == group_.size() ? cuts_.patches() : static_cast<int>(shares.of(rank).begin);
}

std::vector<std::int64_t> PatchGroup::shape_of(const Site& site, const at::Tensor& like,
                                               int patch) const {
  auto shape = like.sizes().vec();
  const std::int64_t rows = cuts_.rows(site.level, patch).size();
  if (site.kind == Site::Kind::conv) shape[2] = rows > 0 ? 2 : 0;
  if (site.kind == Site::Kind::attention) shape[1] = rows * widths_.at(site.level);
  return shape;
}

std::int64_t PatchGroup::bytes_of(const Site& site, const at::Tensor& like) const {
  std::int64_t bytes = 0;
  for (int patch = 0; patch < cuts_.patches(); ++patch)
    bytes += aligned(elements(shape_of(site, like, patch)) *
                     static_cast<std::int64_t>(like.element_size()));
  return bytes;
}

void PatchGroup::count(const Site& site, const std::vector<at::Tensor>& own) {
  for (const at::Tensor& value : own)
    sent_[site.kind] += value.nbytes() * static_cast<std::uint64_t>(group_.size() - 1);
}

void PatchGroup::begin_step() {
  part();
  for (Batch& batch : batches_)
    batch.filled = 0;
}

void PatchGroup::part() {
  if (!pending_.empty()) make_batch();
}

void PatchGroup::finish() {
  for (const Batch& batch : batches_) {
    for (const tensor::Work& work : batch.work)
      wait_(work);
  }
}

std::int64_t PatchGroup::bytes() const {
  std::int64_t sum = 0;
  for (const auto& [site, kept] : kept_) {
    if (kept.batch >= 0) continue;
    for (const at::Tensor& value : kept.values)
      sum += static_cast<std::int64_t>(value.nbytes());
  }
  for (const Batch& batch : batches_) {
    for (int side = 0; side < 2; ++side)
      sum += static_cast<std::int64_t>(batch.all[side].nbytes());
  }
  return sum;
}

std::vector<at::Tensor> PatchGroup::fresh(const Site& site, const std::vector<at::Tensor>& own,
                                          bool keep) {
  std::vector<at::Tensor> outs;
  std::vector<at::Tensor> values;
  for (int rank = 0; rank < group_.size(); ++rank) {
    std::int64_t total = 0;
    for (int patch = first_patch(rank); patch < first_patch(rank + 1); ++patch)
      total += elements(shape_of(site, own.front(), patch));
    outs.push_back(
        at::empty({total}, own.front().options().memory_format(at::MemoryFormat::Contiguous)));
    std::int64_t at = 0;
    for (int patch = first_patch(rank); patch < first_patch(rank + 1); ++patch) {
      const auto shape = shape_of(site, own.front(), patch);
      values.push_back(outs.back().narrow(0, at, elements(shape)).view(shape));
      at += elements(shape);
    }
  }
  if (group_.size() == 1) {
    values = own;
  } else {
    count(site, own);
    wait_(group_.all_gather(outs, flat(own)));
  }
  if (keep) kept_[site] = {values};
  return values;
}

std::vector<at::Tensor> PatchGroup::stale(const Site& site, const std::vector<at::Tensor>& own,
                                          bool keep) {
  const auto found = kept_.find(site);
  if (found == kept_.end()) {
    throw std::logic_error("[PatchGroup] layer " + std::to_string(site.index) +
                           " has no values of an earlier step: the first step is synchronous");
  }
  const Kept before = found->second;
  if (before.batch >= 0) wait_(batches_[before.batch].work[before.side]);
  if (keep && group_.size() == 1) {
    found->second = {own};
  } else if (keep) {
    put(site, own);
  }
  return before.values;
}

void PatchGroup::put(const Site& site, const std::vector<at::Tensor>& own) {
  const auto slot = slots_.find(site);
  if (slot != slots_.end()) {
    fill(slot->second.first, slot->second.second, own);
    return;
  }
  pending_.push_back({site, own});
  pending_bytes_ += bytes_of(site, own.front());
  if (pending_bytes_ >= batch_bytes_) make_batch();
}

void PatchGroup::make_batch() {
  Batch batch;
  for (const Pending& pending : pending_) {
    Slot slot{pending.site, {}, {}};
    for (int patch = 0; patch < cuts_.patches(); ++patch)
      slot.shapes.push_back(shape_of(pending.site, pending.own.front(), patch));
    slot.offsets.resize(slot.shapes.size());
    batch.slots.push_back(std::move(slot));
  }
  batch.segments = {0};
  for (int rank = 0; rank < group_.size(); ++rank) {
    std::int64_t at = 0;
    for (size_t s = 0; s < pending_.size(); ++s) {
      const auto size = static_cast<std::int64_t>(pending_[s].own.front().element_size());
      for (int patch = first_patch(rank); patch < first_patch(rank + 1); ++patch) {
        batch.slots[s].offsets[patch] = at;
        at += aligned(elements(batch.slots[s].shapes[patch]) * size);
      }
    }
    batch.segments.push_back(batch.segments.back() + at);
  }
  const auto bytes = pending_.front().own.front().options().dtype(at::kByte).memory_format(
      at::MemoryFormat::Contiguous);
  for (int side = 0; side < 2; ++side)
    batch.all[side] = at::zeros({batch.segments.back()}, bytes);
  const int index = static_cast<int>(batches_.size());
  batches_.push_back(std::move(batch));
  const std::vector<Pending> pending = std::move(pending_);
  pending_.clear();
  pending_bytes_ = 0;
  for (size_t s = 0; s < pending.size(); ++s) {
    slots_[pending[s].site] = {index, s};
    fill(index, s, pending[s].own);
  }
}

void PatchGroup::fill(int index, size_t at, const std::vector<at::Tensor>& own) {
  Batch& batch = batches_[index];
  const Slot& slot = batch.slots[at];
  if (batch.filled == 0) {
    batch.side = 1 - batch.side;
    wait_(batch.work[batch.side]);
  }
  const int side = batch.side;
  const auto type = own.front().scalar_type();
  const auto size = static_cast<std::int64_t>(own.front().element_size());
  std::vector<at::Tensor> values;
  for (int rank = 0; rank < group_.size(); ++rank) {
    for (int patch = first_patch(rank); patch < first_patch(rank + 1); ++patch) {
      const auto& shape = slot.shapes[patch];
      const std::int64_t offset = batch.segments[rank] + slot.offsets[patch];
      values.push_back(
          batch.all[side].narrow(0, offset, elements(shape) * size).view(type).view(shape));
      if (rank == group_.rank()) values.back().copy_(own[patch - begin()]);
    }
  }
  kept_[slot.site] = {std::move(values), index, side};
  count(slot.site, own);
  if (++batch.filled < batch.slots.size()) return;
  // The own part is sent from where others' arrive beside it.
  const auto part = [&](int rank) {
    return batch.all[side].narrow(0, batch.segments[rank],
                                  batch.segments[rank + 1] - batch.segments[rank]);
  };
  std::vector<tensor::PeerTensor> sends;
  std::vector<tensor::PeerTensor> receives;
  for (int distance = 1; distance < group_.size(); ++distance) {
    const int to = (group_.rank() + distance) % group_.size();
    const int from = (group_.rank() + group_.size() - distance) % group_.size();
    if (part(group_.rank()).numel() > 0) sends.push_back({part(group_.rank()), to});
    if (part(from).numel() > 0) receives.push_back({part(from), from});
  }
  batch.work[side] = group_.grouped(sends, receives);
}

}  // namespace troupe::actors
