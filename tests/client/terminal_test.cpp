// What helps a person at a shell: completion, manual pages, defaults, colours, names of elsewhere.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "client/cli/show_picture.h"
#include "client/cli/terminal.h"
#include "tests/client/fake_controller.h"
#include "tests/client/run_command.h"
#include "tests/support/doctest.h"
#include "tests/support/patience.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

const std::string kTinyFolder = TROUPE_SOURCE_DIR "/tests/fixtures/tiny-pixart";

bool installed(const std::string& program) {
  return std::system(("command -v " + program + " > /dev/null 2>&1").c_str()) == 0;
}

/// A script of the command's own, for a shell to read.
std::string script_for(const std::string& shell, const Scratch& scratch) {
  const auto made = troupe::testing::troupe("completion " + shell);
  REQUIRE(made.exit_code == 0);
  std::ofstream(scratch / shell) << made.out;
  return scratch / shell;
}

/// Returns how pictures are shown on a terminal that the environment calls `term`, and that answers
/// with `attributes`, however late, when it is asked for them.
cli::PictureProtocol protocol_on_terminal(const char* term, const std::string& attributes) {
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  REQUIRE(child >= 0);
  if (child == 0) {
    setenv("TERM", term, 1);
    unsetenv("TERM_PROGRAM");
    _exit(static_cast<int>(cli::picture_protocol(kPatience)));
  }
  answer_terminal(terminal, attributes);
  int status = 0;
  waitpid(child, &status, 0);
  return static_cast<cli::PictureProtocol>(WEXITSTATUS(status));
}

}  // namespace

TEST_CASE("bash completes commands, options, words, files and folders") {
  const Scratch scratch;
  const auto script = script_for("bash", scratch);
  std::filesystem::create_directory(scratch.path / "models");
  std::ofstream(scratch / "one.png") << "x";
  std::ofstream(scratch / "two.txt") << "x";
  const auto choices = [&](const std::string& words) {
    std::ofstream(scratch / "ask")
        << "source " << script << "\ncd " << scratch.path.string() << "\nCOMP_WORDS=(" << words
        << ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_troupe 2>/dev/null\necho "
           "\"${COMPREPLY[@]}\"\n";
    return run_command("bash --norc " + scratch / "ask").out;
  };
  CHECK(choices("troupe su") == "submit\n");
  CHECK(has(choices("troupe ''"), "run start"));
  CHECK(choices("troupe run --neg") == "--negative-prompt\n");
  CHECK(choices("troupe run --device ''") == "cpu cuda\n");
  CHECK(choices("troupe run --method = pipe") == "pipefusion\n");
  CHECK(choices("troupe start --model mo") == "models\n");
  CHECK(choices("troupe run --preview o") == "one.png\n");
  CHECK(choices("troupe run --preview t") == "\n");
  CHECK(choices("troupe completion f") == "fish\n");
  CHECK(choices("troupe man su") == "submit\n");
  CHECK(choices("troupe help su") == "submit\n");
  CHECK(choices("troupe keys r") == "role remove\n");
  CHECK(choices("troupe inspect -- on") == "one.png\n");
  CHECK(choices("troupe status -- --j") == "\n");
  CHECK(has(choices("troupe logs co"), "controller"));
}

TEST_CASE("words of a command that is printed are in quotes where a shell needs them") {
  CHECK(cli::shell_word("/models/flux1-dev-Q8_0.gguf") == "/models/flux1-dev-Q8_0.gguf");
  CHECK(cli::shell_word("my model.gguf") == "'my model.gguf'");
  CHECK(cli::shell_word("it's; $HOME") == "'it'\\''s; $HOME'");
  CHECK(cli::shell_word("") == "''");
}

TEST_CASE("zsh and fish read their scripts, where they are installed") {
  const Scratch scratch;
  for (const std::string shell : {"zsh", "fish"}) {
    const auto script = script_for(shell, scratch);
    if (!installed(shell)) {
      MESSAGE(shell << " is not installed: its script was made, and not read");
      continue;
    }
    const auto read = run_command(shell + " --no-exec " + script);
    INFO(read.err);
    CHECK(read.exit_code == 0);
  }
}

