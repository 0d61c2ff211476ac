#pragma once
#include <functional>
#include <memory>

#include "controller/app/live_environment.h"
#include "controller/jobs/job_runner.h"
#include "tests/controller/endpoints.h"
#include "tests/controller/none_stuck.h"
#include "tests/support/doctest.h"

namespace troupe::test {

/// The rooms of a controller in which jobs run, behind its doors. Who is at the other end of the
/// doors is the test's own.
struct JobRooms : Endpoints {
  using Change = std::function<void(jobs::JobRunner::Tools&)>;
  using Around = std::function<std::unique_ptr<cluster::Environment>(cluster::LiveEnvironment&)>;

  /// `change`: what the runner is given beyond its rooms. `around`: what all rooms but the doors
  /// take for the world, in the place of the real one.
  explicit JobRooms(const Change& change = {}, const Around& around = {})
      : around(around ? around(live) : nullptr),
        environment(this->around ? *this->around : live),
        runner(tools(change)) {
    deployments.listen(runner);
    deployments.listen(stuck);
  }

  cluster::Members members{"secret"};
  jobs::JobTable table{8, 8};
  cluster::LiveEnvironment live{io, server, blob_server, blobs, {}};
  std::unique_ptr<cluster::Environment> around;
  cluster::Environment& environment;
  cluster::Deployments deployments{environment, members};
  recorder::Recorder recorder;
  jobs::JobRunner runner;
  NoneStuck stuck;

 private:
  jobs::JobRunner::Tools tools(const Change& change) {
    jobs::JobRunner::Tools tools{.environment = environment,
                                 .members = members,
                                 .deployments = deployments,
                                 .table = table,
                                 .recorder = &recorder};
    if (change) change(tools);
    return tools;
  }
};

}  // namespace troupe::test
