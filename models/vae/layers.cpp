#include "models/vae/layers.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "kernels/cuda_library.h"
#include "kernels/group_moments.h"
#include "models/safetensors.h"

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

constexpr std::int64_t kChunkRows = 4096;  // one task
constexpr std::int64_t kBlockRows = 64;    // summed in float32
constexpr std::int64_t kWidened = std::int64_t{1} << 25;

struct Moments {
  std::vector<double> sum, square;
};

template <class T>
void add_block(const T* x, std::int64_t rows, const std::vector<float>& shift, Moments& into) {
  const auto channels = static_cast<std::int64_t>(shift.size());
  std::vector<float> sum(channels, 0.0f);
  std::vector<float> square(channels, 0.0f);
  for (std::int64_t r = 0; r < rows; ++r, x += channels) {
    for (std::int64_t c = 0; c < channels; ++c) {
      const float d = static_cast<float>(x[c]) - shift[c];
      sum[c] += d;
      square[c] += d * d;
    }
  }
  for (std::int64_t c = 0; c < channels; ++c) {
    into.sum[c] += sum[c];
    into.square[c] += square[c];
  }
}

template <class T>
Moments moments_of(const T* x, std::int64_t rows, const std::vector<float>& shift) {
  const size_t channels = shift.size();
  const std::int64_t chunks = (rows + kChunkRows - 1) / kChunkRows;
  const Moments zero{std::vector<double>(channels, 0.0), std::vector<double>(channels, 0.0)};
  std::vector<Moments> parts(chunks, zero);
  at::parallel_for(0, chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t chunk = begin; chunk < end; ++chunk) {
      const std::int64_t last = std::min(rows, (chunk + 1) * kChunkRows);
      for (std::int64_t r = chunk * kChunkRows; r < last; r += kBlockRows) {
        add_block(x + r * static_cast<std::int64_t>(channels), std::min(kBlockRows, last - r),
                  shift, parts[chunk]);
      }
    }
  });
  Moments total = zero;
  for (const Moments& part : parts) {
    for (size_t c = 0; c < channels; ++c) {
      total.sum[c] += part.sum[c];
      total.square[c] += part.square[c];
    }
  }
  return total;
}

// Writes mean and biased variance of each group to into[0] and into[1].
template <class T>
void group_moments(const T* x, std::int64_t rows, std::int64_t channels, std::int64_t groups,
                   double* into) {
  const std::vector<float> shift(x, x + channels);
  const Moments moments = moments_of(x, rows, shift);
  const std::int64_t width = channels / groups;
  const auto n = static_cast<double>(rows);
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::int64_t first = group * width;
    double mean = 0;
    for (std::int64_t c = first; c < first + width; ++c) {
      mean += (shift[c] + moments.sum[c] / n) / static_cast<double>(width);
    }
    double variance = 0;
    for (std::int64_t c = first; c < first + width; ++c) {
      const double own = moments.sum[c] / n;
      const double apart = shift[c] + own - mean;
      variance += (moments.square[c] / n - own * own + apart * apart) / static_cast<double>(width);
    }
    into[group] = mean;
    into[groups + group] = variance;
  }
}

template <class T>
void scale_and_add(const T* x, T* y, std::int64_t rows, std::int64_t channels, const float* f,
                   const float* a) {
  at::parallel_for(0, rows, kBlockRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* from = x + r * channels;
      T* to = y + r * channels;
      for (std::int64_t c = 0; c < channels; ++c) {
        to[c] = static_cast<T>(static_cast<float>(from[c]) * f[c] + a[c]);
      }
    }
  });
}

bool has_own_kernel(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() != at::kDouble;
}

