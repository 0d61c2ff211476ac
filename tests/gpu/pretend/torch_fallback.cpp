// Every other operation on the pretend GPU: the CPU's kernel, queued on the current stream. Shapes
// come from the meta kernels, so that the host waits for nothing that a GPU would not wait for.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <torch/library.h>

#include <set>

#include "tests/gpu/pretend/torch_device.h"

namespace pretend {
namespace {

using c10::IValue;
using torch::jit::Stack;

/// `change` of every tensor in a value; lists and optional ones included.
IValue with_tensors(const IValue& value,
                    const std::function<at::Tensor(const at::Tensor&)>& change) {
  if (value.isTensor()) return value.toTensor().defined() ? change(value.toTensor()) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector())
      list.push_back(change(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& tensor : value.toOptionalTensorVector())
      list.push_back(tensor && tensor->defined() ? std::optional(change(*tensor)) : tensor);
    return list;
  }
  return value;
}

std::vector<at::Tensor> tensors_of(const IValue& value) {
  std::vector<at::Tensor> all;
  with_tensors(value, [&](const at::Tensor& tensor) {
    all.push_back(tensor);
    return tensor;
  });
  return all;
}

at::Tensor on_meta(const at::Tensor& tensor) {
  at::Tensor meta = at::empty_strided(tensor.sizes(), tensor.strides(),
                                      tensor.options().device(at::kMeta).pinned_memory(false));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
    meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

struct Arguments {
  Stack values;
  std::vector<bool> written;
  std::vector<at::Tensor> reads, writes;
  std::optional<at::Device> device;
};

/// A GPU's kernels take tensors of the CPU as numbers alone, with a few exceptions.
void refuse_strangers(const std::string& name, const at::Tensor& tensor) {
  static const std::set<std::string> takes_any = {
      "aten::index.Tensor", "aten::index_put_", "aten::_index_put_impl_", "aten::index.Tensor_out"};
  TORCH_CHECK(tensor.is_cuda() || tensor.dim() == 0 || takes_any.contains(name),
              "Expected all tensors to be on the same device, but ", name, " is given one of ",
              tensor.device(), " and sizes ", tensor.sizes());
}

Arguments read(const c10::OperatorHandle& op, const Stack& stack) {
  const auto& schema = op.schema();
  const std::string name = c10::toString(op.operator_name());
  Arguments all;
  all.values.assign(stack.end() - static_cast<std::ptrdiff_t>(schema.arguments().size()),
                    stack.end());
  for (std::size_t i = 0; i < all.values.size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    all.written.push_back(alias && alias->isWrite());
    if (all.values[i].isDevice() && !all.device) all.device = all.values[i].toDevice();
    for (const at::Tensor& tensor : tensors_of(all.values[i])) {
      refuse_strangers(name, tensor);
      if (tensor.is_cuda()) all.device = tensor.device();
      (all.written.back() ? all.writes : all.reads).push_back(tensor);
    }
  }
  return all;
}

Stack changed(const Arguments& arguments,
              const std::function<at::Tensor(const at::Tensor&)>& change, at::Device device) {
  Stack values;
  for (const IValue& value : arguments.values)
    values.push_back(value.isDevice() ? IValue(device) : with_tensors(value, change));
  return values;
}

/// Numbers may change on the host after the call: a kernel has been given their values.
Stack for_later(const Arguments& arguments) {
  return changed(
      arguments,
      [](const at::Tensor& tensor) {
        if (tensor.is_cuda() || tensor.unsafeGetTensorImpl()->is_wrapped_number())
          return on_host(tensor);
        return tensor.clone();
      },
      at::kCPU);
}

/// Returns whether the sizes of an operator's results are not known without the data.
bool depends_on_data(const c10::OperatorHandle& op, const Arguments& arguments) {
  static const std::set<std::string> names = {"aten::nonzero", "aten::nonzero.out",
                                              "aten::masked_select", "aten::_unique2"};
  const auto is_mask = [](const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
  };
  const std::string name = c10::toString(op.operator_name());
  return names.contains(name) || (name.starts_with("aten::index") &&
                                  std::any_of(arguments.reads.begin() + !arguments.reads.empty(),
                                              arguments.reads.end(), is_mask));
}

/// The results' shapes and those of the written tensors, by the meta kernel; where there is none,
/// by the CPU's, of zeros.
Stack shapes(const c10::OperatorHandle& op, const Arguments& arguments,
             std::vector<at::Tensor>& stand_ins) {
  const auto run = [&](const auto& change, at::Device device) {
    stand_ins.clear();
    Stack values = changed(
        arguments,
        [&](const at::Tensor& tensor) {
          stand_ins.push_back(change(tensor));
          return stand_ins.back();
        },
        device);
    op.callBoxed(values);
    return values;
  };
  try {
    return run(on_meta, at::kMeta);
  } catch (const c10::NotImplementedError&) {
    return run(
        [](const at::Tensor& tensor) {
          return at::zeros(tensor.sizes(), tensor.options().device(at::kCPU));
        },
        at::kCPU);
  }
}

/// Written tensors that the operation will resize get their sizes now.
void resize_written(const c10::OperatorHandle& op, const Arguments& arguments) {
  const bool empty = std::any_of(arguments.writes.begin(), arguments.writes.end(),
                                 [](const at::Tensor& tensor) { return tensor.numel() == 0; });
  if (!empty) return;
  std::vector<at::Tensor> stand_ins;
  shapes(op, arguments, stand_ins);
  std::size_t next = 0;
  for (std::size_t i = 0; i < arguments.values.size(); ++i)
    for (const at::Tensor& tensor : tensors_of(arguments.values[i])) {
      const at::Tensor& is = stand_ins.at(next++);
      if (arguments.written[i] && tensor.sizes() != is.sizes()) tensor.resize_(is.sizes());
    }
}

void give_back(const c10::OperatorHandle& op, const Arguments& arguments, Stack& stack,
               std::vector<IValue> fresh) {
  const auto& schema = op.schema();
  torch::jit::drop(stack, arguments.values.size());
  std::size_t next = 0, written = 0;
  for (const auto& result : schema.returns()) {
    if (!result.alias_info() || !result.alias_info()->isWrite()) {
      stack.push_back(std::move(fresh.at(next++)));
      continue;
    }
    while (!arguments.written.at(written))
      ++written;
    stack.push_back(arguments.values[written++]);
  }
}

/// The kernel's name: an instance for each type, as a device's.
std::string instance(const c10::OperatorHandle& op, const Arguments& arguments) {
  std::string name = c10::toString(op.operator_name());
  for (const auto* tensors : {&arguments.writes, &arguments.reads})
    if (!tensors->empty()) return name + " " + c10::toString(tensors->front().scalar_type());
  return name;
}

/// Runs an operator whose sizes nobody can tell without the data: the host waits, as LibTorch does.
void at_once(const c10::OperatorHandle& op, const Arguments& arguments, Stack& stack) {
  const auto stream = c10::cuda::getCurrentCUDAStream(arguments.device->index());
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  Stack values = for_later(arguments);
  op.callBoxed(values);
  std::vector<IValue> fresh;
  for (const IValue& value : values)
    fresh.push_back(with_tensors(value, [&](const at::Tensor& tensor) {
      at::Tensor there = at::empty(tensor.sizes(), tensor.options().device(*arguments.device));
      there.copy_(tensor);
      return there;
    }));
  give_back(op, arguments, stack, std::move(fresh));
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  Arguments arguments = read(op, *stack);
  TORCH_CHECK(arguments.device, "the pretend GPU cannot tell where ", op.operator_name(),
              " is to run");
  const c10::cuda::CUDAGuard guard(*arguments.device);
  if (depends_on_data(op, arguments)) return at_once(op, arguments, *stack);
  resize_written(op, arguments);

  std::vector<IValue> fresh;
  std::vector<at::Tensor> results;
  const bool makes = std::any_of(
      op.schema().returns().begin(), op.schema().returns().end(),
      [](const auto& result) { return !result.alias_info() || !result.alias_info()->isWrite(); });
  if (makes) {
    std::vector<at::Tensor> stand_ins;
    const Stack meta = shapes(op, arguments, stand_ins);
    std::size_t at = 0;
    for (const auto& result : op.schema().returns()) {
      const IValue& shape = meta.at(at++);
      if (result.alias_info() && result.alias_info()->isWrite()) continue;
      fresh.push_back(with_tensors(shape, [&](const at::Tensor& tensor) {
        results.push_back(
            empty_there(tensor.sizes(), tensor.strides(), tensor.scalar_type(), *arguments.device));
        return results.back();
      }));
    }
  }
  std::vector<at::Tensor> writes = arguments.writes, targets;
  writes.insert(writes.end(), results.begin(), results.end());
  for (const at::Tensor& result : results)
    targets.push_back(on_host(result));
  launch(instance(op, arguments), arguments.reads, writes,
         [op, values = for_later(arguments), targets]() mutable {
           Stack run = values;
           op.callBoxed(run);
           if (targets.empty()) return;
           std::size_t next = 0;
           for (std::size_t i = 0; i < run.size(); ++i) {
             const auto& result = op.schema().returns()[i];
             if (result.alias_info() && result.alias_info()->isWrite()) continue;
             for (const at::Tensor& tensor : tensors_of(run[i]))
               targets.at(next++).copy_(tensor);
           }
         });
  give_back(op, arguments, *stack, std::move(fresh));
}

// Fused attention, which has other names on a CPU.

std::int64_t fused_choice(const at::Tensor& q, const at::Tensor&, const at::Tensor&,
                          const std::optional<at::Tensor>&, double, bool, std::optional<double>,
                          bool) {
  const bool half = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  return static_cast<std::int64_t>(half ? at::SDPBackend::flash_attention
                                        : at::SDPBackend::efficient_attention);
}

std::tuple<at::Tensor, at::Tensor> attention(const char* name, const at::Tensor& q,
                                             const at::Tensor& k, const at::Tensor& v,
                                             std::optional<double> scale) {
  // Laid out as a GPU's are: [B, n, H, d] behind [B, H, n, d].
  const at::Tensor out =
      at::empty({q.size(0), q.size(2), q.size(1), v.size(3)}, q.options()).transpose(1, 2);
  const at::Tensor sums =
      at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
  launch(name, {q, k, v}, {out, sums},
         [q = on_host(q), k = on_host(k), v = on_host(v), out = on_host(out), sums = on_host(sums),
          scale] {
           const auto wide = [](const at::Tensor& x) { return x.to(at::kFloat); };
           const double factor = scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
           const at::Tensor scores = at::matmul(wide(q) * factor, wide(k).transpose(-1, -2));
           const at::Tensor all = at::logsumexp(scores, -1);
           out.copy_(at::matmul((scores - all.unsqueeze(-1)).exp_(), wide(v)));
           sums.copy_(all);
         });
  return {out, sums};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor,
           at::Tensor, at::Tensor>
flash_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double, bool, bool,
                std::optional<double> scale) {
  auto [out, sums] = attention("flash attention", q, k, v, scale);
  const at::Tensor none;
  return {out, sums, none, none, q.size(2), k.size(2), none, none, none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_attention(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>&,
    bool, double, bool, std::optional<double> scale) {
  auto [out, sums] = attention("efficient attention", q, k, v, scale);
  const at::Tensor none;
  return {out, sums, none, none};
}

}  // namespace
}  // namespace pretend

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&pretend::fallback>());
}

// Compositions that look for a device's own libraries, and where the CPU's kernel does.
TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  for (const char* whole : {"convolution", "scaled_dot_product_attention"})
    library.impl(whole, torch::CppFunction::makeFromBoxedFunction<&pretend::fallback>());
  library.impl("_fused_sdp_choice", pretend::fused_choice);
  library.impl("_scaled_dot_product_flash_attention", pretend::flash_attention);
  library.impl("_scaled_dot_product_efficient_attention", pretend::efficient_attention);
}
