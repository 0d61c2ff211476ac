#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/client/run_command.h"
#include "tests/support/doctest.h"

using namespace troupe::testing;
namespace fs = std::filesystem;

namespace {

const std::string kDemo = TROUPE_SOURCE_DIR "/examples/demo/model";
const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";

/// A cache of the hub that is empty, and a program `hf` that says what it is asked for and puts the
/// demo's model into the cache as an-org/demo.
struct Hub {
  Hub() {
    const std::string repository = scratch / "cache/models--an-org--demo";
    const std::string snapshot = repository + "/snapshots/" + kCommit;
    fs::create_directories(scratch.path / "bin");
    scratch.file("bin/hf",
                 "#!/bin/sh\n"
                 "echo \"$@\" >> " +
                     scratch / "asked" +
                     "\n"
                     "echo 'Will download 13 MB'\n"
                     "case \"$*\" in *--dry-run) exit 0;; *an-org/gated*) exit 1;; esac\n"
                     "mkdir -p " +
                     snapshot + " " + repository +
                     "/refs\n"
                     "printf " +
                     kCommit + " > " + repository +
                     "/refs/main\n"
                     "cp -r " +
                     kDemo + "/. " + snapshot + "\n");
    fs::permissions(scratch.path / "bin/hf", fs::perms::owner_all);
  }
  std::string before(const std::string& more = "") const {
    return "env -u HF_HUB_OFFLINE -u TRANSFORMERS_OFFLINE HF_HUB_CACHE=" + scratch / "cache" +
           " PATH=" + scratch / "bin" + ":$PATH " + more;
  }
  CommandResult run(const std::string& arguments, const std::string& more = "") const {
    return troupe::testing::troupe(arguments, before(more));
  }
  std::string asked() const {
    return fs::exists(scratch.path / "asked") ? read_all(scratch / "asked") : "";
  }

  Scratch scratch;
};

}  // namespace

TEST_CASE("a model by its name: --fetch fetches it once, and then it is there") {
  const Hub hub;
  const auto none = hub.run("plan an-org/demo \"a cat\"");
  CHECK(none.exit_code == 1);
  CHECK(has(none.err, "--model an-org/demo: is no folder here, and not in the Hugging Face cache"));
  CHECK(has(none.err, "`hf download an-org/demo --include model_index.json"));
  CHECK(hub.asked() == "");

  const auto fetched = hub.run("plan an-org/demo \"a cat\" --fetch --json");
  CHECK(fetched.exit_code == 0);
  CHECK(fetched.out.starts_with("{"));  // what hf says is no part of the document
  CHECK(has(fetched.err, "Will download 13 MB"));
  const auto asked = hub.asked();
  CHECK(asked.starts_with(
      "download an-org/demo --include model_index.json --include scheduler/*.json"));
  CHECK(
      has(asked, "--exclude *.fp16.* --exclude *.bf16.* --exclude *non_ema* --dry-run\ndownload "));

  CHECK(hub.run("plan --model an-org/demo --fetch").exit_code == 0);
  CHECK(hub.run("inspect an-org/demo").exit_code == 0);
  CHECK(hub.asked() == asked);
  const auto listed = hub.run("models");
  CHECK(has(listed.out, "an-org/demo  PixArtAlphaPipeline  13 MB"));
}

TEST_CASE("what the cache has of a model in part is completed by --fetch, and listed with why") {
  const Hub hub;
  REQUIRE(hub.run("plan an-org/demo x --fetch").exit_code == 0);
  const auto vae = hub.scratch.path / "cache/models--an-org--demo/snapshots" / kCommit / "vae";
  fs::remove_all(vae);
  const auto listed = hub.run("models");
  CHECK(has(listed.out, "CANNOT RUN"));
  CHECK(has(listed.out, "component folder is missing"));
  const auto in_part = hub.run("plan an-org/demo x");
  CHECK(in_part.exit_code == 1);
  CHECK(has(in_part.err, "`hf download an-org/demo --include model_index.json"));
  CHECK(has(in_part.err, "fetches what the Hugging Face cache lacks of it, as --fetch does"));
  CHECK(hub.run("plan an-org/demo x --fetch").exit_code == 0);
}

