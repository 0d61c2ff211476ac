#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "tests/client/run_command.h"
#include "tests/support/doctest.h"

using namespace troupe::testing;

namespace {

const std::string kBuilt = TROUPE_BINARY_DIR "/bin/";
const std::string kScripts = TROUPE_SOURCE_DIR "/scripts/";
const std::string kPython = "python3 -B " TROUPE_SOURCE_DIR "/benchmarks/";

void check_help(const std::string& command) {
  CAPTURE(command);
  const auto help = run_command(command + " --help");
  CHECK(help.exit_code == 0);
  CHECK(help.out.size() > 40);
  CHECK(help.err.empty());
}

/// Refused as usage, in one line that has `words`, before anything is done.
void check_wrong(const std::string& command, const std::string& words) {
  CAPTURE(command);
  const auto result = run_command(command);
  CAPTURE(result.err);
  CHECK(result.exit_code == 2);
  CHECK(result.out.empty());
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK(result.err.find(words) != std::string::npos);
  CHECK(result.err.find("--help)") != std::string::npos);
}

/// The names between two pieces of a line, whether "a b" or "a, b or c".
std::vector<std::string> names_in(const std::string& line, const std::string& from,
                                  const std::string& to) {
  const auto begin = line.find(from);
  const auto end = line.find(to, begin);
  if (begin == std::string::npos || end == std::string::npos) return {};
  std::string text = line.substr(begin + from.size(), end - begin - from.size());
  std::erase(text, ',');
  std::istringstream words(text);
  std::vector<std::string> names;
  for (std::string word; words >> word;)
    if (word != "or") names.push_back(word);
  return names;
}

}  // namespace

TEST_CASE("benchmarks and the tests' programs: help, and what is no option") {
  for (const char* name :
       {"control_plane", "actor_calls", "planner_error", "planner_memory", "throughput", "faults",
        "soak", "tensor_plane", "pixart_forward", "quantized_products", "troupe_sim"}) {
    check_help(kBuilt + name);
    check_wrong(kBuilt + name + (std::string(name) == "actor_calls" ? " x" : "") + " --bogus",
                std::string(name) + ": unknown option --bogus");
  }
}

#ifdef TROUPE_WITH_EXAMPLES
TEST_CASE("examples: help, and what is wrong, by their usage") {
  struct Example {
    std::string name, wrong;
  };
  for (const auto& [name, wrong] : {Example{"submit", "ipc:///nobody/c prompt"},
                                    {"counter", "ipc:///nobody/c more"},
                                    {"counter", ""},
                                    {"ring", "ipc:///nobody/c 0"},
                                    {"ring", "--bogus 3"}}) {
    const std::string program = kBuilt + "troupe_example_" + name;
    CAPTURE(program + " " + wrong);
    check_help(program);
    const auto refused = run_command(program + " " + wrong);
    CHECK(refused.exit_code == 2);
    CHECK(refused.out.empty());
    CHECK(refused.err.starts_with("usage: "));
    CHECK(refused.err == run_command(program + " --help").out);
  }
  CHECK(run_command(kBuilt + "troupe_example_counter ipc:///nobody/c").exit_code == 1);
}
#endif

TEST_CASE("benchmarks and the tests' programs: values") {
  check_wrong(kBuilt + "control_plane --calls 0", "--calls: 0 is out of bounds");
  check_wrong(kBuilt + "control_plane --window x", "--window: \"x\" is not a number");
  check_wrong(kBuilt + "actor_calls", "ENDPOINT is required");
  check_wrong(kBuilt + "actor_calls ipc:///x --spawns -1", "--spawns: -1");
  check_wrong(kBuilt + "tensor_plane --backend gloo", "\"gloo\" is not shm or tcp");
  check_wrong(kBuilt + "tensor_plane --repeats", "--repeats");
  check_wrong(kBuilt + "pixart_forward 0", "THREADS: 0 is out of bounds");
  check_wrong(kBuilt + "pixart_forward 1 2 3 4", "unexpected argument \"4\"");
  check_wrong(kBuilt + "quantized_products 1 nan", "SECONDS: \"nan\" is not a number");
  check_wrong(kBuilt + "planner_error x", "unexpected argument \"x\"");
  check_wrong(kBuilt + "throughput --stages 5,x", "\"x\" is not a number");
  check_wrong(kBuilt + "faults --times 61", "from 1 to 60");
  check_wrong(kBuilt + "soak --minutes 0", "a number above 0");
  check_wrong(kBuilt + "soak --seed -1", "--seed: -1");
  check_wrong(kBuilt + "troupe_sim 0", "SEEDS: 0");
  check_wrong(kBuilt + "troupe_sim --play nonsense", "\"nonsense\" is not ");
  check_wrong(kBuilt + "troupe_sim --seed 3", "--seed");
  const auto model = run_command(kBuilt + "planner_memory /nothere");
  CHECK(model.exit_code == 1);
  CHECK(std::count(model.err.begin(), model.err.end(), '\n') == 1);
}