TEST_CASE("manual pages: one for each command, which groff takes without a warning") {
  const Scratch scratch;
  const auto made = troupe::testing::troupe("man --write " + scratch / "man1");
  REQUIRE(made.exit_code == 0);
  for (const char* page : {"troupe.1", "troupe-run.1", "troupe-top.1"})
    CHECK(std::filesystem::exists(scratch.path / "man1" / page));
  CHECK(has(read_all(scratch / "man1/troupe-run.1"), ".SH USUAL OPTIONS"));
  CHECK(troupe::testing::troupe("man nonsense").exit_code == 2);
  if (!installed("groff")) return;
  for (const auto& page : std::filesystem::directory_iterator(scratch.path / "man1")) {
    const auto shown = run_command("groff -man -Tutf8 -ww -P-c " + page.path().string());
    INFO(page.path() << ": " << shown.err);
    CHECK(shown.exit_code == 0);
    CHECK(shown.err.empty());
  }
}

TEST_CASE("defaults: the command line, else the environment, else the file, else our own") {
  const Scratch scratch;
  std::ofstream(scratch / "config.toml")
      << "# mine\nsteps = 7\nmodel = \"" << kTinyFolder
      << "\"\n[plan]\nheight = 64\nwidth = 96\n[run]\nsteps = 9\n";
  const std::string file = "TROUPE_CONFIG=" + scratch / "config.toml";
  const auto plan = [&](const std::string& arguments, const std::string& before) {
    const auto result = troupe::testing::troupe("plan --json " + arguments, before);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    return nlohmann::json::parse(result.out);
  };
  CHECK(plan("", file)["steps"] == 7);
  CHECK(plan("", file)["height"] == 64);
  CHECK(plan("", file)["width"] == 96);
  CHECK(plan("", file + " TROUPE_STEPS=5")["steps"] == 5);
  CHECK(plan("--steps 3", file + " TROUPE_STEPS=5")["steps"] == 3);
  CHECK(plan("-m " + kTinyFolder, "TROUPE_CONFIG=")["steps"] == 20);
  // In its usual place.
  std::filesystem::create_directory(scratch.path / "troupe");
  std::filesystem::copy(scratch.path / "config.toml", scratch.path / "troupe/config.toml");
  CHECK(plan("", "XDG_CONFIG_HOME=" + scratch.path.string())["steps"] == 7);
  // A default is none that is given: it contradicts nothing.
  CHECK(plan("--timesteps 900,500,100", file)["steps"] == 3);
  CHECK(has(troupe::testing::troupe("run --help", file).out, "--steps N=9"));
}

