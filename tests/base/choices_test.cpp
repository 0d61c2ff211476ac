#include "base/choices.h"

#include <set>

#include "base/text.h"
#include "tests/support/doctest.h"

using namespace troupe;

TEST_CASE_TEMPLATE("every value of a choice has a name of its own, and is found by it", E, Method,
                   KvUse, ComputeType, WeightChoice, OffloadChoice, NoiseType, StepCacheRule,
                   GroupNormMoments, PatchExchange, ProgressContent, DeviceKind) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < kNamesOf<E>.size(); ++i) {
    const auto value = static_cast<E>(i);
    CHECK(is_valid(value));
    CHECK(names.insert(to_string(value)).second);
    CHECK(parse_choice<E>(to_string(value)) == value);
  }
  CHECK_FALSE(is_valid(static_cast<E>(kNamesOf<E>.size())));
  CHECK_FALSE(parse_choice<E>("magic"));
  CHECK_FALSE(parse_choice<E>("Exact"));
}

TEST_CASE("what can be chosen, for people") {
  CHECK(choices_text(choice_words<Method>()) == "exact, pipefusion or distrifusion");
  CHECK(choices_text(choice_words<WeightChoice>()) == "int8 or fp8");
  CHECK(choices_text({"one"}) == "one");
}