TEST_CASE("benchmarks in Python: before anything heavy is imported") {
  for (const std::string name :
       {"gloo_tensor_plane.py", "methods.py", "pipeline.py", "quality.py x", "quality_kv.py",
        "quantized.py x", "quantized_fp8.py x", "seams.py x", "staleness.py x", "step_cache.py x",
        "unet_patches.py x"}) {
    check_help(kPython + name);
    check_wrong(kPython + name + " --bogus", "--bogus");
  }
  // A Python without any others' modules, scipy of the captions' reader included.
  const auto bare = run_command("python3 -S -B " TROUPE_SOURCE_DIR "/benchmarks/quality.py " +
                                (Scratch() / "out"));
  CHECK(bare.exit_code == 1);
  CHECK(bare.err.find("this Python has no numpy and no PIL and no safetensors and no scipy: take "
                      ".deps/reference/bin/python") != std::string::npos);
  for (const char* steps : {"0", "x", "-3", "1.5"})
    check_wrong(kPython + "pipeline.py --steps " + steps, "is not a whole number from 1 to 1000");
  check_wrong(kPython + "methods.py --model /nothere", "\"/nothere\" is no model folder");
  check_wrong(kPython + "quantized.py x --random 1,2,3", "is not HEADS,BLOCKS");
}

TEST_CASE("scripts: help, and what is wrong is said before anything is done") {
  for (const char* name :
       {"demo", "test", "setup", "fuzz", "gpu-check", "sim", "slurm", "soak", "fixtures",
        "make-random-model", "published-size", "lines-per-family", "reference", "tree-size"}) {
    check_help(kScripts + name);
    check_wrong(kScripts + name + " --bogus", std::string(name) + ": unknown option --bogus");
  }
  for (const char* wrong : {"-j x", "-jx", "-j 0", "-j -3", "-j 010", "--fuzz x", "--fuzz 1.5"})
    check_wrong(kScripts + "test " + wrong, "is not a whole number from 1 to ");
  check_wrong(kScripts + "test -j", "-j needs a value");
  check_wrong(kScripts + "test --asan --tsan", "--asan does not go with --tsan");
  check_wrong(kScripts + "fuzz -5", "SECONDS: \"-5\" is not a whole number");
  check_wrong(kScripts + "fuzz -t nothing", "-t: \"nothing\" is not known; known are wire");
  check_wrong(kScripts + "sim x", "SEEDS: \"x\" is not a whole number");
  check_wrong(kScripts + "sim --seed 3", "--seed needs the --play");
  // As the program has them, which is not built for this.
  check_wrong(kScripts + "sim --play nonsense", "--play: \"nonsense\" is not known; known are ");
  const auto script = run_command(kScripts + "sim --play nonsense").err;
  const auto program = run_command(kBuilt + "troupe_sim --play nonsense").err;
  const auto known = names_in(script, "known are ", " (see");
  CHECK(known.size() > 20);
  CHECK(known == names_in(program, " is not ", " (see"));
  check_wrong(kScripts + "soak 0", "MINUTES: \"0\" is not a number above 0");
  check_wrong(kScripts + "soak --actors 65", "--actors: \"65\" is not a whole number from 1 to 64");
  check_wrong(kScripts + "slurm --port x -- true", "--port: \"x\" is not a whole number");
  check_wrong(kScripts + "slurm", "no COMMAND");
  check_wrong(kScripts + "fixtures nothing", "PART: \"nothing\" is not known");
  check_wrong(kScripts + "make-random-model", "FOLDER is missing");
  check_wrong(kScripts + "make-random-model x --like /nothere",
              "--like: \"/nothere\" is no model folder");
  check_wrong(kScripts + "setup --cuda --cpu", "--cuda does not go with --cpu");
  check_wrong(kScripts + "gpu-check 1 --only '['", "\"[\" is not a regular expression");
  check_wrong(kScripts + "demo --steps x", "--steps: \"x\" is not a whole number");
  check_wrong(kScripts + "demo caption more", "unexpected argument \"more\"");
  check_wrong(kScripts + "demo --seed", "--seed needs a value");
}
