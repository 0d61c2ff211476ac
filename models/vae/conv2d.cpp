#include "models/vae/conv2d.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace troupe::models::vae {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

std::int64_t row_bytes(const at::Tensor& x, std::int64_t channels, std::int64_t width) {
  return channels * width * static_cast<std::int64_t>(x.element_size());
}

// Rows of a convolution's input, and how many of those asked for lie beyond the picture.
struct Piece {
  at::Tensor rows;
  std::int64_t zeros_above, zeros_below;
};

// Rows [begin, end) of the input, counted after repetition; -1 is the neighbour's.
Piece rows_of(const ConvInput& input, const Halo& halo, std::int64_t begin, std::int64_t end) {
  const std::int64_t height = input.x.size(2);
  const std::int64_t lowest = halo.above.defined() ? -1 : 0;
  const std::int64_t highest = height + (halo.below.defined() ? 1 : 0);
  const std::int64_t repeat = input.repeat;
  const std::int64_t first =
      std::max(begin < 0 ? -ceil_div(-begin, repeat) : begin / repeat, lowest);
  const std::int64_t last = std::min(ceil_div(end, repeat), highest);

  std::vector<at::Tensor> parts;
  if (first < 0) parts.push_back(halo.above);
  const std::int64_t own = std::max<std::int64_t>(first, 0);
  parts.push_back(input.x.narrow(2, own, std::min(last, height) - own));
  if (last > height) parts.push_back(halo.below);
  at::Tensor rows = parts.size() == 1
                        ? parts.front()
                        : at::cat(parts, 2).contiguous(input.x.suggest_memory_format());
  if (input.prepare) rows = input.prepare(rows);
  const std::int64_t from = std::max(begin, first * repeat);
  const std::int64_t to = std::min(end, last * repeat);
  if (repeat > 1) {
    rows = at::upsample_nearest2d(rows, {repeat * rows.size(2), repeat * rows.size(3)});
    rows = rows.narrow(2, from - first * repeat, to - from);
  }
  return {rows, from - begin, end - to};
}

}  // namespace

Conv2d::Conv2d(const Loader& load, const std::string& name, std::int64_t in, std::int64_t out,
               std::int64_t side, std::int64_t stride)
    : weight_(load.get_kernel(name + ".weight", {out, in, side, side})),
      bias_(load.get(name + ".bias", {out})),
      stride_(stride) {}

std::int64_t Conv2d::out_size(std::int64_t in) const {
  return (in + before() + after() - weight_.size(2)) / stride_ + 1;
}

at::Tensor Conv2d::convolve(at::Tensor rows, std::int64_t zeros_above,
                            std::int64_t zeros_below) const {
  if (stride_ == 1 && zeros_above == before() && zeros_below == after()) {
    return at::conv2d(rows, weight_, bias_, 1, before());
  }
  const std::int64_t right = stride_ == 1 ? 0 : after();
  if (right + zeros_above + zeros_below > 0) {
    rows = at::constant_pad_nd(rows, {0, right, zeros_above, zeros_below});
  }
  return at::conv2d(rows, weight_, bias_, stride_, at::IntArrayRef{0, before()});
}

void Conv2d::run(const ConvInput& input, const Pass& pass, const Sink& sink) const {
  const Halo halo =
      weight_.size(2) > stride_ ? pass.port.exchange(input.x, before() > 0, after() > 0) : Halo{};
  const std::int64_t height = out_size(input.repeat * input.x.size(2));
  const std::int64_t width = input.repeat * input.x.size(3);
  const std::int64_t bytes = std::max(stride_ * row_bytes(input.x, weight_.size(1), width),
                                      row_bytes(input.x, weight_.size(0), out_size(width)));
  const std::int64_t each = std::clamp<std::int64_t>(pass.chunk_bytes / bytes, 1, height);
  const RowShards chunks(height, static_cast<int>(ceil_div(height, each)));
  for (int i = 0; i < chunks.count(); ++i) {
    const RowRun out = chunks.of(i);
    const std::int64_t begin = out.begin * stride_ - before();
    const std::int64_t end = (out.end - 1) * stride_ - before() + weight_.size(2);
    Piece piece = rows_of(input, halo, begin, end);
    sink(out, convolve(std::move(piece.rows), piece.zeros_above, piece.zeros_below));
  }
}

at::Tensor Conv2d::operator()(const ConvInput& input, const Pass& pass) const {
  const at::Tensor& x = input.x;
  const std::int64_t height = out_size(input.repeat * x.size(2));
  const std::int64_t width = out_size(input.repeat * x.size(3));
  at::Tensor all;
  run(input, pass, [&](RowRun out, at::Tensor rows) {
    if (out.size() == height) {
      all = std::move(rows);
      return;
    }
    if (!all.defined()) {
      all = at::empty({1, weight_.size(0), height, width}, x.options(), x.suggest_memory_format());
    }
    all.narrow(2, out.begin, out.size()).copy_(rows);
  });
  return all;
}

void Conv2d::add_to(const at::Tensor& onto, const ConvInput& input, const Pass& pass) const {
  run(input, pass, [&](RowRun out, const at::Tensor& rows) {
    onto.narrow(2, out.begin, out.size()).add_(rows);
  });
}

}  // namespace troupe::models::vae
