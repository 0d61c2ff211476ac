#include "actors/stage/step_cache.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace troupe::actors {

SkipRule::SkipRule(double threshold, std::vector<double> polynomial, std::int64_t items,
                   std::int64_t patches)
    : threshold_(threshold),
      polynomial_(std::move(polynomial)),
      patches_(patches),
      histories_(static_cast<std::size_t>(items * patches)) {}

bool SkipRule::skips(std::int64_t item, std::int64_t patch, Change change) {
  History& history = at(item, patch);
  const double relative = change.difference / change.before;  // not a number: nothing is left out
  if (!adds_up()) return relative <= threshold_;
  double value = 0;
  for (const double factor : polynomial_)
    value = value * relative + factor;
  history.sum += value;
  if (history.sum < threshold_) return true;
  history.sum = 0;
  return false;
}

void SkipRule::computes(std::int64_t item, std::int64_t patch) {
  at(item, patch) = {.known = true, .sum = 0};
}

StepCache::StepCache(Shape shape, SkipRule rule, Calls calls)
    : shape_(std::move(shape)),
      rule_(std::move(rule)),
      calls_(std::move(calls)),
      histories_(static_cast<std::size_t>(shape_.items)),
      watched_(shape_.tokens.size()) {
  use_.skipped.assign(static_cast<std::size_t>(shape_.items), 0);
}

wire::RowRange StepCache::micro_steps(const NetworkStep& step) const {
  if (step.place.patch >= 0) return {step.place.patch, step.place.patch + 1};
  return {0, static_cast<std::int32_t>(shape_.tokens.size())};
}

bool StepCache::is_busy(const NetworkStep& step, int column) const {
  const auto [begin, end] = micro_steps(step);
  return std::any_of(shape_.busy.begin() + begin, shape_.busy.begin() + end,
                     [&](const auto& columns) { return columns[column]; });
}

std::pair<std::int64_t, std::int64_t> StepCache::own_tokens(const NetworkStep& step) const {
  const auto [begin, end] = micro_steps(step);
  const auto from = shape_.tokens.begin();
  return {std::accumulate(from, from + begin, std::int64_t{0}),
          std::accumulate(from, from + end, std::int64_t{0})};
}

void StepCache::compute_all(const NetworkStep& step) {
  // In a step of the whole picture a rank without rows may still have text.
  Columns columns;
  for (int column = 0; column < shape_.columns; ++column)
    columns.push_back(step.place.patch < 0 || is_busy(step, column));
  computing_.assign(static_cast<std::size_t>(step.items.end - step.items.begin), columns);
}

