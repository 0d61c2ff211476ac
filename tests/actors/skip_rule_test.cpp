#include "actors/stage/step_cache.h"

#include <cmath>
#include <vector>

#include "tests/support/doctest.h"

using troupe::actors::SkipRule;

namespace {

SkipRule::Change change(double relative) {
  return {.difference = 8 * relative, .before = 8};
}

}  // namespace

TEST_CASE("the first-block rule compares one change with the threshold") {
  SkipRule rule(0.25, {}, 1, 1);
  CHECK_FALSE(rule.adds_up());
  CHECK_FALSE(rule.knows(0, 0));
  rule.computes(0, 0);
  CHECK(rule.knows(0, 0));
  for (int i = 0; i < 9; ++i)
    CHECK(rule.skips(0, 0, change(0.2)));
  CHECK(rule.skips(0, 0, change(0.25)));
  CHECK_FALSE(rule.skips(0, 0, change(0.2501)));
}

TEST_CASE(
    "TeaCache's rule adds changes up through its polynomial, and begins anew when it computes") {
  SkipRule rule(1, {2, 0, 0.25}, 1, 1);  // 2 x² + 1/4
  CHECK(rule.adds_up());
  rule.computes(0, 0);
  CHECK(rule.skips(0, 0, change(0.5)));         // 0.75
  CHECK_FALSE(rule.skips(0, 0, change(0)));     // 1, not below the threshold
  CHECK(rule.skips(0, 0, change(0.25)));        // 0.375
  CHECK(rule.skips(0, 0, change(0.25)));        // 0.75
  rule.computes(0, 0);                          // without asking
  CHECK(rule.skips(0, 0, change(0.5)));         // 0.75
  CHECK_FALSE(rule.skips(0, 0, change(0.25)));  // 1.125
}

TEST_CASE("every item and patch has a history of its own") {
  SkipRule rule(1, {1, 0}, 2, 3);
  rule.computes(1, 2);
  for (int item = 0; item < 2; ++item) {
    for (int patch = 0; patch < 3; ++patch)
      CHECK(rule.knows(item, patch) == (item == 1 && patch == 2));
  }
  rule.computes(0, 2);
  CHECK(rule.skips(0, 2, change(0.6)));
  CHECK(rule.skips(1, 2, change(0.6)));
  CHECK_FALSE(rule.skips(0, 2, change(0.6)));
  CHECK(rule.skips(1, 2, change(0.3)));
}

TEST_CASE("what cannot be compared is computed") {
  SkipRule first_block(0.5, {}, 1, 1);
  SkipRule teacache(0.5, {1, 0}, 1, 1);
  for (SkipRule* rule : {&first_block, &teacache}) {
    rule->computes(0, 0);
    CHECK_FALSE(rule->skips(0, 0, {.difference = 0, .before = 0}));
    CHECK_FALSE(rule->skips(0, 0, {.difference = 1, .before = 0}));
    CHECK_FALSE(rule->skips(0, 0, {.difference = std::nan(""), .before = 1}));
  }
}
