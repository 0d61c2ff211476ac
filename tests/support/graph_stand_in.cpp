// A recorder of LibTorch's calls on a CPU, in the place of libtroupe_cuda_graph.so
// (TROUPE_CUDA_GRAPH names it; TROUPE_CPU_KERNELS=library makes every kernel such a call). It has
// what tells a CUDA graph from calling the code again: decisions of the host are those of when it
// was recorded, so are the addresses, and a recording changes nothing until it is replayed. What a
// replay does not compute anew is NaN.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <stdexcept>
#include <vector>

#include "kernels/graph_recorder.h"

namespace troupe::testing {
namespace {

constexpr auto kRecording = c10::DispatchKey::TESTING_ONLY_GenericMode;

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  std::vector<at::Tensor> found;
  if (value.isTensor()) {
    if (value.toTensor().defined()) found.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& each : value.toTensorVector())
      found.push_back(each);
  } else if (value.isList()) {
    for (const c10::IValue& each : value.toListRef())
      for (const at::Tensor& tensor : tensors_of(each))
        found.push_back(tensor);
  }
  return found;
}

class Recording final : public kernels::GraphRecorder {
 public:
  ~Recording() override { stop(); }

  void begin() override {
    current_ = this;
    c10::impl::tls_set_dispatch_key_included(kRecording, true);
  }
  void end() override {
    stop();
    put_back();
    for (const at::Tensor& tensor : made_)
      std::memset(tensor.storage().mutable_data(), 0xff, tensor.storage().nbytes());
    made_.clear();
    own_.clear();
  }
  void cancel() override {
    stop();
    put_back();
    calls_.clear();
  }
  void replay() override {
    for (const Call& call : calls_) {
      torch::jit::Stack stack = call.arguments;
      call.op.callBoxed(stack);
      for (std::size_t i = 0; i < call.results.size(); ++i) {
        const auto now = tensors_of(stack[i]), then = tensors_of(call.results[i]);
        for (std::size_t j = 0; j < then.size(); ++j)
          if (now[j].storage().data() != then[j].storage().data()) then[j].copy_(now[j]);
      }
    }
  }

  void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const std::string name = op.schema().name();
    for (const char* waits : {"aten::item", "aten::_local_scalar_dense", "aten::nonzero",
                              "aten::equal", "aten::is_nonzero"})
      if (name == waits) throw std::runtime_error(name + " waits for the device");
    const std::size_t count = op.schema().arguments().size();
    Call one{
        op, torch::jit::Stack(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end()), {}};
    for (std::size_t i = 0; i < count; ++i) {
      const auto* alias = op.schema().arguments()[i].alias_info();
      if (alias && alias->isWrite())
        for (const at::Tensor& written : tensors_of(one.arguments[i]))
          keep(written);
    }
    op.callBoxed(stack);
    one.results.assign(stack->end() - static_cast<std::ptrdiff_t>(op.schema().returns().size()),
                       stack->end());
    std::set<const void*> given;
    for (const c10::IValue& argument : one.arguments)
      for (const at::Tensor& tensor : tensors_of(argument))
        given.insert(tensor.storage().data());
    for (const c10::IValue& result : one.results) {
      for (const at::Tensor& tensor : tensors_of(result)) {
        if (given.contains(tensor.storage().data()) || tensor.storage().nbytes() == 0) continue;
        if (own_.insert(tensor.storage().data()).second) made_.push_back(tensor);
      }
    }
    calls_.push_back(std::move(one));
  }

  static Recording* current() { return current_; }

 private:
  struct Call {
    c10::OperatorHandle op;
    torch::jit::Stack arguments, results;
  };
  struct Before {
    at::Tensor tensor;
    std::vector<char> bytes;
  };

  /// Keeps what lay in memory before the recording, if the memory is not the recording's own.
  void keep(const at::Tensor& written) {
    const auto* data = static_cast<const char*>(written.storage().data());
    if (own_.contains(data) || before_.contains(data)) return;
    before_[data] = {written, std::vector<char>(data, data + written.storage().nbytes())};
  }
  void put_back() {
    for (const auto& [data, before] : before_)
      std::copy(before.bytes.begin(), before.bytes.end(),
                static_cast<char*>(before.tensor.storage().mutable_data()));
    before_.clear();
  }
  void stop() {
    if (current_ != this) return;
    c10::impl::tls_set_dispatch_key_included(kRecording, false);
    current_ = nullptr;
  }

  static thread_local Recording* current_;
  std::vector<Call> calls_;
  std::vector<at::Tensor> made_;
  std::set<const void*> own_;  // memory that was taken while it was recorded
  std::map<const void*, Before> before_;
};

thread_local Recording* Recording::current_ = nullptr;

void record(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard beyond(kRecording);
  Recording::current()->call(op, stack);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&record>());
}

}  // namespace
}  // namespace troupe::testing

int troupe_graph_version() {
  return troupe::kernels::kGraphLibraryVersion;
}

int troupe_graph_device_type() {
  return static_cast<int>(c10::DeviceType::CPU);
}

void troupe_graph_pool(troupe::kernels::GraphPool* pool) {
  *pool = {1, 1};
}

troupe::kernels::GraphRecorder* troupe_graph_make(int, troupe::kernels::GraphPool) {
  return new troupe::testing::Recording();
}