at::Tensor StepCache::run(const NetworkStep& step, at::Tensor hidden, std::int64_t text) {
  auto blocks = shape_.blocks;
  if (is_forced(step)) compute_all(step);
  if (first_stage()) {
    if (shape_.watches_block) {
      const auto before = picture(hidden, text).clone();
      compute_all(step);
      auto out = calls_.run(step, hidden, step.items, {0, 1}, Columns(computing_.front()));
      if (computing_.front()[shape_.own_column]) hidden = std::move(out);
      blocks.begin = 1;
      decide(step, picture(hidden, text) - before);
    } else {
      decide(step, calls_.signal(step, hidden));
    }
  }
  count(step);
  if (blocks.begin == blocks.end) return hidden;
  const std::int64_t items = hidden.size(0);
  std::vector<at::Tensor> parts;
  for (std::int64_t first = 0; first < items;) {
    const auto end = alike_until(step, first);
    parts.push_back(run_items(step, hidden,
                              {static_cast<std::int32_t>(first), static_cast<std::int32_t>(end)},
                              blocks, text));
    first = end;
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

at::Tensor StepCache::run_items(const NetworkStep& step, const at::Tensor& hidden,
                                wire::RowRange items, models::BlockRange blocks,
                                std::int64_t text) {
  const auto& columns = computing_[items.begin];
  const wire::RowRange of_batch{step.items.begin + items.begin, step.items.begin + items.end};
  const auto [begin, end] = own_tokens(step);
  auto part = hidden.slice(0, items.begin, items.end);
  if (!residual_.defined()) {
    const auto all = std::accumulate(shape_.tokens.begin(), shape_.tokens.end(), std::int64_t{0});
    residual_ = at::zeros({shape_.items, all, shape_.width}, hidden.options());
  }
  auto residual = residual_.slice(0, of_batch.begin, of_batch.end).slice(1, begin, end);
  if (columns[shape_.own_column]) {
    const auto before = picture(part, text).clone();
    auto out = calls_.run(step, std::move(part), of_batch, blocks, columns);
    at::sub_out(residual, picture(out, text), before);
    return out;
  }
  if (std::find(columns.begin(), columns.end(), true) != columns.end())
    calls_.run(step, {}, of_batch, blocks, columns);
  return leave_out(part, residual, text);
}

at::Tensor StepCache::leave_out(const at::Tensor& hidden, const at::Tensor& residual,
                                std::int64_t text) const {
  if (hidden.size(2) == shape_.edge) {
    picture(hidden, text).add_(residual);
    return hidden;
  }
  // Later blocks are not computed, so what earlier blocks leave for them is zeros.
  auto out = at::zeros({hidden.size(0), hidden.size(1), shape_.edge}, hidden.options());
  at::Tensor sum = picture(out, text);
  at::add_out(sum, picture(hidden, text), residual);
  return out;
}

std::int64_t StepCache::alike_until(const NetworkStep& step, std::int64_t first) const {
  std::int64_t end = first + 1;
  const auto same = [&](std::int64_t item) {
    return computing_[item] == computing_[first] &&
           histories_[step.items.begin + item] == histories_[step.items.begin + first];
  };
  while (end < static_cast<std::int64_t>(computing_.size()) && same(end))
    ++end;
  return end;
}

at::Tensor StepCache::changes(const NetworkStep& step, const at::Tensor& watched) {
  const auto& before = watched_[micro_steps(step).begin];
  const auto items = watched.size(0);
  auto sums = at::zeros({shape_.columns, items, 2},
                        at::TensorOptions().dtype(at::kDouble).device(watched.device()));
  const auto old = before.slice(0, step.items.begin, step.items.end).to(at::kFloat);
  auto own = sums.select(0, shape_.own_column);
  own.select(1, 0).copy_((watched.to(at::kFloat) - old).abs().sum({1, 2}, false, at::kDouble));
  own.select(1, 1).copy_(old.abs().sum({1, 2}, false, at::kDouble));
  calls_.sum(sums);
  return sums.to(at::kCPU);
}

void StepCache::decide(const NetworkStep& step, const at::Tensor& given) {
  const auto watched = given.dim() == 2 ? given.unsqueeze(1) : given;
  const auto [begin, end] = micro_steps(step);
  const auto slot = [&](int micro, int column) { return micro * shape_.columns + column; };
  const int first = step.items.begin, items = step.items.end - step.items.begin;
  compute_all(step);
  // All items and columns of a micro-step have been computed as soon as one of them has.
  const bool known = rule_.knows(first, slot(begin, shape_.own_column));
  if (is_forced(step) || !known || (rule_.adds_up() && step.last)) {
    for (int item = 0; item < items; ++item) {
      for (int at = slot(begin, 0); at < slot(end, 0); ++at)
        rule_.computes(first + item, at);
    }
  } else {
    const auto sums = changes(step, watched);
    const auto value = sums.accessor<double, 3>();
    for (int item = 0; item < items; ++item) {
      for (int column = 0; column < shape_.columns; ++column) {
        if (!computing_[item][column]) continue;
        const auto of = value[column][item];
        computing_[item][column] = !rule_.skips(first + item, slot(begin, column), {of[0], of[1]});
      }
    }
  }
  keep_watched(step, watched, given.dim() == 3);
}

void StepCache::keep_watched(const NetworkStep& step, const at::Tensor& watched, bool by_token) {
  const auto [begin, end] = micro_steps(step);
  std::int64_t offset = 0;
  for (int micro = begin; micro < end; ++micro) {
    const auto count = by_token ? shape_.tokens[micro] : watched.size(1);
    auto& kept = watched_[micro];
    if (!kept.defined())
      kept = at::zeros({shape_.items, count, watched.size(2)}, watched.options());
    const auto fresh = watched.slice(1, offset, offset + count);
    for (int item = 0; item < watched.size(0); ++item) {
      if (rule_.adds_up() || computing_[item][shape_.own_column])
        kept.select(0, step.items.begin + item).copy_(fresh.select(0, item));
    }
    if (by_token) offset += count;
  }
}

void StepCache::count(const NetworkStep& step) {
  const auto items = static_cast<std::int32_t>(computing_.size());
  if (items != step.items.end - step.items.begin)
    throw std::logic_error("[step_cache] nobody has decided about this micro-step");
  if (is_forced(step) || (step.place.step != history_step_ && !shape_.tells_apart))
    std::fill(histories_.begin(), histories_.end(), std::string());
  history_step_ = step.place.step;
  use_.skipped_by_step.resize(
      std::max<std::size_t>(use_.skipped_by_step.size(), step.place.step + 1));
  const bool whole = step.place.patch < 0;
  for (int column = 0; column < (whole ? 1 : shape_.columns); ++column) {
    if (!whole && !is_busy(step, column)) continue;
    if (step.items.begin == 0) ++use_.calls;
    for (int item = 0; item < items; ++item) {
      const bool skipped = !computing_[item][column];
      use_.skipped[step.items.begin + item] += skipped;
      use_.skipped_by_step[step.place.step] += skipped;
    }
  }
  if (step.place.patch < 0) return;
  for (int item = 0; item < items; ++item) {
    for (const bool computes : computing_[item])
      histories_[step.items.begin + item] += computes ? '1' : '0';
  }
}

std::int64_t StepCache::note_size(const NetworkStep& step) const {
  return is_forced(step) ? 0 : (step.items.end - step.items.begin) * shape_.columns;
}

void StepCache::take_note(const NetworkStep& step, const at::Tensor& note) {
  const auto told = note.to(at::kCPU);
  const auto* values = told.const_data_ptr<std::uint8_t>();
  compute_all(step);
  for (auto& columns : computing_) {
    for (int column = 0; column < shape_.columns; ++column)
      columns[column] = *values++ != 0;
  }
}

at::Tensor StepCache::note(const NetworkStep& step, at::Device device) const {
  auto values = at::empty({note_size(step)}, at::kByte);
  auto* value = values.mutable_data_ptr<std::uint8_t>();
  for (const auto& columns : computing_) {
    for (int column = 0; column < shape_.columns; ++column)
      *value++ = columns[column] ? 1 : 0;
  }
  return values.to(device);
}

std::int64_t StepCache::bytes() const {
  std::int64_t total = residual_.defined() ? static_cast<std::int64_t>(residual_.nbytes()) : 0;
  for (const auto& kept : watched_)
    total += kept.defined() ? static_cast<std::int64_t>(kept.nbytes()) : 0;
  return total;
}

}  // namespace troupe::actors
