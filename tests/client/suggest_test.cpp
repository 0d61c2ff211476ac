#include "client/cli/suggest.h"

#include "tests/support/doctest.h"

using namespace troupe::cli;

TEST_CASE("edit distance counts additions, losses, changes and swaps") {
  CHECK(edit_distance("steps", "steps") == 0);
  CHECK(edit_distance("stpes", "steps") == 1);
  CHECK(edit_distance("step", "steps") == 1);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
}

TEST_CASE("the nearest word is suggested, a far one is not") {
  const std::vector<std::string> known = {"--steps", "--seed", "--negative-prompt", "--guidance"};
  CHECK(nearest("--stpes", known) == "--steps");
  CHECK(nearest("--negativ-promt", known) == "--negative-prompt");
  CHECK(nearest("--guid", known) == "--guidance");
  CHECK(nearest("--frobnicate", known) == "");
  CHECK(nearest(std::string(1000, 'x'), known) == "");
}