TEST_CASE("defaults that make no sense are named with where they stand") {
  const Scratch scratch;
  const auto refused = [&](const std::string& text, const std::string& before,
                           const std::string& what) {
    std::ofstream(scratch / "c.toml") << text;
    const auto result = troupe::testing::troupe(
        "plan -m " + kTinyFolder,
        "TROUPE_CONFIG=" + (text.empty() ? "" : scratch / "c.toml") + before);
    INFO(result.err);
    CHECK(result.exit_code == 2);
    CHECK(has(result.err, what));
  };
  refused("steps = many\n", "", "c.toml:1: --steps: \"many\" is not a number");
  refused("# mine\n\nstpes = 7\n", "",
          "c.toml:3: stpes is no command's option; did you mean steps?");
  refused("[paln]\nsteps = 7\n", "", "c.toml:2: section paln is no command; did you mean plan?");
  refused("steps = 3\n[run]\nsteps = 3\nfrom = 7\n", "", "c.toml:4: from is no option of run");
  refused("[plan]\n\"warm_up\" = 7\n", "", "c.toml:2: warm-up is no option of plan; did you mean");
  // What contradicts each other in the same place.
  refused("cfg = 2\nguidance = 0\n", "", "c.toml:1, ");
  refused("guidance = 0\n", " TROUPE_CFG=2 TROUPE_GUIDANCE=0",
          "TROUPE_CFG, TROUPE_GUIDANCE: --cfg is 2, but --guidance is 0: without guidance");
  refused("", " TROUPE_STEPS=many", "TROUPE_STEPS: --steps: \"many\" is not a number");
  // A variable may be somebody else's; one that is nearly an option's is warned of.
  const auto said = [](const std::string& before) {
    return troupe::testing::troupe("plan -m " + kTinyFolder, before).err;
  };
  CHECK(has(said("TROUPE_STEPZ=3"),
            "warning: TROUPE_STEPZ sets no option; did you mean TROUPE_STEPS?"));
  CHECK(has(said("TROUPE_CONNECT=ipc:///nowhere"),
            "warning: TROUPE_CONNECT sets no option; did you mean TROUPE_ADDRESS?"));
  CHECK(has(said("TROUPE_GUIDANCE_SCALE=3"),
            "warning: TROUPE_GUIDANCE_SCALE sets no option; did you mean TROUPE_GUIDANCE?"));
  CHECK(has(said("TROUPE_ADRESS=x"), "did you mean TROUPE_ADDRESS?"));
  CHECK(has(said("TROUPE_VAE=x"),
            "warning: TROUPE_VAE has no effect: --vae is taken from the command line alone"));
  std::ofstream(scratch / "c.toml") << "vae = 'x'\n[plan]\nbase = 'y'\n";
  const auto typed = said("TROUPE_CONFIG=" + scratch / "c.toml");
  CHECK(has(typed, "c.toml:1: vae has no effect: --vae is taken from the command line alone"));
  CHECK(has(typed, "c.toml:3: base has no effect: --base is taken from the command line alone"));
  // Options of a remedy, and what is part of a path, are not to blame.
  CHECK(!has(
      troupe::testing::troupe("plan an-org/none x", "HF_HUB_CACHE=/nowhere TROUPE_FETCH=0").err,
      "TROUPE_FETCH"));
  CHECK(!has(troupe::testing::troupe("plan -m /nowhere/--steps", "TROUPE_STEPS=3").err,
             "TROUPE_STEPS"));
  for (const char* other :
       {"TROUPE_API_KEY", "TROUPE_BUILD", "TROUPE_CONFIG", "TROUPE_DEPS", "TROUPE_INCARNATION",
        "TROUPE_JOBS", "TROUPE_PORT", "TROUPE_PYTHON", "TROUPE_SERVICE_HOST", "TROUPE_UNITY",
        "TROUPE_URL", "TROUPE_FROM", "TROUPE_PORT_7480_TCP"})
    CHECK_FALSE(has(said(std::string(other) + "="), "warning: TROUPE"));
  // Another command's are not looked at.
  std::ofstream(scratch / "c.toml") << "[run]\nsteps = many\n";
  CHECK(troupe::testing::troupe("plan -m " + kTinyFolder, "TROUPE_CONFIG=" + scratch / "c.toml")
            .exit_code == 0);
  const auto none = troupe::testing::troupe("plan", "TROUPE_CONFIG=" + scratch / "none.toml");
  CHECK(none.exit_code == 1);
  CHECK(has(none.err, "TROUPE_CONFIG " + scratch / "none.toml" + ": No such file"));
}

TEST_CASE("help, version and completion work whatever the defaults are") {
  const Scratch scratch;
  std::ofstream(scratch / "c.toml") << "stpes = 7\n";
  const std::string bad = "TROUPE_STEPS=many TROUPE_CONFIG=" + scratch / "c.toml";
  for (const char* arguments : {"--version", "--help", "help", "completion bash", "man run"}) {
    CAPTURE(arguments);
    const auto result = troupe::testing::troupe(arguments, bad);
    CHECK(result.exit_code == 0);
    CHECK(result.err.empty());
  }
  for (const char* arguments : {"plan --help", "help plan", "run -h"}) {
    CAPTURE(arguments);
    const auto result = troupe::testing::troupe(arguments, bad);
    CHECK(result.exit_code == 0);
    CHECK(has(result.out, "--steps"));
    CHECK(has(result.err, "warning: " + scratch / "c.toml:1: stpes is no command's option"));
  }
  CHECK(has(troupe::testing::troupe("plan --help", "TROUPE_STEPS=many").err,
            "warning: TROUPE_STEPS: --steps: \"many\" is not a number"));
}

