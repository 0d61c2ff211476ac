#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "models/spec/weight_index.h"

namespace troupe::spec {

/// A tensor that a config calls for. `other_names` are spellings of older checkpoints.
struct ExpectedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<std::string> other_names = {};

  bool operator==(const ExpectedTensor&) const = default;
};

/// Throws std::runtime_error naming file, tensor, expected and found shape, if a tensor is missing,
/// has another shape or no floating dtype.
void check_tensor(const WeightIndex& index, const ExpectedTensor& expected);

/// Checks each of the tensors, and throws also if one is there that the config does not call for
/// and `ignorable` does not accept.
void check_tensors(const WeightIndex& index, const std::vector<ExpectedTensor>& expected,
                   const std::function<bool(std::string_view)>& ignorable);

/// The entry under the name or one of the older ones; throws if there is none.
const TensorEntry& entry_of(const WeightIndex& index, const ExpectedTensor& expected);

/// Stages of a pipeline that keep a tensor.
enum class Held { first, everywhere, block, last };

/// A tensor of a transformer with what plans must know of it.
struct PlannedTensor {
  /// Number of a tensor's elements that are split over shards of the weights by `units` (heads or
  /// columns), remainders first. Units that follow each other may share their elements, `group` of
  /// them: every shard has those of each group that it has a unit of.
  struct Share {
    std::int64_t elements = 0;
    std::int64_t units = 1;
    std::int64_t group = 1;
    bool operator==(const Share&) const = default;
  };
  ExpectedTensor tensor;
  Held held = Held::everywhere;
  std::int64_t block = -1;
  std::vector<Share> shares = {};  ///< empty: whole in every shard
  bool first_shard_only = false;   ///< the bias of a product that shards sum up
  std::int64_t kept = -1;          ///< elements in memory, where fewer than stored
  std::vector<Share> scales = {};  ///< scales of a product that may be quantized; 0 units: whole
  bool may_stay_packed = false;    ///< the weight of a product, kept as its file has it

  bool operator==(const PlannedTensor&) const = default;
};

/// Part of a transformer that one actor holds: blocks [first_block, last_block), and of each block
/// the part `shard` of `shards` of its heads and feed-forward columns, remainders first.
struct TransformerPart {
  std::int64_t first_block = 0;
  std::int64_t last_block = 0;
  bool embeds = false;
  bool projects = false;
  std::int64_t shard = 0;
  std::int64_t shards = 1;
};

/// Way in which the weights of products are kept in memory: in the type that is computed with, as
/// their file has them where it has blocks or 8-bit floats, or in 8 bits with a scale in float32
/// for each output. Other weights are always kept in the type that is computed with.
enum class KeptAs { computed, stored, quantized };

/// Numbers of elements that each part of a transformer keeps, computed from its tensors only once,
/// because plans ask thousands of times.
class KeptWeights {
 public:
  KeptWeights() = default;
  /// `index`: of the files that the tensors come from, if these are known.
  explicit KeptWeights(const std::vector<PlannedTensor>& tensors,
                       const WeightIndex* index = nullptr);

  std::uint64_t elements(const TransformerPart& part) const;
  /// Bytes of a part whose weights have `element` bytes for each element, but for products of which
  /// `as` says otherwise.
  std::uint64_t bytes(const TransformerPart& part, std::uint64_t element, KeptAs as) const;

  bool operator==(const KeptWeights&) const = default;

 private:
  /// Sums over the tensors of one place.
  struct Group {
    std::int64_t whole = 0;
    std::int64_t first_shard = 0;
    std::vector<PlannedTensor::Share> shares;

    void add(const PlannedTensor& tensor);
    void add(const PlannedTensor::Share& share);
    std::int64_t elements(const TransformerPart& part) const;
    bool operator==(const Group&) const = default;
  };
  /// A matrix [rows, columns] that stays packed.
  struct Packed {
    DtypeBlock block;
    std::int64_t rows = 0, columns = 0;
    std::vector<PlannedTensor::Share> shares;
    bool splits_columns = false;

    /// Returns its bytes less those of its elements if these had `element` bytes each.
    std::int64_t more_bytes(const TransformerPart& part, std::int64_t element) const;
    bool operator==(const Packed&) const = default;
  };
  using PackedList = std::vector<Packed>;

  Group first_, everywhere_, last_;
  std::vector<Group> blocks_, products_, scales_;
  PackedList packed_first_, packed_everywhere_, packed_last_;
  std::vector<PackedList> packed_blocks_;
};

/// Collects a family's tensors, each for the place that `at` named last.
class TensorTable {
 public:
  void at(Held held, std::int64_t block = -1);
  void add(const std::string& name, std::vector<std::int64_t> shape);
  /// `name.weight` [out, in] and `name.bias` [out], whole in every shard.
  void linear(const std::string& name, std::int64_t in, std::int64_t out, bool bias = true);
  /// A product whose outputs are split over shards by `units`. `more` outputs, split by units of
  /// their own, may follow the first ones.
  void split_outputs(const std::string& name, std::int64_t in, std::int64_t out, std::int64_t units,
                     bool bias = true, std::int64_t more = 0, std::int64_t more_units = 1);
  /// A product without bias whose outputs belong to groups of `group` units each, and are split as
  /// the units are: keys and values that several heads of queries attend to.
  void split_groups(const std::string& name, std::int64_t in, std::int64_t out, std::int64_t units,
                    std::int64_t group);
  /// A product whose inputs are split by `units`; its bias is with shard 0. `more` inputs, split by
  /// units of their own, may follow the first ones.
  void split_inputs(const std::string& name, std::int64_t in, std::int64_t out, std::int64_t units,
                    bool bias = true, std::int64_t more = 0, std::int64_t more_units = 1);
  /// [width], split over shards by `units`.
  void split_vector(const std::string& name, std::int64_t width, std::int64_t units);
  /// Sets the number of elements that are kept in memory of the tensor added last.
  void keep(std::int64_t elements) {
    tensors_.back().kept = elements;
    tensors_.back().may_stay_packed = false;
  }
  std::vector<PlannedTensor> take() { return std::move(tensors_); }

 private:
  Held held_ = Held::everywhere;
  std::int64_t block_ = -1;
  std::vector<PlannedTensor> tensors_;
};

}  // namespace troupe::spec
