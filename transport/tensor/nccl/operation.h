#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/tensor/nccl/communicator.h"

namespace troupe::tensor::nccl {

/// Operation that a communicator has queued on its stream: done once the event behind it has
/// passed.
class Communicator::Operation : public WorkState {
 public:
  Operation(std::shared_ptr<Communicator> owner, std::string what, std::vector<at::Tensor> tensors,
            Event event)
      : owner_(std::move(owner)),
        what_(std::move(what)),
        tensors_(std::move(tensors)),
        event_(std::move(event)) {}

  bool done() override;
  void wait(Deadline deadline) override;
  void join_stream(Deadline deadline) override;

  // All of this under the owner's mutex.
  const Event& event() const { return event_; }
  bool succeeded() const { return succeeded_; }
  void succeed() { succeeded_ = true; }
  void release() { tensors_.clear(); }
  /// Takes the event for another operation, once nobody asks this operation for it any more.
  Event take_event() { return std::move(event_); }

 private:
  std::shared_ptr<Communicator> owner_;
  std::string what_;
  std::vector<at::Tensor> tensors_;
  Event event_;
  bool succeeded_ = false;
};

}  // namespace troupe::tensor::nccl
