#include "models/dit/kv_store.h"

#include <algorithm>
#include <cstring>
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

TokenRuns without(TokenRun run, TokenRun hole) {
  TokenRuns parts{{run.begin, std::min(run.end, hole.begin)},
                  {std::max(run.begin, hole.end), run.end}};
  if (hole.size() <= 0) parts = {run};
  std::erase_if(parts, [](const TokenRun& part) { return part.size() <= 0; });
  return parts;
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
      at::empty({blocks, versions_, shape.batch, shape.tokens, 2, shape.heads, shape.head_dim},
                options.dtype(dtype));
  blocks_.resize(static_cast<size_t>(blocks));
  for (Block& block : blocks_) {
    block.ages.assign(static_cast<size_t>(shape.batch),
                      std::vector<Age>(static_cast<size_t>(shape.tokens)));
    block.sums = at::zeros({shape.batch, 2, 2}, options.dtype(at::kDouble));
    block.sums_step.assign(static_cast<size_t>(shape.batch), kNever);
  }
}

void KvStore::forget() {
  for (Block& block : blocks_) {
    for (auto& ages : block.ages)
      std::fill(ages.begin(), ages.end(), Age{});
    block.sums.zero_();
    std::fill(block.sums_step.begin(), block.sums_step.end(), kNever);
  }
}

