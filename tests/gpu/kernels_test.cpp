// Every CUDA kernel beside its CPU twin, which computes the same in float32.
#include <ATen/ATen.h>

#include <random>

#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/group_moments.h"
#include "kernels/kv_history.h"
#include "tests/gpu/gpu_kernels.h"
#include "tests/gpu/nearness.h"

#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;
using kernels::PartialAttention;

namespace {

/// Returns the same values one element behind the place where packed loads may begin.
at::Tensor off_pack(const at::Tensor& x, at::ScalarType type) {
  return on_gpu(at::cat({at::zeros({1}), x.flatten()}), type).slice(0, 1).view(x.sizes());
}

struct Sizes {
  std::mt19937 random{11};
  int64_t upto(int64_t most) { return 1 + static_cast<int64_t>(random() % most); }
};

}  // namespace

TEST_CASE("the CPU's q/k norm, rotary and group moments agree with float64") {
  at::manual_seed(9);
  const at::Tensor joint = at::randn({2, 21, 3, 4, 72}), weight = at::randn({72});
  const at::Tensor angle = at::randn({21, 36}) * 3;
  at::Tensor got = joint.clone().select(2, 1);
  kernels::norm_rotate(got, weight, angle.cos(), angle.sin(), 1e-6);
  const at::Tensor x = joint.select(2, 1).to(at::kDouble);
  const at::Tensor normal = x * (x.square().mean(-1, true) + 1e-6).rsqrt() * weight.to(at::kDouble);
  // Pairs as complex numbers, turned by a factor of modulus one.
  const at::Tensor turned =
      at::view_as_complex(normal.reshape({2, 21, 4, 36, 2})) *
      at::polar(at::ones({21, 36}, at::kDouble), angle.to(at::kDouble)).view({1, 21, 1, 36});
  CHECK(apart(got, at::view_as_real(turned).reshape({2, 21, 4, 72})) < 1e-5);
  CHECK_THROWS_AS(kernels::norm_rotate(got, weight, angle.cos().t(), angle.sin(), 1e-6),
                  std::invalid_argument);

  const at::Tensor picture = at::randn({1, 12, 9, 7}) + 30;
  const at::Tensor groups = picture.to(at::kDouble).view({4, -1});
  const at::Tensor want = at::stack({groups.mean(1), groups.var(1, false)});
  CHECK(apart(kernels::group_moments(picture.contiguous(at::MemoryFormat::ChannelsLast), 4), want) <
        1e-9);
  CHECK_THROWS_AS(kernels::group_moments(picture, 5), std::invalid_argument);
}

TEST_CASE("the library of CUDA kernels is found, in this version") {
  TROUPE_NEEDS_GPU_KERNELS();
  REQUIRE(gpu_kernels::cuda_kernels() != nullptr);
  CHECK(gpu_kernels::cuda_kernels()->version == kernels::kCudaKernelsVersion);
}

TEST_CASE("norm + modulate") {
  TROUPE_NEEDS_GPU_KERNELS();
  at::manual_seed(1);
  Sizes sizes;
  for (const auto type : kKernelTypes) {
    for (const int64_t width : {int64_t{1152}, int64_t{64}, int64_t{2}, sizes.upto(400) + 1}) {
      CAPTURE(width);
      const int64_t batch = sizes.upto(3), rows = sizes.upto(90);
      const at::Tensor x = exact({batch, rows, width}, type) * 3 + 5;
      const at::Tensor stored = x.to(type).to(at::kFloat);
      const at::Tensor table = exact({batch, 6, width}, type);
      const at::Tensor want =
          kernels::norm_modulate(stored, table.select(1, 1), table.select(1, 4), 1e-6);
      const at::Tensor device_table = on_gpu(table, type);
      for (const at::Tensor& there : {on_gpu(stored, type), off_pack(stored, type)})
        CHECK(apart(gpu_kernels::norm_modulate(there, device_table.select(1, 1),
                                               device_table.select(1, 4), 1e-6),
                    want) < bound(type));
    }
  }
}