TEST_CASE("a default gives way to what the command line says instead, and stays beside the rest") {
  const Scratch scratch;
  const auto plan = [&](const std::string& arguments, const std::string& variables,
                        const std::string& text = "") {
    std::ofstream(scratch / "c.toml") << text;
    const auto result = troupe::testing::troupe("plan --json -m " + kTinyFolder + " " + arguments,
                                                variables + " TROUPE_CONFIG=" + scratch / "c.toml");
    INFO(arguments << " " << variables << ": " << result.err);
    REQUIRE(result.exit_code == 0);
    return nlohmann::json::parse(result.out);
  };
  // The second option of each pair that exclude each other is on the command line.
  CHECK(plan("--pp 2", "TROUPE_PARALLEL=auto")["mesh"]["pp"] == 2);
  CHECK(plan("--parallel auto --actors 1", "TROUPE_PP=2", "stages = \"3,2\"\n")["mesh"]["pp"] == 1);
  CHECK(plan("--timesteps 900,500,100", "TROUPE_STEPS=7")["steps"] == 3);
  CHECK(plan("--steps 4", "TROUPE_TIMESTEPS=900,500")["steps"] == 4);
  const std::string sigmas = "--sampler euler --sigmas 3,1,0.5,0.2";
  CHECK(plan(sigmas, "TROUPE_TIMESTEPS=900,500")["steps"] == plan(sigmas, "")["steps"]);
  CHECK(plan("--method exact", "TROUPE_PATCHES=4")["mesh"]["pp"] == 1);
  CHECK(plan("--patches 2", "TROUPE_METHOD=exact", "pp = 2\n")["mesh"]["pp"] == 2);
  CHECK(plan("--guidance 0", "TROUPE_CFG=2")["mesh"]["cfg"] == 1);
  CHECK(plan("--cfg 2", "", "guidance = 0\n")["mesh"]["cfg"] == 2);
  CHECK(plan("--pp 2", "TROUPE_ACTORS=1")["mesh"]["pp"] == 2);
  CHECK(plan("--steps 3", "TROUPE_PATCHES=2 TROUPE_WARMUP=4")["steps"] == 3);
  // One prompt in its place goes before one of the defaults.
  CHECK(plan("'a cat'", "TROUPE_PROMPT=dog")["steps"] == 20);
  CHECK(plan("'a cat'", "", "prompt = \"dog\"\ndp = 2\n")["mesh"]["dp"] == 1);
  CHECK(plan("'a cat'", "")["steps"] == 20);
  // The environment goes before the file.
  CHECK(plan("", "TROUPE_CFG=2", "guidance = 0\npp = 2\n")["mesh"]["cfg"] == 2);
  CHECK(plan("", "TROUPE_CFG=2", "guidance = 0\npp = 2\n")["mesh"]["pp"] == 2);
  // What is overridden is not even looked at.
  CHECK(plan("--steps 3", "TROUPE_STEPS=many", "height = 64\n")["height"] == 64);
  CHECK(plan("--steps 3", "", "steps = \"many\"\n")["steps"] == 3);
}

TEST_CASE("an error says where the value comes from") {
  const Scratch scratch;
  std::ofstream(scratch / "c.toml") << "\nconnect = \"nowhere\"\n";
  const auto said = [&](const std::string& arguments, const std::string& before,
                        const std::string& what) {
    const auto result = troupe::testing::troupe(arguments, before);
    INFO(arguments << ": " << result.err);
    CHECK(has(result.err, what));
  };
  for (const char* verb : {"status", "jobs", "stop", "wait 3", "submit -p x", "serve", "drain 0"}) {
    said(verb, "TROUPE_ADDRESS=nowhere",
         "troupe: TROUPE_ADDRESS: --connect \"nowhere\": neither ipc://PATH");
    said(verb, "TROUPE_CONFIG=" + scratch / "c.toml",
         "troupe: " + scratch / "c.toml:2: --connect \"nowhere\": neither ipc://PATH");
  }
  said("status --connect here", "TROUPE_ADDRESS=nowhere", "troupe: --connect \"here\"");
  said("plan", "TROUPE_MODEL=/nothere", "troupe: TROUPE_MODEL: --model /nothere");
  said("status --json", "TROUPE_ADDRESS=nowhere", "TROUPE_ADDRESS");
}

