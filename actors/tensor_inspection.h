#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "actors/inspect.h"
#include "actors/stage/job_context.h"
#include "actors/worker_jobs.h"
#include "transport/wire/tensor_messages.h"

namespace troupe::actors {

/// Answers questions about the tensors of jobs, between two messages of the work loop.
class TensorInspection {
 public:
  TensorInspection(const WorkerTools& tools, Stages& stages, const WorkerJobs& jobs)
      : tools_(tools), stages_(stages), jobs_(jobs), blobs_(tools.blobs) {}

  /// Answers a question, unless the answer at its deadline has been given already.
  void answer(Inspection& inspection);

 private:
  void answer(const wire::Header& header, const wire::GetTensors& question);
  void answer(const wire::Header& header, const wire::GetSlice& question);
  void answer(const wire::Header& header, const wire::GetLatentRows& question);
  void answer(const wire::Header& header, const wire::RenderLatents& question);
  wire::BlobRef publish(const std::string& name, std::string bytes,
                        std::vector<std::int64_t> shape);

  const WorkerTools& tools_;
  Stages& stages_;
  const WorkerJobs& jobs_;
  PublishedBlobs blobs_;
  std::deque<control::BlobId> kept_;  // the newest few
};

/// Mean, least and greatest of the finite values, and how many are not.
wire::TensorRow tensor_row(const std::string& name, const at::Tensor& tensor);
/// Throws std::invalid_argument when a range does not fit or too many values are asked for.
wire::TensorSlice tensor_slice(const at::Tensor& tensor,
                               const std::vector<wire::SliceRange>& ranges);

}  // namespace troupe::actors