TEST_CASE("--fetch with a file fetches the base without what the file replaces") {
  const Hub hub;
  const std::string file = hub.scratch / "mine.safetensors";
  fs::copy_file(kDemo + "/transformer/diffusion_pytorch_model.safetensors", file);
  const std::string with = "plan --fetch --base an-org/demo --model " + file;
  const std::string caches = "XDG_CACHE_HOME=" + hub.scratch / "caches";
  CHECK(hub.run(with, caches).exit_code == 0);
  CHECK(has(hub.asked(), "--exclude transformer/*.safetensors* --exclude unet/*.safetensors*"));
  CHECK(has(hub.asked(), "--exclude transformer_2/*.safetensors*"));
  // What the base has in part is completed, and again without that.
  fs::remove(hub.scratch.path / "cache/models--an-org--demo/snapshots" / kCommit /
             "vae/diffusion_pytorch_model.safetensors");
  fs::remove(hub.scratch.path / "asked");
  CHECK(hub.run(with, caches).exit_code == 0);
  CHECK(has(hub.asked(), "--exclude transformer/*.safetensors*\n"));
  CHECK(!has(hub.asked(), "--exclude vae/"));
}

TEST_CASE("what keeps a model from being fetched is said") {
  const Hub hub;
  const auto offline = hub.run("run sdxl x --fetch", "HF_HUB_OFFLINE=1");
  CHECK(offline.exit_code == 1);
  CHECK(has(offline.err, "HF_HUB_OFFLINE"));
  CHECK(hub.asked() == "");
  const auto gated = hub.run("run an-org/gated x --fetch");
  CHECK(gated.exit_code == 1);
  CHECK(has(gated.err,
            "--model an-org/gated: `hf download` of huggingface_hub (1.0 or later) ended with 1"));
  fs::remove(hub.scratch.path / "bin/hf");
  fs::create_symlink("/usr/bin/timeout", hub.scratch.path / "bin/timeout");
  const auto no_hf =
      hub.run("run sdxl x --fetch", "PATH=" + hub.scratch / "bin");  // nothing else is there
  CHECK(no_hf.exit_code == 1);
  CHECK(has(no_hf.err, "hf is not on the PATH: `pip install huggingface_hub`"));
}

TEST_CASE("on a terminal, who types y has the model fetched") {
  for (const bool yes : {true, false}) {
    const Hub hub;
    const std::string line = hub.before() + "timeout --foreground 240 " TROUPE_BINARY_DIR
                                            "/bin/troupe plan an-org/demo x";
    int terminal = -1;
    const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
    REQUIRE(child >= 0);
    if (child == 0) {
      execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
      _exit(99);
    }
    REQUIRE(write(terminal, yes ? "y\n" : "n\n", 2) == 2);
    const std::string out = answer_terminal(terminal, "");
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(has(out, "fetch an-org/demo into"));
    CHECK(WEXITSTATUS(status) == (yes ? 0 : 1));
    CHECK(has(out, "mesh") == yes);
  }
}

TEST_CASE("a folder of the name's spelling goes before the name, and that is said") {
  const Hub hub;
  REQUIRE(hub.run("plan an-org/demo x --fetch").exit_code == 0);
  fs::create_directories(hub.scratch.path / "here/an-org/demo");
  const auto found =
      run_command("sh -c 'cd " + hub.scratch / "here" +
                      " && " TROUPE_BINARY_DIR "/bin/troupe plan --model an-org/demo'",
                  hub.before());
  CHECK(found.exit_code == 1);
  CHECK(has(found.err, "warning: --model an-org/demo is the folder here"));
  CHECK(has(found.err, "/here/an-org/demo: has no model_index.json"));
  const auto inspected =
      run_command("sh -c 'cd " + hub.scratch / "here" +
                      " && " TROUPE_BINARY_DIR "/bin/troupe inspect an-org/demo'",
                  hub.before());
  CHECK(has(inspected.err, "warning: an-org/demo is the folder here, not the model"));
}

TEST_CASE("models with short names are listed, and a slip in one is told") {
  const Hub hub;
  const auto known = hub.run("models --known");
  CHECK(known.exit_code == 0);
  CHECK(has(known.out, "\nz-image-turbo "));
  CHECK(has(known.out, " Tongyi-MAI/Z-Image-Turbo "));
  CHECK(has(hub.run("models").out, "no models in " + hub.scratch / "cache"));
  CHECK(has(hub.run("plan sdxll x").err, "did you mean sdxl?"));
  const auto unquoted = hub.run("run --model " + kDemo + " a cat");
  CHECK(unquoted.exit_code == 2);
  CHECK(
      has(unquoted.err, "unexpected argument \"cat\"; a prompt of several words stands in quotes"));
}

