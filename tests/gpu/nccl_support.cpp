#include "tests/gpu/nccl_support.h"

#include <ATen/ATen.h>

#include <chrono>
#include <cstring>

namespace troupe::testing {

using namespace tensor;
using namespace std::chrono_literals;

std::unique_ptr<Group> Rank::among(const std::string& suffix, const std::vector<int>& members) {
  std::vector<std::string> doors;
  int own = -1;
  for (const int member : members) {
    if (member == rank) own = static_cast<int>(doors.size());
    doors.push_back(addresses[member]);
  }
  return own < 0 ? nullptr : door.connect(name + " " + suffix, own, doors, within(60s));
}

void require(bool condition, const std::string& text) {
  if (!condition) throw std::runtime_error("not so: " + text);
}

at::Tensor pattern(const Rank& me, std::int64_t count, int seed) {
  return at::arange(count, at::TensorOptions().dtype(at::kFloat).device(me.gpu))
      .mul_(0.5f)
      .add_(static_cast<float>(seed) * 1000.0f);
}

at::Tensor room(const Rank& me, std::int64_t count, at::ScalarType type) {
  return at::empty({count}, at::TensorOptions().dtype(type).device(me.gpu));
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.cpu().contiguous(), y = b.cpu().contiguous();
  return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() &&
         (x.nbytes() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0);
}

TransferError failure_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const TransferError& error) {
    return error;
  }
  throw std::runtime_error("not so: it failed");
}

at::Tensor long_work(const Rank& me, int rounds) {
  at::Tensor x = at::ones({4096, 4096}, at::TensorOptions().device(me.gpu)).mul_(1.0f / 4096);
  const at::Tensor y = x.clone();
  for (int i = 0; i < rounds; ++i)
    x = at::matmul(x, y);
  return x.sum();
}

const Scenarios& scenarios() {
  static const Scenarios table = [] {
    Scenarios all = transfer_scenarios();
    all.merge(collective_scenarios());
    all.merge(failure_scenarios());
    return all;
  }();
  return table;
}

}  // namespace troupe::testing
