#include "models/dit/joint_block.h"

#include <ATen/ATen.h>

#include "tests/support/doctest.h"

using namespace troupe::models;

TEST_CASE("a joint model's text has a pooled vector where its family has one, and no other") {
  const at::Tensor states = at::rand({3, 5, 8}), pooled = at::rand({3, 4});
  const at::Tensor mask = at::ones({3, 5}, at::kBool);
  const auto caption = [&](const at::Tensor& vector, bool embeds, int64_t width) {
    return joint_caption("family", {states, vector}, mask, embeds, 8, width);
  };
  for (const bool embeds : {true, false}) {
    CAPTURE(embeds);
    const auto with = caption(pooled, embeds, 4), without = caption({}, embeds, 0);
    CHECK(with->batch() == 3);
    CHECK(without->batch() == 3);
    CHECK(without->items(1, 3)->batch() == 2);
    CHECK(with->bytes() - without->bytes() == static_cast<int64_t>(pooled.nbytes()));
    CHECK(without->bytes() == (embeds ? static_cast<int64_t>(states.nbytes()) : 0));
  }
  CHECK_THROWS_AS(caption({}, true, 4), std::invalid_argument);
  CHECK_THROWS_AS(caption(pooled, true, 0), std::invalid_argument);
  CHECK_THROWS_AS(caption(pooled, true, 5), std::invalid_argument);
}
