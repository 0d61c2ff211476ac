// Matrix products with int8 weights, and with weights that stay in GGUF's blocks, beside float32
// and bfloat16, at the demo's and PixArt-XL's sizes: quantizing, the product of bytes and scaling
// together, and the product alone; unpacking and the product together.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "benchmarks/command_line.h"
#include "kernels/linear.h"
#include "kernels/quantized.h"
#include "models/unpack_weights.h"

using namespace troupe;

namespace {

/// Processor time of all threads of the process, in seconds: undisturbed by most of what else the
/// machine does.
double now() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

template <class F>
void time_once(F&& work, double& least) {
  const double start = now();
  work();
  least = std::min(least, now() - start);
}

/// A weight in blocks of zeros but for their scales: what is in them takes no other time.
kernels::Linear packed(spec::Dtype dtype, int64_t in, int64_t out, const at::Tensor& bias) {
  const auto block = spec::dtype_block(dtype);
  const auto row = in / static_cast<int64_t>(block.elements) * static_cast<int64_t>(block.bytes);
  const models::PackedMatrix matrix{.dtype = dtype, .columns = in};
  return kernels::Linear({{at::ones({out, row}, at::kByte), matrix.unpacker(bias.scalar_type())}},
                         in, bias);
}

int run(int threads, double budget) {
  const c10::InferenceMode inference;
  at::set_num_threads(threads);
  std::printf("%d threads, bytes by %s\n", at::get_num_threads(),
              kernels::has_byte_products() ? "VNNI" : "float32");
  std::printf(
      "  rows   in →  out    float32   bfloat16       int8   product       q8_0       q4_0  q8_0 "
      "in "
      "bf16   int8 faster than both\n");
  const int64_t sizes[][2] = {{192, 192},   {192, 768},   {768, 192},
                              {1152, 1152}, {1152, 4608}, {4608, 1152}};
  for (const auto& [in, out] : sizes) {
    const at::Tensor weight = at::randn({out, in}), bias = at::randn({out});
    const kernels::Linear full(weight, bias);
    const kernels::Linear half(weight.to(at::kBFloat16), bias.to(at::kBFloat16));
    const auto bytes = kernels::quantize_weight(weight, kernels::WeightType::int8);
    const kernels::Linear small(bytes, bias);
    const kernels::Linear q8(packed(spec::Dtype::q8_0, in, out, bias));
    const kernels::Linear q4(packed(spec::Dtype::q4_0, in, out, bias));
    const kernels::Linear q8_half(packed(spec::Dtype::q8_0, in, out, bias.to(at::kBFloat16)));
    for (const int64_t rows : {64, 256, 1024}) {
      const at::Tensor x = at::randn({rows, in}), y = x.to(at::kBFloat16);
      const at::Tensor quantized = at::randint(-127, 128, {rows, in}).to(at::kChar);
      double least[] = {1e30, 1e30, 1e30, 1e30, 1e30, 1e30, 1e30};
      for (const double end = now() + budget; now() < end;) {
        time_once([&] { full(x); }, least[0]);
        time_once([&] { half(y); }, least[1]);
        time_once([&] { small(x); }, least[2]);
        time_once([&] { kernels::detail::byte_products(quantized, bytes.values); }, least[3]);
        time_once([&] { q8(x); }, least[4]);
        time_once([&] { q4(x); }, least[5]);
        time_once([&] { q8_half(y); }, least[6]);
      }
      std::printf(
          "%6ld %5ld → %4ld %10.0f %10.0f %10.0f %9.0f %10.0f %10.0f %13.0f    %.2f ×  %.2f ×\n",
          long(rows), long(in), long(out), least[0] * 1e6, least[1] * 1e6, least[2] * 1e6,
          least[3] * 1e6, least[4] * 1e6, least[5] * 1e6, least[6] * 1e6, least[0] / least[2],
          least[1] / least[2]);
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace bench;
  int threads = 1;
  double seconds = 1;
  CLI::App app{
      "Matrix products with int8 and packed weights beside float32 and bfloat16: the least "
      "processor time of "
      "all threads, taking turns, in microseconds",
      "quantized_products"};
  app.add_option("THREADS", threads, "To compute with")
      ->check(whole(1, 1024))
      ->capture_default_str();
  app.add_option("SECONDS", seconds, "A size")->check(number(0.001, 3600))->capture_default_str();
  return run_program(app, argc, argv, [&] { return run(threads, seconds); });
}
