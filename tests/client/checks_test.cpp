#include "client/cli/options.h"

#include <cmath>
#include <limits>

#include "base/numbers.h"
#include "base/suggest.h"
#include "client/cli/suggest.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::cli;
using List = std::vector<std::string>;

TEST_CASE("numbers in messages are as short as they can be and read back the same") {
  CHECK(troupe::number_text(0.5) == "0.5");
  CHECK(troupe::number_text(20000.0) == "20000");
  CHECK(troupe::number_text(-1.0) == "-1");
  CHECK(troupe::number_text(0.1 + 0.2) == "0.30000000000000004");
  CHECK(troupe::number_text(0.1F) == "0.1");
  CHECK(troupe::number_text(1e9) == "1000000000");
  CHECK(troupe::number_text(1e300) == "1e+300");
  CHECK(troupe::number_text(1e-300) == "1e-300");
  CHECK(troupe::number_text(std::numeric_limits<double>::quiet_NaN()) == "nan");
  CHECK(troupe::number_text(-std::numeric_limits<float>::infinity()) == "-inf");
  CHECK(troupe::number_text(std::numeric_limits<double>::denorm_min()) == "5e-324");
}

TEST_CASE("checks say of a wrong value what it is and what is wanted") {
  const auto says = [](const Check& check, std::string text) { return check(text); };
  const auto n = whole(1, 16384);
  CHECK(says(n, "1").empty());
  CHECK(says(n, "+16384").empty());
  CHECK(says(n, " 2").empty());
  CHECK(says(n, "0") == "0 is out of bounds: a whole number from 1 to 16384 is needed");
  CHECK(says(n, "99999999999999999999").find("out of bounds") != std::string::npos);
  CHECK(says(n, "32.5") == "32.5 is not a whole number");
  CHECK(says(n, "1e3") == "1e3 is not a whole number");
  for (const char* text : {"", "two", "2x", "nan", "0x10", "1 2"})
    CHECK(says(n, text) == "\"" + std::string(text) + "\" is not a number");

  const auto x = number(0, 0.5);
  CHECK(says(x, "0.5").empty());
  CHECK(says(x, "5e-1").empty());
  CHECK(says(x, "0.75") == "0.75 is out of bounds: a number from 0 to 0.5 is needed");
  for (const char* text : {"nan", "inf", "-inf", "much", ""})
    CHECK(says(x, text) == "\"" + std::string(text) + "\" is not a number");
  CHECK(says(number_above(0, 1), "1").empty());
  CHECK(says(number_above(0, 1), "0") ==
        "0 is out of bounds: a number above 0, up to 1, is needed");

  const auto word = one_of({"stale", "none", "all"});
  CHECK(says(word, "all").empty());
  CHECK(says(word, "stal") == "\"stal\" is not stale, none or all; did you mean stale?");
  CHECK(says(word, "NONE") == "\"NONE\" is not stale, none or all; did you mean none?");
  CHECK(says(word, "xyzzyx") == "\"xyzzyx\" is not stale, none or all");
  CHECK(not_one_of("FP16", {"float16"}, {"fp16"}) == "\"FP16\" is not float16; did you mean fp16?");
  CHECK(says(not_empty(), "") == "is empty");
}

TEST_CASE("what was meant: beginnings first, and what other tools call it") {
  const List verbs = {"start", "status", "stop", "logs", "--version"};
  CHECK(nearest("stat", verbs) == "status");
  CHECK(nearest("strat", verbs) == "start");
  CHECK(nearest("ls", verbs) == "");
  CHECK(nearest("STATUS", verbs) == "status");
  CHECK(nearest("int8", {"INT8"}) == "INT8");
  CHECK(nearest("version", verbs) == "--version");
  CHECK(nearest("-p", {"--n", "--pp"}) == "");
  CHECK(nearest("--step", {"--step-cache", "--steps"}) == "--steps");
  CHECK(name_here("--num_inference_steps", "run") == "--steps");
  CHECK(name_here("--guidance-scale", "run") == "--guidance");
  CHECK(name_here("--steps", "run") == "");
  CHECK(name_here("--port", "start") == "--listen");
  CHECK(name_here("--port", "serve") == "--http");
  CHECK(name_here("--address", "status") == "--connect");
  CHECK(name_here("--address", "start") == "");
  CHECK(command_here("job") == "troupe submit");
  CHECK(command_here("job", "stop") == "troupe cancel");
}

TEST_CASE("xDiT's options: their names here, or why there is none") {
  const std::pair<const char*, const char*> kNames[] = {
      {"--num_pipeline_patch", "--patches"},
      {"--pipefusion_parallel_degree", "--pp"},
      {"--attn_layer_num_for_pp", "--stages"},
      {"--use_cfg_parallel", "--cfg"},
      {"--data_parallel_degree", "--dp"},
      {"--ulysses_degree", "--ulysses"},
      {"--ring_degree", "--ring"},
      {"--tensor_parallel_degree", "--tp"},
      {"--use_parallel_vae", "--vae-parallel"},
      {"--vae_parallel_size", "--vae-parallel"},
      {"--enable_tiling", "--vae-tiling"},
      {"--warmup_steps", "--warmup"},
      {"--num_inference_steps", "--steps"},
      {"--guidance_scale", "--guidance"},
      {"--num_frames", "--frames"},
      {"--use_cuda_graph", "--cuda-graphs on"},
      {"--use_teacache", "--step-cache teacache"},
      {"--use_fbcache", "--step-cache first-block"},
      {"--enable_sequential_cpu_offload", "--offload blocks"}};
  for (const auto& [theirs, ours] : kNames) {
    CAPTURE(theirs);
    CHECK(name_here(theirs, "run") == ours);
    CHECK(why_not_here(theirs, "run") == "");
  }
  for (const char* theirs :
       {"--split_scheme", "--use_torch_compile", "--enable_model_cpu_offload",
        "--no_use_resolution_binning", "--rng", "--clip-skip", "--vae-on-cpu", "--mode"}) {
    CAPTURE(theirs);
    CHECK(name_here(theirs, "run") == "");
    CHECK(why_not_here(theirs, "run").find("leave it out") != std::string::npos);
  }
}

TEST_CASE("an error is one line without the tags of the rooms it went through") {
  CHECK(one_line("[join] [control] ipc:///a: no\nway.") == "ipc:///a: no way");
  CHECK(one_line("f.png: [read_png_text] not a PNG file") == "f.png: not a PNG file");
  CHECK(one_line("init latents are [1, 4, 8, 8]") == "init latents are [1, 4, 8, 8]");
}
