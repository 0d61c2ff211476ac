#include "models/unet/patch_port.h"

#include <ATen/ATen.h>

#include <cmath>
#include <stdexcept>
#include <string>

#include "kernels/attention.h"

namespace troupe::models::unet {
namespace {

// Mean and mean square to mean and variance.
at::Tensor mean_and_variance(const at::Tensor& raw) {
  return at::stack({raw[0], raw[1] - raw[0].square()});
}

// First and last row, or none of a patch without rows.
at::Tensor edges(const at::Tensor& x) {
  const std::int64_t rows = x.size(2);
  if (rows == 0) return x;
  return at::cat({x.narrow(2, 0, 1), x.narrow(2, rows - 1, 1)}, 2);
}

}  // namespace

PatchCuts::PatchCuts(std::int64_t height, int patches, int levels) : patches_(patches) {
  const RowShards shards(height, patches);
  std::vector<std::int64_t> cuts = {0};
  for (int p = 0; p < patches; ++p)
    cuts.push_back(shards.of(p).end);
  for (int level = 0; level < levels; ++level) {
    levels_.push_back(cuts);
    for (std::int64_t& cut : cuts)
      cut = halved(cut);
  }
}

std::vector<at::Tensor> LocalExchange::fresh(const Site& site, const std::vector<at::Tensor>& own,
                                             bool keep) {
  if (keep && patches_ > 1) kept_[site] = own;
  return own;
}

std::vector<at::Tensor> LocalExchange::stale(const Site& site, const std::vector<at::Tensor>& own,
                                             bool keep) {
  const auto found = kept_.find(site);
  if (found == kept_.end()) {
    throw std::logic_error("[unet] layer " + std::to_string(site.index) + " of kind " +
                           std::to_string(static_cast<int>(site.kind)) +
                           " has no values of an earlier step: the first step is synchronous");
  }
  const std::vector<at::Tensor> before = found->second;
  if (keep) found->second = own;
  return before;
}

std::int64_t LocalExchange::bytes() const {
  std::int64_t sum = 0;
  for (const auto& [kind, bytes] : bytes_by_kind())
    sum += bytes;
  return sum;
}

std::map<Site::Kind, std::int64_t> LocalExchange::bytes_by_kind() const {
  std::map<Site::Kind, std::int64_t> result;
  for (const auto& [site, values] : kept_) {
    for (const at::Tensor& value : values)
      result[site.kind] += static_cast<std::int64_t>(value.nbytes());
  }
  return result;
}

std::vector<RowRun> PatchPort::rows(int level) const {
  std::vector<RowRun> result;
  for (int patch = exchange_.begin(); patch < exchange_.end(); ++patch)
    result.push_back(cuts_.rows(level, patch));
  return result;
}

std::vector<Halo> PatchPort::zeros_beyond(const Features& x) const {
  std::vector<Halo> result(x.patches.size());
  for (int i = 0; i < static_cast<int>(result.size()); ++i) {
    const at::Tensor& own = x.patches[i];
    const at::Tensor row = own.new_zeros({own.size(0), own.size(1), 1, own.size(3)});
    const RowRun rows = cuts_.rows(x.level, exchange_.begin() + i);
    if (rows.begin > 0) result[i].above = row;
    if (rows.end < cuts_.height(x.level)) result[i].below = row;
  }
  return result;
}

std::vector<Halo> PatchPort::halos(const Site& site, const Features& x) {
  std::vector<Halo> result(x.patches.size());
  if (cuts_.patches() == 1) return result;
  if (mode_ == StepMode::naive) return zeros_beyond(x);
  std::vector<at::Tensor> own;
  for (const at::Tensor& patch : x.patches)
    own.push_back(edges(patch));
  // The latents themselves are brought together once a step.
  const bool always = site.index == 0;
  const auto all = always || mode_ == StepMode::synchronous
                       ? exchange_.fresh(site, own, ever_stale_ && !always)
                       : exchange_.stale(site, own, keeps());
  for (int i = 0; i < static_cast<int>(result.size()); ++i) {
    // The nearest patch with rows, which may not be the neighbour.
    int above = exchange_.begin() + i - 1;
    while (above >= 0 && cuts_.rows(site.level, above).size() == 0)
      --above;
    int below = exchange_.begin() + i + 1;
    while (below < cuts_.patches() && cuts_.rows(site.level, below).size() == 0)
      ++below;
    if (above >= 0) result[i].above = all[above].narrow(2, 1, 1);
    if (below < cuts_.patches()) result[i].below = all[below].narrow(2, 0, 1);
  }
  return result;
}

at::Tensor PatchPort::weighted(const Site& site, const std::vector<at::Tensor>& values) const {
  at::Tensor sum;
  for (int patch = 0; patch < cuts_.patches(); ++patch) {
    const auto rows = static_cast<double>(cuts_.rows(site.level, patch).size());
    if (rows == 0) continue;
    const at::Tensor part = values[patch] * rows;
    sum = sum.defined() ? sum + part : part;
  }
  return sum / static_cast<double>(cuts_.height(site.level));
}

std::vector<at::Tensor> PatchPort::moments(const Site& site, const std::vector<Moments>& own) {
  std::vector<at::Tensor> values;
  for (const Moments& patch : own)
    values.push_back(patch.values);
  std::vector<at::Tensor> result;
  const bool now = mode_ == StepMode::synchronous || norm_ == NormMode::synchronous;
  if (cuts_.patches() == 1 || mode_ == StepMode::naive || (!now && norm_ == NormMode::separate)) {
    for (const at::Tensor& value : values)
      result.push_back(mean_and_variance(value));
    return result;
  }
  if (now) {
    const bool keep = ever_stale_ && (norm_ == NormMode::corrected || norm_ == NormMode::stale);
    const at::Tensor whole = mean_and_variance(weighted(site, exchange_.fresh(site, values, keep)));
    return std::vector<at::Tensor>(own.size(), whole);
  }
  const auto before = exchange_.stale(site, values, keeps());
  const at::Tensor whole = weighted(site, before);
  for (int i = 0; i < static_cast<int>(own.size()); ++i) {
    const int patch = exchange_.begin() + i;
    const std::int64_t rows = cuts_.rows(site.level, patch).size();
    if (rows == 0) {
      result.push_back(mean_and_variance(whole));
      continue;
    }
    const at::Tensor change = values[i] - before[patch];
    if (norm_ == NormMode::stale) {
      const double share =
          static_cast<double>(rows) / static_cast<double>(cuts_.height(site.level));
      result.push_back(mean_and_variance(whole + share * change));
      continue;
    }
    const at::Tensor found = mean_and_variance(whole + change);
    const at::Tensor alone = mean_and_variance(values[i]);
    result.push_back(at::stack({found[0], at::where(found[1].lt(0), alone[1], found[1])}));
  }
  return result;
}

std::vector<at::Tensor> PatchPort::attend(const Site& site, const std::vector<at::Tensor>& qkv) {
  std::vector<at::Tensor> own;
  for (const at::Tensor& patch : qkv)
    own.push_back(patch.narrow(2, 1, 2));
  const bool alone = cuts_.patches() == 1 || mode_ == StepMode::naive;
  std::vector<at::Tensor> all;
  if (!alone) {
    for (at::Tensor& patch : own)
      patch = patch.contiguous();  // so that no query is kept along
    all = mode_ == StepMode::synchronous ? exchange_.fresh(site, own, ever_stale_)
                                         : exchange_.stale(site, own, keeps());
  }
  std::vector<at::Tensor> result;
  for (int i = 0; i < static_cast<int>(qkv.size()); ++i) {
    const at::Tensor queries = qkv[i].select(2, 0);
    std::vector<kernels::KeyValueRun> runs;
    for (int patch = 0; patch < cuts_.patches(); ++patch) {
      const bool mine = patch == exchange_.begin() + i;
      if (cuts_.rows(site.level, patch).size() == 0 || (alone && !mine)) continue;
      const at::Tensor& kv = mine ? own[i] : all[patch];
      runs.push_back({kv.select(2, 0), kv.select(2, 1), {}, {}, {}});
    }
    if (runs.empty()) {  // a patch without rows that sees no other
      result.push_back(queries);
      continue;
    }
    const double scale = 1.0 / std::sqrt(static_cast<double>(qkv[i].size(4)));
    result.push_back(kernels::attention(queries, runs, scale));
  }
  return result;
}

}  // namespace troupe::models::unet
