#pragma once
#include <ATen/ATen.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "models/safetensors.h"
#include "models/spec/json_text.h"
#include "models/spec/unet_spec.h"
#include "models/unet/patch_port.h"
#include "models/unet/unet_2d_condition.h"
#include "tests/models/memory_halo.h"

namespace troupe::models::testing {

inline const std::filesystem::path kUNetFixtures =
    std::filesystem::path(TROUPE_SOURCE_DIR) / "tests" / "fixtures";

inline unet::UNet2DConditionModel load_unet(const std::string& name,
                                            at::ScalarType dtype = at::kFloat) {
  const auto folder = kUNetFixtures / "tiny-unet" / name;
  return {spec::UNetSpec::read(spec::ConfigReader::read(folder / "config.json")),
          WeightStore(spec::WeightIndex::read_file(folder / "diffusion_pytorch_model.safetensors")),
          dtype};
}

/// The cases and tensors of a fixture.
struct UNetBook {
  explicit UNetBook(const std::string& name)
      : tensors(load_safetensors(kUNetFixtures / "expected" / (name + ".safetensors"))) {
    const auto file = kUNetFixtures / "expected" / (name + ".json");
    content = spec::parse_json(spec::read_text_file(file, 1U << 24U), file);
  }
  std::map<std::string, at::Tensor> tensors;
  nlohmann::json content;
};

/// Inputs that condition a case.
struct UNetInputs {
  UNetInputs(const UNetBook& book, const std::string& name)
      : latents(book.tensors.at(name + ".latents")), states(book.tensors.at(name + ".states")) {
    if (book.tensors.contains(name + ".pooled")) {
      added = {book.tensors.at(name + ".pooled"), book.tensors.at(name + ".time_ids")};
    }
  }
  at::Tensor latents, states;
  std::optional<unet::AddedCondition> added;
};

/// Patches shared out among threads, some to each, as actors would have them.
class BoardExchange final : public unet::PatchExchange {
 public:
  BoardExchange(Board& board, int shard, std::vector<int> begins)
      : board_(board), shard_(shard), begins_(std::move(begins)) {}
  int begin() const override { return begins_[shard_]; }
  int end() const override { return begins_[shard_ + 1]; }

  std::vector<at::Tensor> fresh(const unet::Site& site, const std::vector<at::Tensor>& own,
                                bool keep) override {
    auto now = everybody(own);
    if (keep) kept_[site] = now;
    return now;
  }
  std::vector<at::Tensor> stale(const unet::Site& site, const std::vector<at::Tensor>& own,
                                bool keep) override {
    const std::vector<at::Tensor> before = kept_.at(site);
    auto now = everybody(own);
    if (keep) kept_[site] = std::move(now);
    return before;
  }

 private:
  // One swap a patch; those with fewer patches lay down something small.
  std::vector<at::Tensor> everybody(const std::vector<at::Tensor>& own) {
    std::vector<at::Tensor> all(static_cast<size_t>(begins_.back()));
    int most = 0;
    for (size_t s = 0; s + 1 < begins_.size(); ++s)
      most = std::max(most, begins_[s + 1] - begins_[s]);
    for (int i = 0; i < most; ++i) {
      const bool has = i < static_cast<int>(own.size());
      const auto found = board_.swap(shard_, has ? own[i].clone() : at::zeros({1}));
      for (size_t s = 0; s < found.size(); ++s) {
        if (begins_[s] + i < begins_[s + 1]) all[begins_[s] + i] = found[s];
      }
    }
    return all;
  }

  Board& board_;
  int shard_;
  std::vector<int> begins_;
  std::map<unet::Site, std::vector<at::Tensor>> kept_;
};

/// The rows of each patch [begin, end).
inline std::vector<at::Tensor> cut(const at::Tensor& x, const unet::PatchCuts& cuts, int begin,
                                   int end) {
  std::vector<at::Tensor> patches;
  for (int p = begin; p < end; ++p) {
    const RowRun rows = cuts.rows(0, p);
    patches.push_back(x.narrow(2, rows.begin, rows.size()));
  }
  return patches;
}

}  // namespace troupe::models::testing
