#pragma once
#include <map>
#include <string>
#include <vector>

#include "controller/jobs/results.h"

namespace troupe::jobs {

/// Several jobs that compute as one: hands to each what is its own, pictures, latents, previews,
/// warnings and a report, and ends when all of them have left it.
class Batch final : public Results {
 public:
  /// `entry`: the batch's in the table, until the batch is closed.
  Batch(RunTools& tools, BatchEntry& entry) : Results(tools), entry_(entry) {}

  std::string name() const override;
  std::vector<JobEntry*> entries() override;
  void waits_for(const std::string& what) override;
  void progress(const std::vector<std::string>& warnings) override;
  void warn(const std::vector<wire::Warning>& warnings) override;
  void take(const Origin& from, const wire::BlobRef& own, const std::string& bytes) override;
  /// A batch is in no journal: its jobs begin anew with the next controller.
  void boundary_kept() override {}
  void drop() override;
  void succeed(const RunFigures& figures) override;
  /// Fails the batch: its jobs wait again, each for itself.
  void fail(const wire::Failure& why) override;
  void end(JobState state, const wire::Failure& failure) override;
  /// Charges the member with its part of the batch's time, and lets go of what the batch has for
  /// it.
  void leaving(JobEntry& member) override;
  bool is_left() override;

 private:
  /// Pictures, latents and previews that came for one of the jobs.
  struct Portion {
    std::map<std::int32_t, wire::BlobRef> pictures;  // by picture of the batch
    std::map<std::int32_t, wire::BlobRef> latents;   // by dp replica
    Interim interim;
  };

  std::vector<JobId> living() const { return tools_.table.members_of(entry_.run.id); }
  JobEntry& job(JobId id) { return *tools_.table.find(id); }
  void say_who_is_in_it();
  /// Hands to each job its own rows of a replica's latents.
  void take_latents(const Origin& from, const wire::BlobRef& whole, const std::string& bytes);
  /// Returns the job that the preview or picture belongs to; null when the job has left.
  const BatchMember* owner_of(const Origin& from) const;
  /// Charges a member with its part of the batch's time, by pictures.
  void charge_part(const BatchMember& member, double now);
  void succeed(JobEntry& job, const RunFigures& figures);
  void drop(Portion& portion);
  void close(JobState state, const std::string& why = {});

  BatchEntry& entry_;
  std::map<JobId, Portion> portions_;
  bool closing_ = false;  // all its jobs are leaving it
};

}  // namespace troupe::jobs