TEST_CASE("words of Ray, diffusers and stable-diffusion.cpp are answered with ours") {
  const auto says = [](const std::string& arguments, const std::string& what) {
    const auto result = troupe::testing::troupe(arguments);
    INFO(result.err);
    CHECK(result.exit_code == 2);
    CHECK(has(result.err, what));
  };
  says("up", "unknown command up: here it is troupe start");
  says("txt2img -p x", "unknown command txt2img: here it is troupe run");
  says("run --sampling-method euler_a", "here it is --sampler");
  says("run --prompt x --elsewhere", "unknown option --elsewhere (see");
  says("run --connect x", "--connect");
  says("status --follow", "unknown option --follow; --follow is an option of `troupe logs`");
}

TEST_CASE("the usual options come first in --help of run") {
  const auto help = troupe::testing::troupe("run --help").out;
  const auto usual = help.find("Usual options:"), others = help.find("\nPicture:");
  REQUIRE(usual != std::string::npos);
  REQUIRE(others != std::string::npos);
  CHECK(usual < others);
  const auto first = help.substr(usual, others - usual);
  for (const char* option : {"-m,--model", "-p,--prompt", "-H,--height", "-W,--width", "--steps",
                             "-s,--seed", "-o,--output", "--guidance", "--sampler", "--device"})
    CHECK(has(first, option));
}

TEST_CASE("colours: on a terminal, unless NO_COLOR is set") {
  FakeController controller;
  controller.on(wire::Kind::list_jobs, [&](FakeController& c, control::PeerId peer,
                                           const wire::Header& header, std::span<const std::byte>) {
    wire::JobList list;
    list.jobs.push_back({3, JobState::failed, "p", 2, 5, 20, 1.5, "died"});
    c.server().reply(peer, header, list);
  });
  const std::string address = "TERM=xterm TROUPE_ADDRESS=" + controller.endpoint();
  CHECK(has(troupe_on_terminal("jobs", 100, "NO_COLOR= " + address), "\x1b[31mfailed\x1b[0m"));
  CHECK(!has(troupe_on_terminal("jobs", 100, "NO_COLOR=1 " + address), "\x1b[3"));
  CHECK(
      !has(troupe_on_terminal("jobs", 100, "NO_COLOR= TERM=dumb " + address.substr(11)), "\x1b[3"));
  CHECK(!has(troupe::testing::troupe("jobs", address).out, "\x1b["));
}

TEST_CASE("--show: by sixels where the terminal says that it shows them, or the user does") {
  FakeController controller;
  controller.on(wire::Kind::submit_job, [](FakeController& c, control::PeerId peer,
                                           const wire::Header& header, std::span<const std::byte>) {
    const auto job = c.accept(peer, header);
    c.succeed(peer, job, {c.hold("picture", read_all(TROUPE_SOURCE_DIR "/docs/demo.png"))});
  });
  const Scratch scratch;
  const auto shown = [&](const std::string& options, const std::string& environment,
                         const std::string& attributes) {
    return troupe_on_terminal("submit -p x -o " + scratch / "o.png" + " --show " + options, 80,
                              "TROUPE_ADDRESS=" + controller.endpoint() + " " + environment,
                              attributes);
  };
  constexpr const char *kSixels = "\x1bPq\"1;1;", *kHalf = "▀", *kAsked = "\x1b[c";
  CHECK(protocol_on_terminal("xterm", "\x1b[?63;1;4;22c") == cli::PictureProtocol::sixel);
  CHECK(protocol_on_terminal("tmux", "\x1b[?1;2;4c") == cli::PictureProtocol::sixel);
  CHECK(protocol_on_terminal("xterm", "\x1b[?1;2c") == cli::PictureProtocol::half_blocks);
  const auto vt340 = shown("", "TERM=xterm", "\x1b[?63;1;4;22c");
  CHECK(has(vt340, kAsked));
  // Not by sixels where a busy machine keeps the answer back for longer than it is waited for.
  CHECK((has(vt340, kSixels) || has(vt340, kHalf)));
  for (const char* without : {"\x1b[?1;2c", "\x1b[?64;14;40c", "x", ""}) {
    CAPTURE(without);
    const auto out = shown("", "TERM=xterm", without);
    CHECK(has(out, kHalf));
    CHECK(!has(out, kSixels));
  }
  // Nobody is asked where it is known.
  for (const char* environment : {"TERM=dumb", "TERM=xterm TROUPE_SHOW_AS=half-blocks"}) {
    const auto out = shown("", environment, "\x1b[?4c");
    CHECK(has(out, kHalf));
    CHECK(!has(out, kAsked));
  }
  CHECK(has(shown("", "TERM=xterm-kitty", "\x1b[?4c"), "\x1b_Ga=T"));
  CHECK(has(shown("--show-as sixel", "TERM=dumb", ""), kSixels));
  CHECK(has(shown("--show-as sixels", "TERM=dumb", ""), "did you mean sixel?"));
  const auto alone = troupe::testing::troupe("submit -p x --show-as sixel");
  CHECK(alone.exit_code == 2);
  CHECK(has(alone.err, "--show-as needs --show"));
}

