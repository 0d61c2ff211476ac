// Extrapolated K,V by the CUDA kernel, as they are defined.
#include <ATen/ATen.h>

#include "tests/gpu/gpu_kernels.h"
#include "tests/gpu/nearness.h"

#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("extrapolate: rows of any stride into a part of another tensor") {
  TROUPE_NEEDS_GPU_KERNELS();
  at::manual_seed(22);
  for (const auto type : kKernelTypes) {
    for (const int64_t rows : {0, 1, 37}) {
      for (const int64_t width : {64, 72, 5}) {
        for (const int side : {0, 1}) {
          CAPTURE(rows);
          CAPTURE(width);
          CAPTURE(side);
          const at::Tensor store = at::randn({rows, 3, 2, 5, width}).to(type);
          const at::Tensor older = at::randn({3, rows + 2, 5, width}).to(type);
          const at::Tensor alpha = at::rand({3, 2});
          const auto of = [side](const at::Tensor& t) { return t.select(2, side).transpose(0, 1); };
          const at::Tensor all = on_gpu(at::full({3, rows + 4, 5, width}, 7.0), type);
          const at::Tensor target = all.slice(1, 3, 3 + rows);
          const auto* cuda = gpu_kernels::cuda_kernels_for(target);
          REQUIRE(cuda != nullptr);
          gpu_kernels::extrapolate_cuda(*cuda, target, of(on_gpu(store, type)),
                                        on_gpu(older, type).slice(1, 1, 1 + rows),
                                        on_gpu(alpha, at::kFloat), side);
          if (rows > 0)
            CHECK(apart(target, extrapolated(of(store), older.slice(1, 1, 1 + rows), alpha, side)) <
                  bound(type));
          CHECK((all.slice(1, 0, 3) == 7).all().item<bool>());
          CHECK((all.slice(1, 3 + rows) == 7).all().item<bool>());
        }
      }
    }
  }
}