TEST_CASE("a file is a model with --base: its latents are those of the folder that has the file") {
  const Scratch scratch;
  const std::string file = scratch / "mine.safetensors", base = scratch / "base";
  fs::copy(kDemo, base, fs::copy_options::recursive);
  fs::rename(base + "/transformer/diffusion_pytorch_model.safetensors", file);
  const std::string before = "env XDG_CACHE_HOME=" + scratch / "cache";
  const auto run = [&](const std::string& arguments) {
    return troupe::testing::troupe(arguments, before);
  };
  const std::string how =
      " --prompt \"a red circle\" --steps 1 --height 128 --width 128 --quiet --output ";
  const auto ours =
      run("run --model " + file + " --base " + base + how + scratch / "a.safetensors");
  CHECK(ours.exit_code == 0);
  CHECK(has(ours.err, "troupe: transformer: " + file + "\n"));
  CHECK(has(ours.err, "troupe: all else: " + base + "\n"));
  REQUIRE(run("run --model " + kDemo + how + scratch / "b.safetensors").exit_code == 0);
  CHECK(read_all(scratch / "a.safetensors") == read_all(scratch / "b.safetensors"));
  CHECK(run("plan --model " + file + " --base " + base).exit_code == 0);  // the folder is there now

  const std::string vae = kDemo + "/vae";
  CHECK(has(run("plan --model " + kDemo + " --vae " + vae).err, "troupe: vae: " + vae + "\n"));
  CHECK(run("plan --model " + kDemo + " --vae " + vae + "/diffusion_pytorch_model.safetensors")
            .exit_code == 0);
  const auto wrong = run("plan --model " + kDemo + " --vae " + file);
  CHECK(wrong.exit_code == 1);
  CHECK(has(wrong.err, "--vae " + file + ": its tensors are not those of the vae of " + kDemo));
  const auto none = run("plan --model " + kDemo + " --text-encoder-2 " + vae);
  CHECK(none.exit_code == 1);
  CHECK(has(none.err, "--text-encoder-2 " + vae + ": " + kDemo + " has no text_encoder_2"));
  CHECK(has(run("plan --model nowhere.safetensors --base " + base).err,
            "--model nowhere.safetensors: there is no such file"));
}

TEST_CASE("a file without --base, and --base without a file, are refused with what is missing") {
  const std::string flux =
      TROUPE_SOURCE_DIR "/tests/fixtures/tiny-flux/transformer/diffusion_pytorch_model.safetensors";
  const auto alone = troupe::testing::troupe("run --prompt x --model " + flux);
  CHECK(alone.exit_code == 1);
  CHECK(has(alone.err, "--model " + flux + " is a file: --base DIR|NAME says which model"));
  const auto folder = troupe::testing::troupe("plan --model " + kDemo + " --base " + kDemo);
  CHECK(folder.exit_code == 2);
  CHECK(has(folder.err, "--base goes with --model FILE.safetensors or FILE.gguf"));
  const auto start = troupe::testing::troupe("start --vae " + kDemo + "/vae");
  CHECK(start.exit_code == 2);
  CHECK(has(start.err, "--vae does not go with no --model"));
  const auto serve = troupe::testing::troupe("serve --vae " + kDemo + "/vae");
  CHECK(serve.exit_code == 2);
}

TEST_CASE("a file of one of a model's two transformers is refused with what is needed") {
  const Scratch scratch;
  const fs::path folder = scratch.path / "two";
  fs::copy(TROUPE_SOURCE_DIR "/tests/fixtures/tiny-wan", folder, fs::copy_options::recursive);
  fs::copy(folder / "transformer", folder / "transformer_2");
  auto index = nlohmann::json::parse(read_all(folder / "model_index.json"));
  index["transformer_2"] = index.at("transformer");
  index["boundary_ratio"] = 0.875;
  scratch.file("two/model_index.json", index.dump());

  const auto whole = troupe::testing::troupe("inspect " + folder.string());
  CHECK(whole.exit_code == 0);
  CHECK(has(whole.out, "transformer_2"));
  CHECK(has(whole.out, "in steps below timestep 875"));
  const auto plan = troupe::testing::troupe("plan --model " + folder.string());
  CHECK(has(plan.out, "second transformer: "));

  const auto file = (folder / "transformer/diffusion_pytorch_model.safetensors").string();
  const auto alone = troupe::testing::troupe("plan --model " + file + " --base " + folder.string());
  CHECK(alone.exit_code == 1);
  CHECK(has(alone.err, file + ": has one of the two transformers of " + folder.string()));
  CHECK(has(alone.err, "that of little noise into transformer_2"));
}