std::string KvStore::history(BlockRange blocks, int step) const {
  std::string text;
  const auto add = [&text](int64_t value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  const auto since = [step](int then) { return then == kNever ? kNever : step - then; };
  for (int block = blocks.begin; block < blocks.end; ++block) {
    const Block& kept = blocks_[slot(block)];
    for (size_t item = 0; item < kept.ages.size(); ++item) {
      add(since(kept.sums_step[item]));
      const std::vector<Age>& ages = kept.ages[item];
      for (auto run = ages.begin(); run != ages.end();) {
        const auto end = std::find_if(run, ages.end(), [&](const Age& age) { return age != *run; });
        add(end - run);
        add(since(run->step));
        add(run->known);
        run = end;
      }
    }
  }
  return text;
}

void KvStore::set_history(BlockRange blocks, int step, const std::string& of) {
  size_t at = 0;
  const auto next = [&] {
    int64_t value = 0;
    if (at + sizeof value > of.size()) refuse("a history of other rows");
    std::memcpy(&value, of.data() + at, sizeof value);
    at += sizeof value;
    return value;
  };
  const auto then = [&] {
    const int64_t since = next();
    return since == kNever ? kNever : step - static_cast<int>(since);
  };
  for (int block = blocks.begin; block < blocks.end; ++block) {
    Block& kept = blocks_[slot(block)];
    for (size_t item = 0; item < kept.ages.size(); ++item) {
      kept.sums_step[item] = then();
      std::vector<Age>& ages = kept.ages[item];
      for (auto run = ages.begin(); run != ages.end();) {
        const int64_t count = next();
        if (count < 1 || count > ages.end() - run) refuse("a history of other rows");
        const int newest = then();
        const Age age{newest, static_cast<int>(next())};
        std::fill(run, run + count, age);
        run += count;
      }
    }
  }
  if (at != of.size()) refuse("a history of other rows");
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
      .slice(1, run.begin, run.end);
}

void KvStore::put(int block, int step, const TokenRuns& runs, const at::Tensor& kv, bool fits,
                  int64_t first_item, TokenRun padding) {
  const size_t own = slot(block);
  Block& kept = blocks_[own];
  if (kv.dim() != 5 || kv.size(0) != count_of(runs) || first_item < 0 ||
      first_item + kv.size(1) > shape_.batch) {
    std::ostringstream text;
    text << "block " << block << ": " << kv.sizes() << " from item " << first_item << " of "
         << shape_.batch << ", for " << count_of(runs) << " tokens";
    refuse(text.str());
  }
  const bool counts = fits && shape_.predicts;
  for (int64_t item = first_item; counts && item < first_item + kv.size(1); ++item) {
    int& of = kept.sums_step[static_cast<size_t>(item)];
    if (of == step && shape_.freshness == Freshness::newest) continue;
    kept.sums.select(0, item).zero_();
    of = step;
  }
  int64_t offset = 0;
  for (const TokenRun& run : runs) {
    if (run.begin < 0 || run.end < run.begin || run.end > shape_.tokens) {
      std::ostringstream text;
      text << "tokens " << run.begin << " to " << run.end << " of " << shape_.tokens;
      refuse(text.str());
    }
    const auto put_part = [&](TokenRun part, bool counted) {
      const int64_t first = offset + part.begin - run.begin;
      const at::Tensor fresh = kv.slice(0, first, first + part.size());
      for (int64_t item = 0; part.size() > 0 && item < kv.size(1); ++item)
        put_run(own, first_item + item, step, part, fresh.slice(1, item, item + 1), counted);
    };
    for (const TokenRun& part : without(run, padding)) {
      const int64_t given = std::clamp(shape_.given, part.begin, part.end);
      put_part({part.begin, given}, false);
      put_part({given, part.end}, fits);
    }
    offset += run.size();
  }
}

void KvStore::put_run(size_t slot, int64_t item, int step, TokenRun run, const at::Tensor& kv,
                      bool fits) {
  Block& kept = blocks_[slot];
  std::vector<Age>& ages = kept.ages[item];
  const bool counts = fits && shape_.predicts;
  // Rows of one history at a time.
  for (int64_t begin = run.begin; begin < run.end;) {
    const Age age = ages[begin];
    int64_t end = begin + 1;
    while (end < run.end && ages[end] == age)
      ++end;
    std::vector<at::Tensor> versions;
    for (int version = 0; version < versions_; ++version)
      versions.push_back(rows(slot, version, {begin, end}).select(0, item).unsqueeze(1));
    kernels::kv_push(versions, kv.slice(0, begin - run.begin, end - run.begin), age.known,
                     counts ? std::optional(kept.sums.slice(0, item, item + 1)) : std::nullopt);
    std::fill(ages.begin() + begin, ages.begin() + end,
              Age{step, std::min(age.known + 1, versions_)});
    begin = end;
  }
}

std::vector<KvStore::Choice> KvStore::choose(int block, int step, const TokenRuns& fresh,
                                             int64_t item) const {
  const std::vector<Age>& ages = blocks_[slot(block)].ages.at(static_cast<size_t>(item));
  std::vector<Choice> choices;
  for (int64_t token = 0; token < shape_.tokens; ++token) {
    const Age age = ages[token];
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

at::Tensor KvStore::newest(int block) const {
  const size_t own = slot(block);
  const std::vector<Age>& ages = blocks_[own].ages.front();
  std::vector<at::Tensor> known{rows(own, 0, {0, 0})};
  for (int64_t token = 0; token < shape_.tokens; ++token) {
    int64_t end = token;
    while (end < shape_.tokens && ages[end].known > 0)
      ++end;
    if (end > token) known.push_back(rows(own, 0, {token, end}));
    token = std::max(token, end);
  }
  return at::cat(known, 1);
}

bool KvStore::needs_factors(const std::vector<Choice>& choices) {
  return std::any_of(choices.begin(), choices.end(),
                     [](const Choice& choice) { return choice.extrapolated; });
}

std::vector<kernels::KeyValueRun> KvStore::runs(int block, const std::vector<Choice>& choices,
                                                const at::Tensor& factors,
                                                std::optional<Items> items) const {
  const size_t own = slot(block);
  const auto [first, last] = items.value_or(Items{0, shape_.batch});
  std::vector<kernels::KeyValueRun> made;
  for (const Choice& choice : choices) {
    const at::Tensor newest = rows(own, choice.version, choice.run).slice(0, first, last);
    kernels::KeyValueRun run{newest.select(2, 0), newest.select(2, 1), {}, {}, {}};
    if (choice.extrapolated) {
      const at::Tensor older = rows(own, choice.version + 1, choice.run).slice(0, first, last);
      run.older_k = older.select(2, 0);
      run.older_v = older.select(2, 1);
      run.alpha = factors;
    }
    made.push_back(std::move(run));
  }
  return made;
}

}  // namespace troupe::models
