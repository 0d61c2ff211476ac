#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "base/files.h"
#include "models/image/load_picture.h"
#include "tests/process/support/models.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/processes.h"
#include "tests/process/support/tensors.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr auto kCommandPatience = 600s;
const std::string kTinyModel = checkpoint("tiny-pixart");

struct Ended {
  int code = -1;
  std::string out;
  std::string err;
  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

/// A user with a folder for sockets, another for what is made, and nothing else.
struct User {
  User() {
    for (const char* name : {"run", "made", "log"})
      fs::create_directory(scratch.path / name);
    fs::permissions(scratch.path / "run", fs::perms::owner_all);
  }
  Ended does(const Words& arguments, const Words& more = {}) const {
    Words environment = more;
    environment.push_back("XDG_RUNTIME_DIR=" + scratch / "run");
    Command command(arguments, scratch / "log", environment);
    const int code = command.wait(kCommandPatience);
    INFO(arguments[0] << ": " << command.err());
    CHECK(code >= 0);
    return {code, command.out(), command.err()};
  }
  std::string made(const std::string& name) const { return scratch / ("made/" + name); }
  Scratch scratch;
};

/// A cluster in the background, stopped with the object.
struct BackgroundCommand {
  BackgroundCommand(const User& user_, Words arguments) : user(user_) {
    arguments.insert(arguments.begin(), {"start", "--detach", "--json"});
    const auto started = user.does(arguments);
    INFO(started.err);
    REQUIRE(started.code == 0);
    facts = started.json();
    actors = actors_of(facts["pid"].get<pid_t>());
  }
  ~BackgroundCommand() {
    kill(facts["pid"].get<pid_t>(), SIGTERM);
    gone({facts["pid"].get<pid_t>()});
  }
  const User& user;
  nlohmann::json facts;
  std::vector<pid_t> actors;
};

}  // namespace

