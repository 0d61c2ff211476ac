#include "models/spec/planned_tensors.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>

namespace troupe::spec {
namespace {

bool is_floating(Dtype dtype) {
  switch (dtype) {
    case Dtype::int64:
    case Dtype::int32:
    case Dtype::int8:
    case Dtype::uint8:
    case Dtype::boolean:
      return false;
    default:
      return true;
  }
}

/// Groups of a split tensor's units that one shard has: `count` of them, from `first` on, of
/// `elements` elements each.
struct OwnGroups {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t elements = 0;
};
OwnGroups own_groups(const PlannedTensor::Share& share, const TransformerPart& part) {
  const std::int64_t each = share.units / part.shards, more = share.units % part.shards;
  const std::int64_t first = part.shard * each + std::min(part.shard, more);
  const std::int64_t count = each + (part.shard < more ? 1 : 0);
  const std::int64_t begin = first / share.group;
  const std::int64_t end = (first + count + share.group - 1) / share.group;
  return {begin, count > 0 ? end - begin : 0, share.elements / (share.units / share.group)};
}

}  // namespace

const TensorEntry& entry_of(const WeightIndex& index, const ExpectedTensor& expected) {
  if (const auto* entry = index.find(expected.name)) return *entry;
  for (const std::string& name : expected.other_names) {
    if (const auto* entry = index.find(name)) return *entry;
  }
  throw std::runtime_error("[check_weights] " + index.label().string() + ": tensor \"" +
                           expected.name + "\" " + shape_text(expected.shape) + " is missing");
}

void check_tensor(const WeightIndex& index, const ExpectedTensor& expected) {
  const TensorEntry& entry = entry_of(index, expected);
  const std::string where =
      "[check_weights] " + entry.file.string() + ": tensor \"" + entry.name + "\" ";
  if (entry.shape != expected.shape) {
    throw std::runtime_error(where + "has shape " + shape_text(entry.shape) +
                             ", the config calls for " + shape_text(expected.shape));
  }
  if (!is_floating(entry.dtype)) {
    throw std::runtime_error(where + "has dtype " + std::string(dtype_name(entry.dtype)) +
                             ", a floating one is needed");
  }
}

void check_tensors(const WeightIndex& index, const std::vector<ExpectedTensor>& expected,
                   const std::function<bool(std::string_view)>& ignorable) {
  std::set<std::string_view> known;
  for (const ExpectedTensor& tensor : expected) {
    check_tensor(index, tensor);
    known.insert(tensor.name);
    known.insert(tensor.other_names.begin(), tensor.other_names.end());
  }
  for (const TensorEntry& entry : index.tensors()) {
    if (!known.contains(entry.name) && !ignorable(entry.name)) {
      throw std::runtime_error("[check_weights] " + entry.file.string() + ": tensor \"" +
                               entry.name + "\" " + shape_text(entry.shape) +
                               " is not called for by the config");
    }
  }
}

void KeptWeights::Group::add(const PlannedTensor& tensor) {
  const auto& shape = tensor.tensor.shape;
  const std::int64_t stored =
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  if (tensor.shares.empty())
    (tensor.first_shard_only ? first_shard : whole) += tensor.kept >= 0 ? tensor.kept : stored;
  for (const auto& share : tensor.shares)
    add(share);
}

void KeptWeights::Group::add(const PlannedTensor::Share& share) {
  const auto same = std::ranges::find_if(shares, [&share](const auto& other) {
    return other.units == share.units && other.group == share.group;
  });
  if (same == shares.end()) {
    shares.push_back(share);
  } else {
    same->elements += share.elements;
  }
}

std::int64_t KeptWeights::Group::elements(const TransformerPart& part) const {
  std::int64_t total = whole + (part.shard == 0 ? first_shard : 0);
  for (const auto& share : shares) {
    const auto own = own_groups(share, part);
    total += own.elements * own.count;
  }
  return total;
}

std::int64_t KeptWeights::Packed::more_bytes(const TransformerPart& part,
                                             std::int64_t element) const {
  const auto of_block = static_cast<std::int64_t>(block.elements);
  const auto size = static_cast<std::int64_t>(block.bytes);
  const auto more = [&](std::int64_t elements) {
    return elements / of_block * size - element * elements;
  };
  if (shares.empty()) return more(rows * columns);
  std::int64_t total = 0, first = 0;
  for (const auto& share : shares) {
    const auto own = own_groups(share, part);
    const std::int64_t unit = own.elements;
    if (!splits_columns) {
      total += more(unit * own.count);
      continue;
    }
    // Blocks that a shard has a part of are kept whole.
    const std::int64_t begin = first + unit / rows * own.first;
    const std::int64_t end = begin + unit / rows * own.count;
    total += rows * ((end + of_block - 1) / of_block - begin / of_block) * size -
             element * unit * own.count;
    first += share.elements / rows;
  }
  return total;
}

KeptWeights::KeptWeights(const std::vector<PlannedTensor>& tensors, const WeightIndex* index) {
  for (const PlannedTensor& tensor : tensors) {
    PackedList packed;
    if (const auto* entry = index ? &entry_of(*index, tensor.tensor) : nullptr;
        entry && tensor.may_stay_packed && entry->stays_packed()) {
      packed.push_back({dtype_block(entry->dtype), entry->shape[0], entry->shape[1], tensor.shares,
                        !tensor.scales.empty() && tensor.scales.front().units == 0});
    }
    const auto add = [&](PackedList& to) { to.insert(to.end(), packed.begin(), packed.end()); };
    switch (tensor.held) {
      case Held::first:
        first_.add(tensor);
        add(packed_first_);
        break;
      case Held::everywhere:
        everywhere_.add(tensor);
        add(packed_everywhere_);
        break;
      case Held::last:
        last_.add(tensor);
        add(packed_last_);
        break;
      case Held::block:
        blocks_.resize(std::max(blocks_.size(), static_cast<std::size_t>(tensor.block + 1)));
        blocks_[tensor.block].add(tensor);
        products_.resize(blocks_.size());
        scales_.resize(blocks_.size());
        packed_blocks_.resize(blocks_.size());
        add(packed_blocks_[tensor.block]);
        if (!tensor.scales.empty()) products_[tensor.block].add(tensor);
        for (const auto& share : tensor.scales) {
          if (share.units > 0) {
            scales_[tensor.block].add(share);
          } else {
            scales_[tensor.block].whole += share.elements;
          }
        }
        break;
    }
  }
}

std::uint64_t KeptWeights::elements(const TransformerPart& part) const {
  std::int64_t total = everywhere_.elements(part);
  if (part.embeds) total += first_.elements(part);
  if (part.projects) total += last_.elements(part);
  for (std::int64_t block = part.first_block; block < part.last_block; ++block)
    total += blocks_.at(block).elements(part);
  return static_cast<std::uint64_t>(total);
}

std::uint64_t KeptWeights::bytes(const TransformerPart& part, std::uint64_t element,
                                 KeptAs as) const {
  std::uint64_t total = element * elements(part);
  if (as == KeptAs::stored) {
    std::int64_t more = 0;
    const auto add = [&](const PackedList& all) {
      for (const Packed& one : all)
        more += one.more_bytes(part, static_cast<std::int64_t>(element));
    };
    add(packed_everywhere_);
    if (part.embeds) add(packed_first_);
    if (part.projects) add(packed_last_);
    for (std::int64_t block = part.first_block; block < part.last_block; ++block)
      add(packed_blocks_.at(block));
    return total + static_cast<std::uint64_t>(more);
  }
  if (as == KeptAs::computed) return total;
  for (std::int64_t block = part.first_block; block < part.last_block; ++block) {
    const std::uint64_t products = products_.at(block).elements(part);
    total += products + sizeof(float) * scales_.at(block).elements(part) - element * products;
    // Each shard adds the biases to the sums by itself.
    if (part.shard > 0) total += element * blocks_.at(block).first_shard;
  }
  return total;
}

void TensorTable::at(Held held, std::int64_t block) {
  held_ = held;
  block_ = block;
}

void TensorTable::add(const std::string& name, std::vector<std::int64_t> shape) {
  tensors_.push_back({.tensor = {name, std::move(shape)}, .held = held_, .block = block_});
}

void TensorTable::linear(const std::string& name, std::int64_t in, std::int64_t out, bool bias) {
  add(name + ".weight", {out, in});
  tensors_.back().may_stay_packed = true;
  if (bias) add(name + ".bias", {out});
}

void TensorTable::split_outputs(const std::string& name, std::int64_t in, std::int64_t out,
                                std::int64_t units, bool bias, std::int64_t more,
                                std::int64_t more_units) {
  add(name + ".weight", {out + more, in});
  tensors_.back().shares = {{in * out, units}};
  tensors_.back().scales = {{out, units}};
  tensors_.back().may_stay_packed = true;
  if (more > 0) {
    tensors_.back().shares.push_back({in * more, more_units});
    tensors_.back().scales.push_back({more, more_units});
  }
  if (!bias) return;
  add(name + ".bias", {out + more});
  tensors_.back().shares = {{out, units}};
  if (more > 0) tensors_.back().shares.push_back({more, more_units});
}

void TensorTable::split_groups(const std::string& name, std::int64_t in, std::int64_t out,
                               std::int64_t units, std::int64_t group) {
  split_outputs(name, in, out, units, false);
  tensors_.back().shares.front().group = group;
  tensors_.back().scales.front().group = group;
}

void TensorTable::split_vector(const std::string& name, std::int64_t width, std::int64_t units) {
  add(name, {width});
  tensors_.back().shares = {{width, units}};
}

void TensorTable::split_inputs(const std::string& name, std::int64_t in, std::int64_t out,
                               std::int64_t units, bool bias, std::int64_t more,
                               std::int64_t more_units) {
  add(name + ".weight", {out, in + more});
  tensors_.back().shares = {{in * out, units}};
  tensors_.back().scales = {{out, 0}};
  tensors_.back().may_stay_packed = true;
  if (more > 0) {
    tensors_.back().shares.push_back({more * out, more_units});
    tensors_.back().scales.push_back({out, 0});
  }
  if (!bias) return;
  add(name + ".bias", {out});
  tensors_.back().first_shard_only = true;
}

}  // namespace troupe::spec
