#pragma once
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/process/support/fault_cluster.h"
#include "tests/support/doctest.h"
#include "troupe/client.h"

namespace troupe::testing {

// Jobs of the tests that end controllers, and what became of them.

inline Submission job_of(int steps = 12, const std::string& method = "exact") {
  auto submission = demo_job(steps);
  submission.request.method = method;
  submission.request.num_pipeline_patch = method == "exact" ? 1 : 4;
  submission.parallelism = {.pp = 2};
  submission.detached = true;
  return submission;
}

inline JobResult result_of(Client& client, std::uint64_t job) {
  auto result = client.wait(job, std::chrono::seconds(600));
  if (!result) FAIL(result.error().what);
  return std::move(result.value());
}

inline JobResult run(Client& client, const Submission& submission) {
  const auto job = client.submit(submission);
  if (!job) FAIL(job.error().what);
  return result_of(client, job.value());
}

inline nlohmann::json report_of(const JobResult& result) {
  return nlohmann::json::parse(result.report);
}

inline void check_same(const JobResult& one, const JobResult& other) {
  REQUIRE(one.pictures.size() == other.pictures.size());
  CHECK(one.latents->data == other.latents->data);
}

/// Returns the job's state; nothing where the cluster does not know it.
inline std::optional<JobState> state_of(Client& client, std::uint64_t job) {
  const auto jobs = client.jobs();
  if (!jobs) FAIL(jobs.error().what);
  for (const auto& row : jobs.value()) {
    if (row.id == job) return row.state;
  }
  return std::nullopt;
}

}  // namespace troupe::testing