TEST_CASE("start --detach, status, submit, jobs, cancel, stop") {
  const User user;
  BackgroundCommand cluster(user, {"--actors", "4", "--model", kTinyModel});
  CHECK(cluster.facts["actors"] == 4);
  CHECK(cluster.actors.size() == 4);
  CHECK(fs::exists(cluster.facts["log"].get<std::string>()));

  const auto idle = user.does({"status", "--json"}).json();
  CHECK(idle["pid"] == cluster.facts["pid"]);
  REQUIRE(idle["actors"].size() == 4);
  for (const auto& actor : idle["actors"]) {
    CHECK(actor["state"] == "ready");
    CHECK(is_alive(actor["pid"].get<pid_t>()));
    CHECK(actor["device"] == "cpu");
    CHECK(actor["restarts"] == 0);
  }

  const auto submitted =
      user.does({"submit", "--prompt", "a cat", "--cfg", "2", "--pp", "2", "--patches", "2",
                 "--output", user.made("cat.png"), "--json", "-q"});
  REQUIRE(submitted.code == 0);
  const auto report = submitted.json();
  CHECK(report["outputs"] == nlohmann::json::array({user.made("cat.png")}));
  CHECK(report["seed"] == 0);
  CHECK(report["actors"].size() == 4);
  CHECK(decode_png(read_all(user.made("cat.png"))).shape == std::vector<std::int64_t>{128, 128, 3});

  const auto none =
      user.does({"wait", std::to_string(report["job"].get<int>()), "--output",
                 user.made("again.png"), "--save-latents", user.made("l.safetensors")});
  CHECK(none.code == 1);
  CHECK(has(none.err, "came without latents"));
  CHECK(fs::exists(user.made("again.png")));

  const auto placed = user.does({"status", "--json"}).json()["actors"];
  CHECK(placed[3]["groups"].size() == 3);
  for (const auto& group : placed[3]["groups"]) {
    const auto axis = group["axis"].get<std::string>();
    if (axis == "cfg") CHECK(group["ranks"] == nlohmann::json({1, 3}));
    if (axis == "pp") CHECK(group["ranks"] == nlohmann::json({2, 3}));
  }
  const auto text = user.does({"status"});
  for (const auto& word : {std::string("cfg 1/2 [1 3]"), std::string("pp 1/2 [2 3]"),
                           std::to_string(cluster.actors[0])})
    CHECK(has(text.out, word));

  // Whichever actor it gets holds it.
  for (const char* actor : {"0", "1", "2", "3"})
    CHECK(user.does({"repl", "-c", std::string("inject hold ") + actor + " 3600 step 2"}).code ==
          0);
  const auto handed = user.does({"submit", "--prompt", "a dog", "--steps", "900", "--model",
                                 TROUPE_SOURCE_DIR "/examples/demo/model", "--detach", "--json"});
  REQUIRE(handed.code == 0);
  const auto id = std::to_string(handed.json()["job"].get<int>());
  REQUIRE(eventually(kCommandPatience, [&] {
    return has(user.does({"jobs", "--json"}).out, "\"running\"");
  }));
  CHECK(user.does({"cancel", id}).code == 0);
  REQUIRE(eventually(kCommandPatience, [&] {
    return has(user.does({"jobs", "--json"}).out, "\"state\": \"cancelled\"");
  }));
  const auto again = user.does({"cancel", id});
  CHECK(again.code == 1);
  CHECK(has(again.err, "already"));
  CHECK(user.does({"cancel", "77777", "--json"}).json()["error"]["code"] == "not_found");
  const auto jobs = user.does({"jobs", "--json"}).json();
  CHECK(has(jobs.dump(), "a dog"));

  const auto stopped = user.does({"stop", "--json"});
  CHECK(stopped.code == 0);
  CHECK(stopped.json()["pid"] == cluster.facts["pid"]);
  CHECK(gone(cluster.actors));
  CHECK(gone({cluster.facts["pid"].get<pid_t>()}));
  CHECK(!fs::exists(user.scratch / "run/troupe/control.sock"));
  CHECK(left_in_memory() == "");
  // Whose each line is, and where that cluster was.
  const std::string who = "Z troupe[" + std::to_string(cluster.facts["pid"].get<pid_t>()) + "]: ";
  std::istringstream log(read_all(cluster.facts["log"].get<std::string>()));
  std::vector<std::string> lines;
  for (std::string line; std::getline(log, line); lines.push_back(line)) {
    CHECK(std::regex_search(
        line, std::regex("^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d\\.\\d{3}Z troupe\\[")));
    CHECK(has(line, who));
  }
  REQUIRE(lines.size() >= 3);
  const auto name = who + "the cluster at " + cluster.facts["endpoint"].get<std::string>();
  CHECK(lines.front().ends_with(name + " begins with 4 actors"));
  CHECK(lines.back().ends_with(name + " ends"));
  const auto nobody = user.does({"status"});
  CHECK(nobody.code == 1);
  CHECK(has(nobody.err, "no controller"));
  CHECK_FALSE(has(nobody.err, "waited"));
}

TEST_CASE("tcp: any free port, and one that is in use") {
  const User user;
  BackgroundCommand cluster(
      user, {"--actors", "1", "--model", kTinyModel, "--listen", "tcp://127.0.0.1:0"});
  const auto endpoint = cluster.facts["endpoint"].get<std::string>();
  CHECK(endpoint.starts_with("tcp://127.0.0.1:"));
  CHECK(!endpoint.ends_with(":0"));
  CHECK(user.does({"submit", "--prompt", "a", "--steps", "2", "--output", user.made("a.png"),
                   "--connect", endpoint})
            .code == 0);
  CHECK(user.does({"status"}, {"TROUPE_ADDRESS=" + endpoint}).code == 0);
  const auto second = user.does({"start", "--model", kTinyModel, "--listen", endpoint});
  CHECK(second.code == 1);
  CHECK(second.err == "troupe: --listen " + endpoint + ": port in use\n");
  const auto colon = endpoint.rfind(':') + 1;
  const auto before =
      endpoint.substr(0, colon) + std::to_string(std::stoi(endpoint.substr(colon)) - 1);
  const auto beside = user.does({"start", "--model", kTinyModel, "--listen", before});
  CHECK(beside.code == 1);
  // Unless somebody else has that one, too.
  if (!has(beside.err, before + ": port in use"))
    CHECK(has(beside.err, "troupe: --listen " + before + " needs the next port, too, for blobs: " +
                              endpoint + ": port in use"));
  const auto open = user.does({"start", "--listen", "tcp://0.0.0.0:0"});
  CHECK(open.code == 1);
  CHECK(has(open.err, "--insecure"));
  CHECK(user.does({"stop", "--connect", endpoint}).code == 0);
}

