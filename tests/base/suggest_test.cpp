#include "base/suggest.h"

#include "tests/support/doctest.h"

using namespace troupe;

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
  CHECK(nearest("--guidance2", {"--guidance", "--guidance-2"}) == "--guidance-2");
  CHECK(nearest("--guidance_2", {"--guidance", "--guidance-2"}) == "--guidance-2");
}

TEST_CASE("nothing is suggested that shares little with what was typed") {
  const std::vector<std::string> options = {"--dp",     "--cfg", "--n",     "--fps",
                                            "--prompt", "--pp",  "--steps", "--vae-tiling"};
  for (const char* word : {"--cpu", "--gpu", "--num", "--fast", "--size", "--xyz", "--tp", "-x",
                           "--negprompt", "--stop"})
    CHECK(nearest(word, options) == "");
  CHECK(nearest("--setps", options) == "--steps");
  CHECK(nearest("-prompt", options) == "--prompt");
  CHECK(nearest("--vae", options) == "--vae-tiling");
  const std::vector<std::string> verbs = {"wait", "stop", "join", "run", "keys", "status"};
  for (const char* word : {"exit", "quit", "show", "down", "paint", "ls", "up"})
    CHECK(nearest(word, verbs) == "");
  CHECK(nearest("wiat", verbs) == "wait");
  CHECK(nearest("key", verbs) == "keys");
  CHECK(nearest("gpu", {"cpu", "cuda"}) == "");
  CHECK(nearest("", verbs) == "");
  CHECK(nearest("--", options) == "");
}
