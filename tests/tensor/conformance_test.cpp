// The conformance suite on the backends of CPUs; tests/gpu runs it on NCCL.
#include "tests/tensor/conformance.h"

#include <set>
#include <string>

#include "tests/tensor/ranks.h"

#include "tests/support/doctest.h"

using namespace troupe::tensor;
using namespace troupe::tensor::testing;

TEST_CASE("every backend of a CPU does what the conformance suite says") {
  std::set<std::string> names;
  for (const auto& of : conformance_cases()) {
    CAPTURE(of.name);
    CHECK(names.insert(of.name).second);
    REQUIRE(!of.sizes.empty());
    for (const Backend backend : cpu_backends()) {
      for (const int size : of.sizes) {
        CAPTURE(to_string(backend));
        CAPTURE(size);
        CHECK_NOTHROW(on_ranks(backend, size, [&](Member& member) {
          Rank me{member.device, member.addresses, member.group.name(), member.rank,
                  size,          at::kCPU,         member.group};
          of.body(me);
        }));
      }
    }
  }
}