TEST_CASE("one cluster a user: the second start at the same address is refused") {
  const User user;
  BackgroundCommand cluster(user, {"--actors", "1", "--model", kTinyModel});
  const auto second = user.does({"start", "--model", kTinyModel});
  CHECK(second.code == 1);
  CHECK(
      has(second.err, "in use by a running process: if that is a cluster, `troupe stop` ends it"));
  CHECK(user.does({"status"}).code == 0);
}

TEST_CASE("run: one document on standard output, pictures that tell their parameters") {
  const User user;
  const auto run_star = [&](const Words& more) {
    Words words{"run",    "--model",    kTinyModel, "--prompt", "a blue star", "--negative-prompt",
                "blurry", "--seed",     "42",       "--steps",  "3",           "--n",
                "2",      "--guidance", "3.5"};
    words.insert(words.end(), more.begin(), more.end());
    return user.does(words);
  };
  const auto run = run_star({"--dp", "2", "--save-latents", user.made("l.safetensors"), "--output",
                             user.made("star.png"), "--json"});
  INFO(run.err);
  REQUIRE(run.code == 0);
  const auto report = run.json();
  CHECK(report["seed"] == 42);
  CHECK(report["outputs"] ==
        nlohmann::json::array({user.made("star-0.png"), user.made("star-1.png")}));
  CHECK(report["actors"].size() == 2);
  for (const auto& actor : report["actors"]) {
    for (const char* key : {"busy_seconds", "idle_seconds", "waiting_seconds", "peak_memory_bytes"})
      CHECK(actor[key].get<double>() >= 0);
  }
  CHECK(TensorFile(user.made("l.safetensors")).floats("latents").shape ==
        std::vector<std::int64_t>{2, 4, 16, 16});

  const auto png = read_all(user.made("star-1.png"));
  CHECK(png != read_all(user.made("star-0.png")));
  const auto parameters = png_text(png, "parameters");
  for (const char* word : {"a blue star", "Negative prompt: blurry", "Steps: 3", "CFG scale: 3.5",
                           "Seed: 42", "Size: 128x128", "Sampler: dpmsolver++"}) {
    INFO(parameters << " lacks " << word);
    CHECK(has(parameters, word));
  }
  const auto inspected = user.does({"inspect", user.made("star-1.png")});
  CHECK(inspected.code == 0);
  for (const char* word : {"a blue star", "blurry", "42"})
    CHECK(has(inspected.out, word));
  CHECK(
      has(user.does({"inspect", user.made("star-1.png"), "--json"}).json().dump(), "a blue star"));

  const auto again = run_star({"--cfg", "2", "--output", user.made("same-{}.png"), "-q"});
  CHECK(again.code == 0);
  CHECK(again.out == user.made("same-0.png") + "\n" + user.made("same-1.png") + "\n");
  CHECK(decode_png(read_all(user.made("same-1.png"))).data == decode_png(png).data);
}

TEST_CASE("run: a picture names its model's folder, whatever that is called") {
  const User user;
  const std::string settings = user.made("m, Steps: 7"), bytes = user.made("b\xff");
  for (const auto& link : {settings, bytes})
    fs::create_directory_symlink(kTinyModel, link);
  const auto model_of_picture = [&](const std::string& folder) {
    const auto run = user.does({"run", "--model", folder, "--prompt", "a", "--steps", "1",
                                "--output", user.made("named.png")});
    INFO(run.err);
    REQUIRE(run.code == 0);
    const auto text = png_text(read_all(user.made("named.png")), "parameters");
    const auto at = text.find("Model: ");
    return text.substr(at, text.rfind(", Version") - at);
  };
  CHECK(model_of_picture(settings + "/") == "Model: \"m, Steps: 7\"");
  CHECK(model_of_picture(bytes) == "Model: b\uFFFD");
}

