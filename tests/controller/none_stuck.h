#pragma once
#include "controller/deployments/deployments.h"
#include "tests/support/doctest.h"

namespace troupe::test {

/// Fails when an actor does not answer the end of its epoch.
struct NoneStuck final : cluster::DeploymentListener {
  void actor_stuck(cluster::ActorId) override { FAIL("an actor is stuck"); }
};

}  // namespace troupe::test
