#pragma once
#include "controller/deployments/deployments.h"
#include "controller/deployments/members.h"
#include "controller/jobs/job_table.h"
#include "controller/plan/machine.h"
#include "controller/supervision/host_figures.h"

namespace troupe::cluster {

/// Plans for the hosts and actors that a cluster has now.
class ClusterPlanner {
 public:
  /// `device`: kind of device that the cluster was started with.
  ClusterPlanner(const Members& members, const Deployments& deployments,
                 const jobs::JobTable& table, const HostFigures& figures, DeviceKind device)
      : members_(members),
        deployments_(deployments),
        table_(table),
        figures_(figures),
        device_(device) {}

  /// Returns the machine that jobs with weights of this type are planned for, by what was measured
  /// of the hosts that are here: of the kind of device that most actors have.
  plan::Machine machine(WeightChoice weight_dtype) const;
  /// Returns the same as `machine`, with the memory of the actor that may hold least.
  plan::Machine least_machine() const;
  /// Same as jobs::plan_again, but with stages as they are loaded already.
  plan::Plan plan_again(const jobs::JobEntry& job, int actors) const;
  /// Plans a request of several jobs, on the degrees that the first job is planned for.
  static plan::Plan plan_batch(const jobs::JobEntry& first, const wire::ImageRequest& request);

 private:
  const Members& members_;
  const Deployments& deployments_;
  const jobs::JobTable& table_;
  const HostFigures& figures_;
  DeviceKind device_;
};

}  // namespace troupe::cluster