TEST_CASE("a picture to begin with is what its file shows, whatever the format") {
  const User user;
  const std::string folder = TROUPE_SOURCE_DIR "/tests/fixtures/pictures/";
  const auto painted = [&](const std::string& picture, const Words& more) {
    Words all{"run",      "--model",  checkpoint("tiny-sd3"),
              "--prompt", "a",        "--steps",
              "2",        "--height", "64",
              "--width",  "64",       "--init-image",
              picture,    "--output", user.made("out.png")};
    all.insert(all.end(), more.begin(), more.end());
    auto ended = user.does(all);
    CHECK(ended.code == 0);
    return std::pair(decode_png(read_all(user.made("out.png"))).data, ended.err);
  };
  for (const char* name : {"exif6.jpg", "lossless.webp", "gamma16.png"}) {
    CAPTURE(name);
    const auto plain = user.made("plain.png");
    std::ofstream(plain, std::ios::binary)
        << models::write_png(models::load_picture(read_all(folder + name)));
    CHECK(painted(folder + name, {}).first == painted(plain, {}).first);
  }
  const auto warned = painted(folder + "profile.jpg", {"--mask", folder + "animated.webp"}).second;
  CHECK(has(warned, "--init-image has a colour profile, which is ignored"));
  CHECK(has(warned, "--mask is animated: its first frame is taken"));
}

TEST_CASE("plan: what would go where, and what cannot be") {
  const User user;
  const Words plan{"plan", "--model", kTinyModel, "--prompt", "x"};
  const auto with = [&](const Words& more) {
    Words all = plan;
    all.insert(all.end(), more.begin(), more.end());
    return user.does(all);
  };
  const auto good = with({"--cfg", "2", "--pp", "2", "--patches", "4", "--json"});
  CHECK(good.code == 0);
  CHECK(good.json().is_object());
  CHECK(!with({"--cfg", "2", "--pp", "2"}).out.empty());
  CHECK(has(with({"--weight-dtype", "fp8"}).out, "warning: fp8 needs a GPU"));
  struct Refused {
    Words more, words;
    int code;  // 2 where the command line alone says it
  };
  const std::vector<Refused> refused = {
      {{"--pp", "6"}, {"pp", "6", "5 blocks"}, 1},
      {{"--patches", "9"}, {"patches", "9", "8"}, 1},
      {{"--dp", "2"}, {"dp", "2", "1 picture "}, 2},
      {{"--height", "100"}, {"height", "100"}, 1},
      {{"--patches", "2", "--warmup", "9", "--steps", "3"}, {"warmup", "9", "3"}, 2}};
  for (const auto& [more, words, code] : refused) {
    const auto result = with(more);
    INFO(result.err);
    CHECK(result.code == code);
    CHECK(result.out.empty());
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    for (const auto& word : words)
      CHECK(has(result.err, word));
    auto json = more;
    json.push_back("--json");
    CHECK(with(json).json().contains("error"));
  }
}

TEST_CASE("drain --wait names the job that it waits for") {
  const User user;
  const BackgroundCommand cluster(user, {"--actors", "1"});
  CHECK(user.does({"repl", "-c", "inject hold 0 3600 step 2"}).code == 0);
  const auto handed = user.does({"submit", "--prompt", "a dog", "--steps", "9", "--model",
                                 TROUPE_SOURCE_DIR "/examples/demo/model", "--detach"});
  REQUIRE(handed.code == 0);
  REQUIRE(eventually(kCommandPatience, [&] {
    return has(user.does({"jobs", "--json"}).out, "\"running\"");
  }));
  const auto drained = user.does({"drain", "0", "--wait", "1"});
  CHECK(drained.code == 1);
  CHECK(has(drained.err, "1 actor is being drained; job 1 will end there first\n"));
  CHECK(has(drained.err, "not empty after 1 s: actor 0 (job 1 "));
}