TEST_CASE("inspect MODELDIR: what the model is and what it takes") {
  const auto json = troupe::testing::troupe("inspect --json " + kTinyFolder);
  INFO(json.err);
  REQUIRE(json.exit_code == 0);
  const auto model = nlohmann::json::parse(json.out);
  CHECK(model["pipeline"] == "PixArtAlphaPipeline");
  CHECK(model["parts"].size() == 3);
  CHECK(model["parts"][0]["parameters"].get<std::uint64_t>() > 1000);
  CHECK(model["memory"]["float32"] > model["memory"]["bfloat16"]);
  CHECK(model["degrees"]["cfg"] == 2);
  CHECK(model["defaults"]["steps"] == 20);
  CHECK(model["defaults"]["mask_image"]["strength"] == 0.8);
  CHECK(model["methods"] == nlohmann::json({"exact", "pipefusion", "distrifusion"}));
  const auto text = troupe::testing::troupe("inspect " + kTinyFolder).out;
  for (const char* word : {"PixArtAlphaPipeline", "transformer", "text_encoder", "vae", "degrees",
                           "20 steps, guidance 4.5", "with --mask 20 steps"})
    CHECK(has(text, word));
  CHECK(troupe::testing::troupe("inspect " TROUPE_SOURCE_DIR "/docs").exit_code == 1);
}

TEST_CASE("wait --all says how each job ends; top shows them full screen") {
  FakeController controller;
  int asked = 0;
  controller.on(wire::Kind::list_jobs, [&](FakeController& c, control::PeerId peer,
                                           const wire::Header& header, std::span<const std::byte>) {
    const bool over = ++asked > 2;
    wire::JobList list;
    list.jobs.push_back({2, JobState::succeeded, "before", 1, 20, 20, 1.5, ""});
    list.jobs.push_back(
        {3, over ? JobState::succeeded : JobState::running, "p", 1, over ? 20 : 5, 20, 1.5, ""});
    list.jobs.push_back({4, over ? JobState::failed : JobState::queued, "q", 1, 0, 20, 1.5,
                         over ? "actor 1 died" : ""});
    c.server().reply(peer, header, list);
  });
  controller.on(wire::Kind::get_status, [](FakeController& c, control::PeerId peer,
                                           const wire::Header& header, std::span<const std::byte>) {
    wire::ClusterStatus status;
    wire::ActorRow actor;
    actor.id = 1;
    actor.state = ActorState::busy;
    actor.host = "render-node-17";
    actor.doing = "job 3 step 5";
    status.actors.push_back(actor);
    c.server().reply(peer, header, status);
  });
  const std::string address = "TROUPE_ADDRESS=" + controller.endpoint();
  const auto waited = troupe::testing::troupe("wait --all", address);
  INFO(waited.err);
  CHECK(waited.exit_code == 1);
  CHECK(waited.out == "job 3 succeeded\njob 4 failed: actor 1 died\n");
  CHECK(troupe::testing::troupe("wait --all 3", address).exit_code == 2);
  CHECK(troupe::testing::troupe("wait --all --json", address).exit_code == 0);
  CHECK(troupe::testing::troupe("top", address).exit_code == 2);
  const auto screen = troupe_on_terminal("top < /dev/null", 100, address + " TERM=xterm");
  CHECK(screen.starts_with("\x1b[?1049h"));
  CHECK(screen.ends_with("\x1b[?1049l"));
  for (const char* word : {"1 of 1 actors busy", "render-node-17", "actor 1 died"})
    CHECK(has(screen, word));
}