// Mean and biased variance of each group over this shard's rows, [2, groups] float64.
at::Tensor own_moments(const at::Tensor& x, std::int64_t groups) {
  if (x.is_cuda() && kernels::cuda_kernels()) return kernels::group_moments(x, groups);
  if (!has_own_kernel(x)) {
    // Half precision is widened a few groups at a time.
    const auto wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const std::int64_t each = std::max<std::int64_t>(1, kWidened * groups / x.numel());
    std::vector<at::Tensor> parts;
    for (const at::Tensor& some : x.contiguous().view({groups, -1}).split(each)) {
      const auto [variance, mean] = at::var_mean(some.to(wide), at::IntArrayRef{1}, 0);
      parts.push_back(at::stack({mean, variance}).to(at::kDouble));
    }
    return at::cat(parts, 1);
  }
  const at::Tensor input = x.contiguous(at::MemoryFormat::ChannelsLast);
  at::Tensor moments = at::empty({2, groups}, at::kDouble);
  AT_DISPATCH_SWITCH(x.scalar_type(), "group_norm_affine",
                     AT_DISPATCH_CASE_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, [&] {
                       group_moments(input.const_data_ptr<scalar_t>(), x.size(2) * x.size(3),
                                     x.size(1), groups, moments.mutable_data_ptr<double>());
                     }));
  return moments;
}

// Over all rows. About zero in float64: that loses nothing of what float32 values can tell.
at::Tensor all_moments(const at::Tensor& own, std::int64_t rows, HaloPort& port) {
  const at::Tensor raw = at::empty({3, own.size(1)}, own.options());
  raw[0].fill_(static_cast<double>(rows));
  raw[1].copy_(own[0] * rows);
  raw[2].copy_((own[1] + own[0].square()) * rows);
  port.sum(raw);
  const at::Tensor mean = raw[1] / raw[0];
  return at::stack({mean, (raw[2] / raw[0] - mean.square()).clamp_min(0)});
}

constexpr double kEpsilon = 1e-6;
/// Scores of as many queries as are computed at a time where a kernel holds them all.
constexpr std::int64_t kScores = std::int64_t{1} << 26;

}  // namespace

at::Tensor Loader::get(const std::string& name, std::vector<std::int64_t> shape) const {
  return get_ ? get_(name, shape) : weights_.get(name, shape, dtype_, device_);
}

at::Tensor Loader::get_any(std::initializer_list<std::string> names,
                           std::vector<std::int64_t> shape) const {
  for (const std::string& name : names) {
    if (weights_.contains(name)) return get(name, std::move(shape));
  }
  return get(*names.begin(), std::move(shape));
}

at::Tensor Loader::get_kernel(const std::string& name, std::vector<std::int64_t> shape) const {
  return get(name, std::move(shape)).contiguous(memory_format());
}

at::MemoryFormat Loader::memory_format() const {
  return device_.is_cpu() ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
}

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

ChannelAffine group_norm_affine(const at::Tensor& x, std::int64_t groups, const at::Tensor& weight,
                                const at::Tensor& bias, double epsilon, HaloPort& port) {
  at::Tensor moments = own_moments(x, groups);
  if (port.shards() > 1) moments = all_moments(moments, x.size(2), port);
  const at::Tensor scale = (moments[1].clamp_min(0) + epsilon).sqrt().reciprocal();
  const at::Tensor factor =
      (weight.to(at::kDouble).view({groups, -1}) * scale.unsqueeze(1)).view({-1});
  const at::Tensor shifted = factor.view({groups, -1}) * moments[0].unsqueeze(1);
  const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {factor.to(type), (bias.to(at::kDouble) - shifted.view({-1})).to(type)};
}

