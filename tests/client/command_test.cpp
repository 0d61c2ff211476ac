#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "client/cli/files.h"
#include "tests/client/run_command.h"
#include "tests/support/doctest.h"
#include "tests/support/patience.h"

using namespace troupe::testing;

namespace {

bool is_one_line(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n') == 1 && text.back() == '\n' &&
         text.rfind("troupe: ", 0) == 0;
}

/// Refused with this exit code, one line on standard error that holds these words, nothing on
/// standard output.
void check_refused(const std::string& arguments, int exit_code,
                   const std::vector<std::string>& words) {
  const CommandResult result = troupe::testing::troupe(arguments);
  INFO("troupe " << arguments << ": " << result.err);
  CHECK(result.exit_code == exit_code);
  CHECK(is_one_line(result.err));
  CHECK(result.out.empty());
  for (const std::string& word : words) {
    INFO(word);
    CHECK(result.err.find(word) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("what a file says stays on its own line, and no terminal obeys it") {
  const Scratch scratch;
  const std::string header =
      R"({"a\nz  F64  [9]\u001b[2J\u009b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  std::string size(8, '\0');
  size[0] = static_cast<char>(header.size());
  const auto file = scratch.file("x.safetensors", size + header + std::string(4, '\0'));
  const auto plain = troupe::testing::troupe("inspect " + file.string());
  CHECK(plain.exit_code == 0);
  CHECK(std::count(plain.out.begin(), plain.out.end(), '\n') == 3);
  CHECK(plain.out.find("a z  F64  [9]?[2J?") != std::string::npos);
  const auto json = troupe::testing::troupe("inspect --json " + file.string()).out;
  CHECK(json.find("\u009b") == std::string::npos);
  CHECK(nlohmann::json::parse(json)["tensors"][0]["name"] == "a\nz  F64  [9]\u001b[2J\u009b");
}

TEST_CASE("help and version") {
  const auto help = troupe::testing::troupe("--help");
  CHECK(help.exit_code == 0);
  for (const char* verb :
       {"status", "submit", "wait", "jobs", "cancel", "stop", "inspect", "Examples:"}) {
    CHECK(help.out.find(verb) != std::string::npos);
  }
  const auto submit = troupe::testing::troupe("submit --help");
  CHECK(submit.exit_code == 0);
  for (const char* option : {"--prompt",       "--negative-prompt", "--height", "--width",
                             "--steps",        "--guidance",        "--seed",   "--n",
                             "--sampler",      "--method",          "--dp",     "--cfg",
                             "--pp",           "--patches",         "--warmup", "--init-latents",
                             "--save-latents", "--output",          "--json",   "--connect",
                             "Examples:"}) {
    INFO(option);
    CHECK(submit.out.find(option) != std::string::npos);
  }
  CHECK(troupe::testing::troupe("--version").out == "troupe 0.1.0\n");
  CHECK(troupe::testing::troupe("").exit_code == 2);
  CHECK(help.out.find("More: docs/commands.md") != std::string::npos);
  for (const char* verb :
       {"", "run", "start", "join", "status", "submit", "wait", "jobs", "cancel", "drain", "stop",
        "repl", "logs", "timeline", "plan", "inspect", "keys"}) {
    CAPTURE(verb);
    const auto text = troupe::testing::troupe(std::string(verb) + " --help").out;
    CHECK(text.find("\nExamples:\n  ") != std::string::npos);
    const auto page = text.find("More: docs/");
    REQUIRE(page != std::string::npos);
    const auto file = text.substr(page + 6, text.find(".md", page) + 3 - page - 6);
    CHECK(std::filesystem::exists(std::string(TROUPE_SOURCE_DIR "/") + file));
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      CAPTURE(line);
      CHECK(std::ranges::count_if(line, [](char c) { return (c & 0xc0) != 0x80; }) <= 80);
    }
  }
  CHECK(troupe::testing::troupe("help").out == help.out);
  CHECK(troupe::testing::troupe("help submit").out == submit.out);
}

TEST_CASE("usage errors name what is wrong and what was probably meant") {
  check_refused("submit --prompt x --stpes 3", 2,
                {"--stpes", "did you mean --steps?", "troupe submit --help"});
  check_refused("submit --frobnicate=3 --prompt x", 2, {"unknown option --frobnicate"});
  check_refused("statsu", 2, {"unknown command statsu", "did you mean status?"});
  check_refused("job submit --prompt x", 2, {"unknown command job: here it is troupe submit"});
  check_refused("job list", 2, {"unknown command job: here it is troupe jobs"});
  check_refused("serve --port 7860", 2, {"unknown option --port: here it is --http"});
  check_refused("serve --api", 2, {"unknown option --api: here it is --http"});
  check_refused("start --head", 2, {"unknown option --head: ", "leave it out"});
  check_refused("start --address auto", 2, {"`troupe join --connect ENDPOINT`"});
  check_refused("submit --prompt x --type q8_0", 2, {"here it is --weight-dtype int8"});
  check_refused("submit --prompt x -n blurry", 2, {"here it is --negative-prompt"});
  check_refused("run --prompt x --offload-to-cpu", 2, {"here it is --offload blocks"});
  check_refused("run --prompt x --device cuda:0", 2, {"\"cuda:0\" is not cpu or cuda; cuda takes"});
  check_refused("--verison", 2, {"--verison", "did you mean --version?"});
  check_refused("submit", 2, {"--prompt"});
  check_refused("submit --prompt x stray", 2, {"stray"});
  check_refused("submit --prompt x --steps many", 2, {"--steps", "many"});
  check_refused("submit --prompt x --steps 0", 2, {"--steps", "0"});
  check_refused("submit --prompt x --steps", 2, {"--steps"});
  check_refused("submit --prompt x --method exact --patches 4", 2,
                {"--method is exact", "--patches is 4"});
  check_refused("submit --prompt x --cfg 2 --guidance 0", 2, {"--cfg is 2", "--guidance"});
  check_refused("submit --prompt x --output out.jpg", 2, {"out.jpg", ".png"});
  check_refused("status --connect nowhere", 2, {"nowhere"});
  check_refused("cancel", 2, {"ID"});
  check_refused("cancel abc", 2, {"abc"});
  check_refused("cancel -1", 2, {"-1", "ID is a number"});
  check_refused("wait x", 2, {"x", "ID is a number"});
  check_refused("inspect", 2, {"FILE"});
  check_refused("submit --prompt x --dtype int8", 2,
                {"\"int8\" is not float32, bfloat16 or float16"});
  check_refused("submit --prompt x --pp two", 2, {"--pp", "\"two\" is not a number"});
  check_refused("submit --prompt x --guidance much", 2, {"--guidance", "is not a number"});
  check_refused("submit --prompt x --steps 3 --steps 4", 2, {"--steps is given twice"});
  check_refused("submit --prompt", 2, {"--prompt needs TEXT"});
  check_refused("submit --prompt x --detach --output o.png", 2, {"--output", "--detach"});
  check_refused("submit --prompt x --detach --preview o.png", 2, {"--preview", "--detach"});
  check_refused("submit --prompt x --preview-every 2", 2, {"--preview-every needs --preview"});
  check_refused("submit --prompt x --preview x.jpg", 2, {"--preview", ".png", ".jpg"});
  check_refused("submit --prompt x --save-latents x.pt", 2, {"x.pt", ".safetensors"});
  check_refused("submit --prompt x --detach --timeout 5", 2, {"--timeout", "--detach"});
  check_refused("submit --prompt x --detach --show", 2, {"--show does not go with --detach"});
  check_refused("wait --all --show", 2, {"--show does not go with --all"});
  check_refused("wait --all -q", 2, {"--quiet does not go with --all"});
  check_refused("jobs 3 --limit 2", 2, {"--limit does not go with ID"});
  check_refused("repl 127.0.0.1:1 --connect 127.0.0.1:2", 2,
                {"--connect does not go with ENDPOINT"});
  check_refused("serve --model-plugin /dev/null", 2, {"--model-plugin"});
  check_refused("top --json", 2, {"unknown option --json: `troupe status --json` has it"});
}

TEST_CASE("-- ends the options, and -o=X is -o X") {
  check_refused("inspect -- --nothere", 1, {"--nothere"});
  check_refused("cancel -- -1", 2, {"cancel \"-1\": ID is a number"});
  check_refused("wait -- x", 2, {"wait \"x\": ID"});
  check_refused("jobs 3 -- stray", 2, {"unexpected argument \"stray\""});
  check_refused("jobs -- 3 --json", 2, {"unexpected argument \"--json\""});
  check_refused("-- statsu", 2, {"unknown command statsu", "did you mean status?"});
  check_refused("submit -o=o.jpg x", 2, {"\"o.jpg\": only .png is written"});
  check_refused("submit -qo=o.jpg x", 2, {"\"o.jpg\": only .png is written"});
  check_refused("submit -oa=b.jpg x", 2, {"\"a=b.jpg\": only .png is written"});
  check_refused("submit -p -o=x -s=y", 2, {"--seed: \"y\" is not a whole number"});
  const std::string plan = "plan --json -m=" TROUPE_SOURCE_DIR "/tests/fixtures/tiny-pixart -H=64 ";
  const auto planned = troupe::testing::troupe(plan + "-- '--a dash begins it'");
  CHECK(planned.exit_code == 0);
  CHECK(nlohmann::json::parse(planned.out)["height"] == 64);
  CHECK(troupe::testing::troupe(plan + "-p -- 'no prompt of its own'").exit_code == 2);
}

TEST_CASE("no controller at the address: said with what the kernel says, and not after a wait") {
  for (const char* verb : {"status", "jobs", "cancel 1", "stop", "wait 1", "submit --prompt x"}) {
    check_refused(std::string(verb) + " --connect ipc:///tmp/troupe-none/control.sock", 1,
                  {"ipc:///tmp/troupe-none/control.sock", "no controller",
                   "No such file or directory", "`troupe start`"});
  }
  check_refused("status --connect 127.0.0.1:9", 1,
                {"tcp://127.0.0.1:9", "no controller", "Connection refused"});
  const auto by_environment =
      troupe::testing::troupe("status", "TROUPE_ADDRESS=ipc:///tmp/troupe-other/x.sock");
  CHECK(by_environment.exit_code == 1);
  CHECK(by_environment.err.find("ipc:///tmp/troupe-other/x.sock") != std::string::npos);
  const Scratch scratch;
  const auto by_default =
      troupe::testing::troupe("status", "XDG_RUNTIME_DIR=" + scratch.path.string());
  CHECK(by_default.err.find(scratch / "troupe/control.sock") != std::string::npos);
}

TEST_CASE("standard output that cannot be written is a failure") {
  for (const char* arguments : {"--help", "--version", "help", "submit --help"}) {
    // The last redirection counts: the outer one only opens its file.
    const auto result =
        troupe::testing::troupe(std::string(arguments) + " > /dev/full; exit $?; :");
    INFO(arguments);
    CHECK(result.exit_code == 1);
  }
}

TEST_CASE("plan refuses with the code that a controller would") {
  const auto result = troupe::testing::troupe("plan --model /troupe-none --json");
  CHECK(result.exit_code == 1);
  CHECK(result.out.find("\"code\": \"bad_request\"") != std::string::npos);
}

TEST_CASE("plan --memory-limit names the rank that needs most, wherever it is") {
  for (const std::string stages : {"1,4", "4,1"}) {
    const std::string plan = "plan --model " TROUPE_SOURCE_DIR
                             "/tests/fixtures/tiny-pixart --pp 2 --height 1024 --width 1024 "
                             "--stages " +
                             stages;
    const auto document = nlohmann::json::parse(troupe::testing::troupe(plan + " --json").out);
    const auto& memory = document["memory"];
    REQUIRE(memory.size() == 2);
    const int fullest = memory[1]["peak"] > memory[0]["peak"] ? 1 : 0;
    MESSAGE("stages " << stages << ": rank " << fullest << " needs most");
    const auto refused = troupe::testing::troupe(plan + " --memory-limit 1e-6");
    CHECK(refused.exit_code == 1);
    CHECK(refused.err.find("rank " + std::to_string(fullest) + " needs ") != std::string::npos);
  }
}

TEST_CASE("with --json an error is one document, too") {
  const auto result =
      troupe::testing::troupe("status --json --connect ipc:///tmp/troupe-none/control.sock");
  CHECK(result.exit_code == 1);
  CHECK(result.out.find("\"code\": \"unreachable\"") != std::string::npos);
  CHECK(is_one_line(result.err));
}

TEST_CASE("files that cannot be written or read are refused before anybody is asked") {
  const Scratch scratch;
  const std::string nobody = " --connect ipc:///tmp/troupe-none/control.sock";
  check_refused("submit --prompt x --output " + scratch / "none/out.png" + nobody, 1,
                {"--output", "none"});
  check_refused("submit --prompt x --output " + scratch / "o.png" + " --save-latents " +
                    scratch / "none/l" + nobody,
                1, {"--save-latents", "none"});
  check_refused("submit --prompt x --output " + scratch / "o.png" + " --init-latents " +
                    scratch / "none.safetensors" + nobody,
                1, {"none.safetensors"});
}

TEST_CASE("inspect prints tensors, and refuses what it cannot read") {
  const Scratch scratch;
  troupe::cli::write_file(scratch / "l.safetensors",
                          troupe::cli::latents_file_bytes({{1, 1, 1, 2}, {3, 4}}));
  const auto tensors = troupe::testing::troupe("inspect " + scratch / "l.safetensors");
  CHECK(tensors.exit_code == 0);
  CHECK(tensors.out.find("latents") != std::string::npos);
  CHECK(tensors.out.find("[1, 1, 1, 2]") != std::string::npos);
  troupe::cli::write_file(scratch / "no.png", "GIF89a");
  check_refused("inspect " + scratch / "no.png", 1,
                {"no.png", "neither a PNG nor an MP4 or WebM file"});
  check_refused("inspect " + scratch / "none.png", 1, {"none.png"});
}