TEST_CASE("a picture on standard output, and pictures whose folder is gone when they are done") {
  const User user;
  const Words paint{"--model", kTinyModel, "--prompt", "a cat", "--seed", "7"};
  const auto with = [&](Words words, const Words& more) {
    words.insert(words.end(), paint.begin(), paint.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const auto piped = user.does(with({"run"}, {"--steps", "3", "--output", "-"}));
  INFO(piped.err);
  CHECK(piped.code == 0);
  CHECK(decode_png(piped.out).shape == std::vector<std::int64_t>{128, 128, 3});
  CHECK(std::regex_search(
      piped.err,
      std::regex("\n128 × 128, seed 7, 3 steps, [^,]*s \\([^)]*/step\\), one actor\n$")));
  CHECK(user.does(with({"run"}, {"--output", "-", "--json"})).code == 2);
  CHECK(user.does(with({"run"}, {"--output", "-", "--n", "2"})).code == 2);

  // The cluster of `run` ends with it, so nobody else has the picture. The actor begins when it is
  // let.
  fs::create_directory(user.made("tmp"));
  const Words environment{"XDG_RUNTIME_DIR=" + user.scratch / "run", "TMPDIR=" + user.made("tmp")};
  fs::copy_file(TROUPE_BINARY_DIR "/bin/troupe", user.made("troupe"));
  const std::string gate = user.made("gate");
  REQUIRE(mkfifo(gate.c_str(), 0600) == 0);
  std::ofstream(user.made("troupe-actor"))
      << "#!/bin/sh\n: < " << gate << "\nexec " TROUPE_BINARY_DIR "/bin/troupe-actor \"$@\"\n";
  fs::permissions(user.made("troupe-actor"), fs::perms::owner_all);
  const Words lost{"--steps", "3", "--output", user.made("gone/out.png")};
  const auto end_of = [](Command& command) {
    const int code = command.wait(kCommandPatience);
    return Ended{code, command.out(), command.err()};
  };
  fs::create_directory(user.made("gone"));
  Command run_command(with({"run"}, lost), user.scratch / "log", environment, user.made("troupe"));
  FileHandle opened;
  REQUIRE(eventually(kCommandPatience, [&] {  // when the actor waits there
    opened = FileHandle(open(gate.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    return static_cast<bool>(opened);
  }));
  fs::remove_all(user.made("gone"));
  opened = {};
  const auto run = end_of(run_command);
  INFO(run.err);
  CHECK(run.code == 1);
  CHECK(has(run.err, "cannot be written"));
  const std::regex kept_in("; what should be there is in (\\S+\\.png)");
  std::smatch kept;
  REQUIRE(std::regex_search(run.err, kept, kept_in));
  CHECK(kept.str(1).starts_with(user.made("tmp")));
  CHECK(decode_png(read_all(kept.str(1))).shape == std::vector<std::int64_t>{128, 128, 3});

  const BackgroundCommand cluster(user, {"--actors", "1", "--model", kTinyModel});
  CHECK(user.does({"repl", "-c", "inject hold 0 3600 step 1"}).code == 0);
  fs::create_directory(user.made("gone"));
  Command submit(with({"submit"}, lost), user.scratch / "log", environment);
  REQUIRE(eventually(kCommandPatience, [&] { return has(submit.err(), "denoising"); }));
  fs::remove_all(user.made("gone"));
  CHECK(user.does({"repl", "-c", "inject release 0"}).code == 0);
  const auto submitted = end_of(submit);
  INFO(submitted.err);
  CHECK(submitted.code == 1);
  CHECK(has(submitted.err, "`troupe wait 1 --output FILE` writes it elsewhere"));
  CHECK(user.does({"wait", "1", "--output", user.made("late.png")}).code == 0);
  CHECK(read_all(user.made("late.png")) == read_all(kept.str(1)));
}
