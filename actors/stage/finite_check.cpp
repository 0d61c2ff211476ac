#include "actors/stage/finite_check.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace troupe::actors {
namespace {

/// Numbers for which a block has room: more than any micro-step has layers, as a rule.
constexpr std::int64_t kRoom = 1024;

at::Tensor pinned(std::int64_t numbers) {
  return at::empty({numbers}, at::TensorOptions(at::kFloat).pinned_memory(true));
}

}  // namespace

bool all_finite(const at::Tensor& values) {
  if (values.numel() == 0) return true;
  // A sum is quick; where only the sum overflowed, a second look tells.
  return std::isfinite(values.sum(at::kFloat).item<float>()) ||
         at::isfinite(values).all().item<bool>();
}

void LayerWatch::see(std::string name, const at::Tensor& given) {
  if (given.numel() == 0) return;
  names_.push_back(std::move(name));
  sums_.push_back(given.sum(at::kFloat));
}

void LayerWatch::see_all(const std::vector<std::string>& names, const at::Tensor& sums) {
  names_.insert(names_.end(), names.begin(), names.end());
  const auto each = sums.unbind();
  sums_.insert(sums_.end(), each.begin(), each.end());
}

std::string LayerWatch::first_bad(const std::vector<std::string>& names, const float* sums) {
  if (names.empty()) return {};
  std::size_t layer = 0;
  while (layer < names.size() && std::isfinite(sums[layer]))
    ++layer;
  return layer == 0 ? " before " + names.front() : " after " + names[layer - 1];
}

void fail_with(const std::string& sentence) {
  throw std::runtime_error(sentence);
}

FiniteCheck::Answer FiniteCheck::ask(const at::Tensor& values, const std::string& what,
                                     const std::string& type, const LayerWatch& layers) {
  // The largest magnitude: unlike a sum it cannot overflow, and a NaN stays one.
  std::vector<at::Tensor> numbers{
      at::linalg_vector_norm(values, INFINITY, std::nullopt, false, at::kFloat)};
  numbers.insert(numbers.end(), layers.sums().begin(), layers.sums().end());
  Answer answer{at::stack(numbers), {}, {}, what, type, layers.names()};
  if (values.is_cpu()) return answer;
  const auto there = answer.numbers;
  answer.block = take_block(there.numel());
  answer.numbers = answer.block.slice(0, 0, there.numel());
  answer.numbers.copy_(there, true);
  answer.behind.emplace(there.device().type());
  answer.behind->record(
      c10::impl::VirtualGuardImpl(there.device().type()).getStream(there.device()));
  return answer;
}

void FiniteCheck::check(const Answer& answer) const {
  const auto* number = answer.numbers.const_data_ptr<float>();
  if (std::isfinite(number[0])) return;
  tell_("[actor] " + answer.what + " is not finite" +
        LayerWatch::first_bad(answer.layers, number + 1) + ", in " + answer.type);
}

void FiniteCheck::require(const at::Tensor& values, const std::string& what,
                          const std::string& type, const LayerWatch& layers) {
  read();
  if (values.numel() == 0) return;
  if (read_ == Read::later) {
    answers_.push_back(ask(values, what, type, layers));
  } else if (!all_finite(values)) {
    check(ask(values, what, type, layers));
  }
}

void FiniteCheck::require_now(const at::Tensor& values, const std::string& what,
                              const std::string& type) {
  const bool finite = all_finite(values);
  read();
  if (!finite) tell_("[actor] " + what + " is not finite, in " + type);
}

void FiniteCheck::read() {
  while (!answers_.empty() && answers_.front().is_here()) {
    check(take_answer());
  }
}

FiniteCheck::Answer FiniteCheck::take_answer() {
  auto answer = std::move(answers_.front());
  answers_.pop_front();
  if (answer.block.defined() && answer.block.numel() == kRoom) spare_.push_back(answer.block);
  return answer;
}

at::Tensor FiniteCheck::take_block(std::int64_t numbers) {
  if (spare_.empty() || numbers > kRoom) return pinned(std::max(numbers, kRoom));
  auto block = std::move(spare_.back());
  spare_.pop_back();
  return block;
}

void FiniteCheck::reserve(std::size_t answers) {
  while (pins_ && spare_.size() < answers)
    spare_.push_back(pinned(kRoom));
}

void FiniteCheck::settle(const std::function<void()>& pause) {
  for (read(); !answers_.empty(); read())
    pause();
}

}  // namespace troupe::actors
