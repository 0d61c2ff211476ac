#include <nlohmann/json.hpp>

#include "tests/process/support/family_checks.h"
#include "tests/support/made.h"

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("biases, DoRA and LoKr make diffusers' pictures, at any degrees") {
  if (lacks_made_fixtures()) return;
  Reference reference("lora_kinds");
  CHECK(reference.cases().size() == 3);
  Worst worst;
  for (const auto& of : reference.cases()) {
    const std::string name = of.at("name");
    CAPTURE(name);
    const auto expected = reference.floats(of, "latents");
    for (const Parallelism& mix :
         {Parallelism{}, Parallelism{.pp = 2, .tp = 2}, Parallelism{.ulysses = 2, .tp = 4}}) {
      auto submission = reference.submission(of, mix);
      for (const auto& lora : of.at("loras"))
        submission.request.loras.push_back(
            {(kMade / lora.at("file").get<std::string>()).string(), lora.at("scale")});
      const double error = range_error(shared_cluster().run(submission).latents.value(), expected);
      CHECK(error <= kDegreesBound);
      worst.see(error, name);
    }
  }
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}