TEST_CASE("gate + residual, with and without gate and bias") {
  TROUPE_NEEDS_GPU_KERNELS();
  at::manual_seed(2);
  Sizes sizes;
  for (const auto type : kKernelTypes) {
    for (const int64_t width : {int64_t{1152}, int64_t{7}, sizes.upto(300)}) {
      for (const bool with_bias : {false, true}) {
        const int64_t batch = sizes.upto(3), rows = sizes.upto(50);
        const at::Tensor y = exact({batch, rows, width}, type), gate = exact({batch, width}, type);
        const at::Tensor bias = with_bias ? exact({width}, type) : at::Tensor();
        at::Tensor want = exact({batch, rows, width}, type), plain = want.clone();
        at::Tensor got = on_gpu(want, type), plain_got = off_pack(want, type);
        const at::Tensor device_bias = with_bias ? on_gpu(bias, type) : bias;
        kernels::add_gated(want, y, gate, bias);
        gpu_kernels::add_gated(got, on_gpu(y, type), on_gpu(gate, type), device_bias);
        CHECK(apart(got, want) < bound(type));
        kernels::add(plain, y, bias);
        gpu_kernels::add(plain_got, on_gpu(y, type), device_bias);
        CHECK(apart(plain_got, plain) < bound(type));
      }
    }
  }
}

TEST_CASE("q/k norm and rotary, each alone and both") {
  TROUPE_NEEDS_GPU_KERNELS();
  at::manual_seed(3);
  for (const auto type : kKernelTypes) {
    for (const int64_t width : {64, 72, 128, 6}) {
      for (const int kind : {1, 2, 3}) {
        CAPTURE(width);
        CAPTURE(kind);
        const at::Tensor joint = exact({2, 33, 3, 5, width}, type);
        const at::Tensor weight = kind & 1 ? exact({width}, type) : at::Tensor();
        const at::Tensor angle = at::randn({33, width / 2}) * 3;
        const at::Tensor cosine = kind & 2 ? angle.cos() : at::Tensor(),
                         sine = kind & 2 ? angle.sin() : at::Tensor();
        at::Tensor all = joint.clone(), device_all = on_gpu(joint, type);
        at::Tensor want = all.select(2, 1), got = device_all.select(2, 1);
        kernels::norm_rotate(want, weight, cosine, sine, 1e-6);
        const auto there = [](const at::Tensor& t, at::ScalarType as) {
          return t.defined() ? on_gpu(t, as) : t;
        };
        gpu_kernels::norm_rotate(got, there(weight, type), there(cosine, at::kFloat),
                                 there(sine, at::kFloat), 1e-6);
        CHECK(apart(got, want) < bound(type));
        CHECK(at::equal(device_all.select(2, 0).cpu().to(at::kFloat), joint.select(2, 0)));
        CHECK(at::equal(device_all.select(2, 2).cpu().to(at::kFloat), joint.select(2, 2)));
      }
    }
  }
}

TEST_CASE("K,V push: versions move, fresh rows come in, sums add up") {
  TROUPE_NEEDS_GPU_KERNELS();
  at::manual_seed(4);
  Sizes sizes;
  for (const auto type : kKernelTypes) {
    for (const int count : {1, 2, 3}) {
      for (int known = 0; known <= count; ++known) {
        for (const int64_t width : {72, 64, 5}) {
          CAPTURE(count);
          CAPTURE(known);
          CAPTURE(width);
          const int64_t rows = sizes.upto(40), batch = sizes.upto(2), heads = sizes.upto(6);
          // As a joint projection leaves it: [B, n, 3, H, d], of which K and V are taken.
          const at::Tensor joint = exact({batch, rows, 3, heads, width}, type);
          const auto fresh_of = [](const at::Tensor& t) {
            return t.slice(2, 1, 3).transpose(0, 1);
          };
          std::vector<at::Tensor> versions, device_versions;
          for (int i = 0; i < count; ++i) {
            // What no version holds yet may be anything.
            at::Tensor version = exact({rows, batch, 2, heads, width}, type);
            if (i >= known) version.fill_(NAN);
            versions.push_back(version);
            device_versions.push_back(on_gpu(version, type));
          }
          std::optional<at::Tensor> sums, device_sums;
          if (count > 1) {
            sums = at::rand({batch, 2, 2}, at::kDouble);
            device_sums = on_gpu(*sums, at::kDouble);
          }
          kernels::kv_push(versions, fresh_of(joint), known, sums);
          const at::Tensor there = known == 1 ? off_pack(joint, type) : on_gpu(joint, type);
          gpu_kernels::kv_push(device_versions, fresh_of(there), known, device_sums);
          for (int i = 0; i < std::min(count, known + 1); ++i)
            CHECK(at::equal(device_versions[i].cpu().to(at::kFloat), versions[i]));
          if (sums) {
            CHECK(apart(*device_sums, *sums) < 1e-5);
            CHECK(apart(kernels::extrapolation_factors(*device_sums),
                        kernels::extrapolation_factors(*sums)) < 1e-4);
          }
        }
      }
    }
  }
}