at::Tensor apply_affine(const at::Tensor& x, const ChannelAffine& affine) {
  if (!has_own_kernel(x)) {
    const auto by_channel = [](const at::Tensor& t) { return t.view({1, -1, 1, 1}); };
    return at::addcmul(by_channel(affine.addend), x.to(affine.factor.scalar_type()),
                       by_channel(affine.factor))
        .to(x.scalar_type());
  }
  const at::Tensor input = x.contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor output = at::empty_like(input, at::MemoryFormat::ChannelsLast);
  AT_DISPATCH_SWITCH(x.scalar_type(), "apply_affine",
                     AT_DISPATCH_CASE_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, [&] {
                       scale_and_add(input.const_data_ptr<scalar_t>(),
                                     output.mutable_data_ptr<scalar_t>(), x.size(2) * x.size(3),
                                     x.size(1), affine.factor.const_data_ptr<float>(),
                                     affine.addend.const_data_ptr<float>());
                     }));
  return output;
}

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto seen_by = [&](const at::Tensor& queries) {
    return at::scaled_dot_product_attention(queries.unsqueeze(1), k.unsqueeze(0).unsqueeze(0),
                                            v.unsqueeze(0).unsqueeze(0))
        .squeeze(1);
  };
  const std::int64_t each = std::max<std::int64_t>(1, kScores / k.size(0));
  if (q.size(1) <= each) return seen_by(q);
  std::vector<at::Tensor> parts;
  for (const at::Tensor& queries : q.split(each, 1)) {
    parts.push_back(seen_by(queries));
  }
  return at::cat(parts, 1);
}

GroupNorm::GroupNorm(const Loader& load, const std::string& name, std::int64_t channels,
                     std::int64_t num_groups)
    : weight(load.get(name + ".weight", {channels})),
      bias(load.get(name + ".bias", {channels})),
      groups(num_groups) {}

ChannelAffine GroupNorm::over(const at::Tensor& x, const Pass& pass) const {
  return group_norm_affine(x, groups, weight, bias, kEpsilon, pass.port);
}

Prepare GroupNorm::with_silu(const at::Tensor& x, const Pass& pass) const {
  return [affine = over(x, pass)](const at::Tensor& rows) {
    at::Tensor y = apply_affine(rows, affine);
    return at::silu_(y);
  };
}

ResnetBlock2D::ResnetBlock2D(const Loader& load, const std::string& name, std::int64_t in,
                             std::int64_t out, std::int64_t num_groups)
    : norm1(load, name + ".norm1", in, num_groups),
      norm2(load, name + ".norm2", out, num_groups),
      conv1(load, name + ".conv1", in, out, 3),
      conv2(load, name + ".conv2", out, out, 3) {
  if (in != out) conv_shortcut.emplace(load, name + ".conv_shortcut", in, out, 1);
}

at::Tensor ResnetBlock2D::operator()(at::Tensor x, const Pass& pass) const {
  const at::Tensor h = conv1({x, norm1.with_silu(x, pass)}, pass);
  if (conv_shortcut) x = (*conv_shortcut)({x}, pass);
  conv2.add_to(x, {h, norm2.with_silu(h, pass)}, pass);
  return x;
}

Attention::Attention(const Loader& load, const std::string& name, std::int64_t channels,
                     std::int64_t num_groups)
    : group_norm(load, name + ".group_norm", channels, num_groups) {
  const auto matrix = [&](const std::string& now, const std::string& before) {
    return load.get_any({name + now + ".weight", name + before + ".weight"}, {channels, channels});
  };
  const auto vector = [&](const std::string& now, const std::string& before) {
    return load.get_any({name + now + ".bias", name + before + ".bias"}, {channels});
  };
  q = matrix(".to_q", ".query");
  k = matrix(".to_k", ".key");
  v = matrix(".to_v", ".value");
  out = matrix(".to_out.0", ".proj_attn");
  q_bias = vector(".to_q", ".query");
  k_bias = vector(".to_k", ".key");
  v_bias = vector(".to_v", ".value");
  out_bias = vector(".to_out.0", ".proj_attn");
}

at::Tensor Attention::operator()(at::Tensor x, const Pass& pass) const {
  const at::Tensor tokens =
      apply_affine(x, group_norm.over(x, pass)).flatten(2).transpose(1, 2).contiguous();
  const at::Tensor keys = pass.port.gather(at::linear(tokens, k, k_bias)[0]);
  const at::Tensor values = pass.port.gather(at::linear(tokens, v, v_bias)[0]);
  const at::Tensor seen = attend(at::linear(tokens, q, q_bias), keys, values);
  return x.add_(at::linear(seen, out, out_bias).transpose(1, 2).reshape(x.sizes()));
}

}  // namespace troupe::models::vae
