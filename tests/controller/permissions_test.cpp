#include "controller/service/permissions.h"

#include "tests/support/doctest.h"

namespace troupe::service {

using control::ClientRole;

TEST_CASE("a host joins with a client's key for operate, and never with one of the controller's") {
  CHECK_FALSE(host_refusal({"laptop", ClientRole::operate}));
  CHECK_FALSE(host_refusal({"", ClientRole::operate}));  // nobody is asked for keys
  for (const auto role : {ClientRole::own_jobs, ClientRole::all_jobs}) {
    const auto why = host_refusal({"laptop", role});
    REQUIRE(why);
    CHECK(why->ends_with("and a host that joins needs operate"));
  }
  for (const char* issued : {"user actors", "the cluster's actors"}) {
    const auto why = host_refusal({issued, ClientRole::operate});
    REQUIRE(why);
    CHECK(why->find("was issued by the controller") != std::string::npos);
  }
}

TEST_CASE("own jobs are those of the same name") {
  jobs::JobEntry job;
  job.client.user = "alice";
  CHECK(may_see({"alice", ClientRole::own_jobs}, job));
  CHECK_FALSE(may_see({"bob", ClientRole::own_jobs}, job));
  CHECK(may_see({"bob", ClientRole::all_jobs}, job));
  CHECK(may_see({"", ClientRole::operate}, job));
  job.client.user.clear();  // it came in before anybody was asked for a key
  CHECK_FALSE(may_see({"bob", ClientRole::own_jobs}, job));
}

}  // namespace troupe::service
