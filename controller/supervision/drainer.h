#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "controller/deployments/deployments.h"
#include "controller/deployments/environment.h"
#include "controller/deployments/members.h"
#include "controller/jobs/job_runner.h"

namespace troupe::cluster {

/// Empties places without losing a job: no new jobs go there, running ones end there or go on
/// elsewhere, then the actors leave and the places stay empty.
class Drainer {
 public:
  struct Tools {
    Environment& environment;
    Members& members;
    Deployments& deployments;
    jobs::JobRunner& runner;
  };

  explicit Drainer(Tools tools) : tools_(tools) {}

  /// Drains the places. With `now`, jobs leave at once where there are idle actors for all that
  /// their deployment loses, or where they are elastic. Answers what becomes of the places, for
  /// people.
  std::string drain(const std::vector<ActorId>& places, bool now);
  /// Sends nobody away from now on.
  void stop() { stopped_ = true; }

 private:
  bool can_move(const Deployment& deployment) const;
  void move_jobs(const Deployments::Ptr& deployment);
  void look();
  /// True when there is no more to do at the place.
  bool empty(ActorId id);

  Tools tools_;
  std::map<ActorId, double> leaving_;  // places told to leave, since when
  std::set<ActorId> draining_;
  bool watching_ = false;
  bool stopped_ = false;
};

}  // namespace troupe::cluster