TEST_CASE("K,V push gives the same bits every time") {
  TROUPE_NEEDS_GPU_KERNELS();
  at::manual_seed(5);
  const at::Tensor fresh = at::randn({400, 2, 2, 6, 64}), first = at::randn_like(fresh),
                   second = at::randn_like(fresh);
  at::Tensor before;
  for (int round = 0; round < 3; ++round) {
    const at::Tensor sums = on_gpu(at::zeros({2, 2, 2}), at::kDouble);
    gpu_kernels::kv_push({on_gpu(first, at::kFloat), on_gpu(second, at::kFloat)},
                         on_gpu(fresh, at::kFloat), 2, sums);
    if (before.defined()) CHECK(at::equal(sums, before));
    before = sums;
  }
}

TEST_CASE("log-sum-exp merge, also with sides that have no keys") {
  TROUPE_NEEDS_GPU_KERNELS();
  at::manual_seed(7);
  for (const auto type : kKernelTypes) {
    for (const auto into_type : {at::kFloat, type}) {
      for (const int64_t width : {72, 128, 3}) {
        const auto part = [&](at::ScalarType as) {
          PartialAttention made{exact({2, 29, 3, width}, as), at::randn({2, 29, 3}) * 20};
          return made;
        };
        PartialAttention want = part(into_type);
        const PartialAttention other = part(type);
        const auto nothing = [](PartialAttention& side, int64_t row) {
          side.log_sum_exp.select(1, row).fill_(-INFINITY);
          side.out.select(1, row).fill_(NAN);
        };
        PartialAttention filled = other;
        nothing(want, 3);
        nothing(filled, 5);
        nothing(want, 7);
        nothing(filled, 7);
        const auto there = [](const PartialAttention& side, at::ScalarType as) {
          return PartialAttention{on_gpu(side.out, as), on_gpu(side.log_sum_exp, at::kFloat)};
        };
        PartialAttention got = there(want, into_type);
        gpu_kernels::merge_attention(got, there(filled, type));
        kernels::merge_attention(want, filled);
        CHECK(apart(got.out, want.out) < bound(into_type));
        const at::Tensor sums = got.log_sum_exp.cpu();
        CHECK(at::equal(sums == -INFINITY, want.log_sum_exp == -INFINITY));
        CHECK(apart(sums.masked_fill(sums == -INFINITY, 0),
                    want.log_sum_exp.masked_fill(want.log_sum_exp == -INFINITY, 0)) < 1e-6);
      }
    }
  }
}

TEST_CASE("group moments, contiguous and channels last, of values far from zero") {
  TROUPE_NEEDS_GPU_KERNELS();
  at::manual_seed(8);
  for (const auto type : kKernelTypes) {
    for (const double mean : {0.0, 30.0}) {
      const at::Tensor x = (at::randn({1, 96, 37, 53}) + mean).to(type).to(at::kFloat);
      const at::Tensor want = kernels::group_moments(x, 8);
      CHECK(apart(gpu_kernels::group_moments(on_gpu(x, type), 8), want) < 1e-6);
      const at::Tensor last = x.contiguous(at::MemoryFormat::ChannelsLast);
      CHECK(apart(gpu_kernels::group_moments(on_gpu(last, type), 8), want) < 1e-6);
    }
  }
}

TEST_CASE("a NaN is not lost where there is nothing beside it") {
  TROUPE_NEEDS_GPU_KERNELS();
  const auto part = [](double sum) {
    return PartialAttention{on_gpu(at::zeros({1, 2, 3, 8}), at::kFloat),
                            on_gpu(at::full({1, 2, 3}, sum), at::kFloat)};
  };
  for (const auto& [own, theirs] : {std::pair{NAN, -INFINITY}, {-INFINITY, NAN}, {NAN, 1.0f}}) {
    PartialAttention into = part(own);
    gpu_kernels::merge_attention(into, part(theirs));
    CHECK(into.out.isnan().all().item<bool>());
    CHECK(into.log_sum_exp.isnan().all().item<bool>());
  }
  at::Tensor picture = at::randn({1, 4, 6, 7});
  picture[0][1][2][3] = NAN;
  const at::Tensor moments = gpu_kernels::group_moments(on_gpu(picture, at::kFloat), 2).cpu();
  CHECK(moments.isnan().select(1, 0).all().item<bool>());
  CHECK(moments.isfinite().select(1, 1).all().item<bool>());
}
