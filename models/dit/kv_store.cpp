#include "models/dit/kv_store.h"

#include <algorithm>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include <ATen/ATen.h>

#include "kernels/kv_history.h"

namespace troupe::models {

namespace {

[[noreturn]] void refuse(const std::string& text) {
  throw std::invalid_argument("[kv_store] " + text);
}

bool contains(const TokenRuns& runs, int64_t token) {
  return std::any_of(runs.begin(), runs.end(), [token](const TokenRun& run) {
    return run.begin <= token && token < run.end;
  });
}

}  // namespace

int64_t count_of(const TokenRuns& runs) {
  return std::accumulate(runs.begin(), runs.end(), int64_t{0},
                         [](int64_t sum, const TokenRun& run) { return sum + run.size(); });
}

KvStore::KvStore(const Shape& shape, at::ScalarType dtype, at::Device device)
    : shape_(shape),
      versions_((shape.freshness == Freshness::step_before ? 2 : 1) + (shape.predicts ? 1 : 0)) {
  const int64_t blocks = shape.blocks.end - shape.blocks.begin;
  if (blocks < 0 || shape.batch < 1 || shape.tokens < 1 || shape.heads < 0 || shape.head_dim < 1) {
    std::ostringstream text;
    text << "impossible sizes: blocks " << blocks << ", batch " << shape.batch << ", tokens "
         << shape.tokens << ", heads " << shape.heads << " x " << shape.head_dim;
    refuse(text.str());
  }
  const auto options = at::TensorOptions().device(device);
  values_ =
      at::empty({blocks, versions_, shape.tokens, shape.batch, 2, shape.heads, shape.head_dim},
                options.dtype(dtype));
  blocks_.resize(static_cast<size_t>(blocks));
  for (Block& block : blocks_) {
    block.ages.resize(static_cast<size_t>(shape.tokens));
    block.sums = at::zeros({shape.batch, 2, 2}, options.dtype(at::kDouble));
  }
}

size_t KvStore::slot(int block) const {
  if (block < shape_.blocks.begin || block >= shape_.blocks.end) {
    refuse("block " + std::to_string(block) + " is not one of " +
           std::to_string(shape_.blocks.begin) + " to " + std::to_string(shape_.blocks.end));
  }
  return static_cast<size_t>(block - shape_.blocks.begin);
}

at::Tensor KvStore::rows(size_t slot, int version, TokenRun run) const {
  return values_.select(0, static_cast<int64_t>(slot))
      .select(0, version)
      .slice(0, run.begin, run.end);
}

void KvStore::put(int block, int step, const TokenRuns& runs, const at::Tensor& kv, bool fits) {
  const size_t own = slot(block);
  Block& kept = blocks_[own];
  if (fits && (kept.sums_step != step || shape_.freshness == Freshness::step_before)) {
    kept.sums.zero_();
    kept.sums_step = step;
  }
  if (kv.dim() != 5 || kv.size(0) != count_of(runs)) {
    std::ostringstream text;
    text << "block " << block << ": " << kv.sizes() << " for " << count_of(runs) << " tokens";
    refuse(text.str());
  }
  int64_t offset = 0;
  for (const TokenRun& run : runs) {
    if (run.begin < 0 || run.end < run.begin || run.end > shape_.tokens) {
      std::ostringstream text;
      text << "tokens " << run.begin << " to " << run.end << " of " << shape_.tokens;
      refuse(text.str());
    }
    // Rows of one history at a time.
    for (int64_t begin = run.begin; begin < run.end;) {
      const Age age = kept.ages[begin];
      int64_t end = begin + 1;
      while (end < run.end && kept.ages[end] == age)
        ++end;
      std::vector<at::Tensor> versions;
      for (int version = 0; version < versions_; ++version)
        versions.push_back(rows(own, version, {begin, end}));
      const bool counts = fits && shape_.predicts;
      kernels::kv_push(versions, kv.slice(0, offset, offset + end - begin), age.known,
                       counts ? std::optional(kept.sums) : std::nullopt);
      const Age now{step, std::min(age.known + 1, versions_)};
      std::fill(kept.ages.begin() + begin, kept.ages.begin() + end, now);
      offset += end - begin;
      begin = end;
    }
  }
}

std::vector<KvStore::Choice> KvStore::choose(int block, int step, const TokenRuns& fresh) const {
  const Block& kept = blocks_[slot(block)];
  std::vector<Choice> choices;
  for (int64_t token = 0; token < shape_.tokens; ++token) {
    const Age age = kept.ages[token];
    if (age.known == 0 || contains(fresh, token)) continue;
    const bool of_this_step = age.step == step;
    const int version = of_this_step && shape_.freshness == Freshness::step_before ? 1 : 0;
    if (age.known <= version) continue;
    const bool stale = !of_this_step || version == 1;
    const bool extrapolated = shape_.predicts && stale && age.known > version + 1;
    Choice* last = choices.empty() ? nullptr : &choices.back();
    if (last && last->run.end == token && last->version == version &&
        last->extrapolated == extrapolated) {
      ++last->run.end;
    } else {
      choices.push_back({{token, token + 1}, version, extrapolated});
    }
  }
  return choices;
}

bool KvStore::needs_factors(const std::vector<Choice>& choices) {
  return std::any_of(choices.begin(), choices.end(),
                     [](const Choice& choice) { return choice.extrapolated; });
}

std::vector<kernels::KeyValueRun> KvStore::runs(int block, const std::vector<Choice>& choices,
                                                const at::Tensor& factors) const {
  const size_t own = slot(block);
  std::vector<kernels::KeyValueRun> made;
  for (const Choice& choice : choices) {
    const auto view = [&](int version) {
      return rows(own, version, choice.run).transpose(0, 1);  // [B, n, 2, H, d]
    };
    const at::Tensor newest = view(choice.version);
    kernels::KeyValueRun run{newest.select(2, 0), newest.select(2, 1), {}, {}, {}};
    if (choice.extrapolated) {
      const at::Tensor older = view(choice.version + 1);
      run.older_k = older.select(2, 0);
      run.older_v = older.select(2, 1);
      run.alpha = factors;
    }
    made.push_back(std::move(run));
  }
  return made;
}

}  // namespace troupe::models
