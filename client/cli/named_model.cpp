#include "client/cli/named_model.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <stdexcept>
#include <tuple>

#include "base/format.h"
#include "base/xxh64.h"
#include "client/cli/files.h"
#include "client/cli/terminal.h"
#include "client/cli/verb.h"
#include "models/spec/gguf.h"
#include "models/spec/hub.h"
#include "models/spec/lora_spec.h"
#include "models/spec/model_spec.h"
#include "models/spec/torch_file.h"
#include "models/text/tokenizers.h"

namespace troupe::cli {
namespace {

namespace fs = std::filesystem;

bool is_there(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// Returns the refusal of a file without --base, with the base that goes with it.
std::runtime_error naming_base(const std::string& file) {
  const auto known = naming(
      "--model", [&] { return spec::base_of(spec::WeightIndex::read_file(absolute_path(file))); });
  return std::runtime_error(
      "--model " + file +
      " is a file: --base DIR|NAME says which model has the configs, "
      "tokenizers and other parts that go with it" +
      (known.empty() ? "" : "; its tensors are " + known + "'s: --base " + known));
}

/// Runs a program of the PATH with this one's terminal, its output on standard error, and waits for
/// its end: what it takes hours for shows its own progress, and Ctrl-C ends both. Returns its exit
/// code. Throws std::runtime_error where it does not start.
int run_program(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words)
    pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
  pid_t pid = 0;
  const int failed =
      posix_spawnp(&pid, words.front().c_str(), &files, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (failed == ENOENT)
    throw std::runtime_error(words.front() + " is not on the PATH: `pip install huggingface_hub` " +
                             "brings it");
  if (failed != 0) throw std::runtime_error(words.front() + ": " + std::strerror(failed));
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void run_hf(const spec::HubName& name, bool dry, const std::vector<std::string>& replaced) {
  auto words = spec::fetch_words(name, replaced);
  if (dry) words.push_back("--dry-run");
  if (const int code = run_program(words); code != 0)
    throw std::runtime_error(
        fmt::format("{}: `hf download{}` of huggingface_hub (1.0 or later) ended with {}; what it "
                    "said stands above",
                    spec::hub_text(name), dry ? " --dry-run" : "", code));
}

/// Fetches what the cache lacks of a model. `hf` says before how much that is; without `fetch` the
/// terminal is asked then. Weights of the parts that are `replaced` are left out. Returns whether
/// it was fetched.
bool fetch_model(const spec::HubName& name, bool fetch,
                 const std::vector<std::string>& replaced = {}) {
  const bool asks = !fetch && isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
  if (!fetch && !asks) return false;
  if (spec::hub_is_offline()) {
    if (!fetch) return false;
    throw std::runtime_error(spec::hub_text(name) +
                             ": HF_HUB_OFFLINE, or TRANSFORMERS_OFFLINE, forbids to fetch it");
  }
  try {
    if (asks) say(spec::hub_text(name) + " is no folder here, and not in the Hugging Face cache");
    run_hf(name, true, replaced);
  } catch (const std::runtime_error& error) {
    if (!asks) throw;
    say(error.what());
    return false;
  }
  if (asks) {
    std::cerr << "fetch " << spec::hub_text(name) << " into " << spec::hub_cache().string()
              << "? [y/N] " << std::flush;
    std::string answer;
    std::getline(std::cin, answer);
    if (answer != "y" && answer != "Y" && answer != "yes") return false;
  }
  run_hf(name, false, replaced);
  return true;
}

/// Returns whether a folder has all that is read of a model.
bool opens(const fs::path& folder) {
  try {
    models::read_model_folder(folder);
    return true;
  } catch (const std::runtime_error&) {
    return false;  // who reads it next says what is wrong with it
  }
}

/// Returns whether the cache has all that is read of a model.
bool is_whole(const spec::HubName& name) {
  const auto folder = spec::cached_model(name);
  return folder && opens(*folder);
}

}  // namespace

void add_parts_options(Options& app, ModelParts& parts, const std::string& group) {
  app.add_flag(
         "--fetch", parts.fetch,
         "Let hf fetch what the Hugging Face cache lacks of --model ORG/NAME (docs/models.md)")
      ->group(group);
  app.add_option("--base", parts.base,
                 "With --model FILE.safetensors or FILE.gguf: the model whose configs, tokenizers "
                 "and other parts go with it (docs/files.md)")
      ->check(not_empty())
      ->type_name("DIR|NAME")
      ->configurable(false)  // no default: it goes with one file
      ->group(group);
  const auto add = [&](const char* name, std::string& value, const std::string& what) {
    app.add_option(name, value, "File of weights, or folder, in place of the model's " + what)
        ->check(not_empty())
        ->type_name("FILE|DIR")
        ->configurable(false)
        ->group(group);
  };
  add("--vae", parts.vae, "VAE");
  add("--text-encoder", parts.text_encoder, "text encoder");
  add("--text-encoder-2", parts.text_encoder_2, "second text encoder");
  add("--text-encoder-3", parts.text_encoder_3, "third text encoder");
}

namespace {

/// Parts of a model by the name of the folder that they replace: files and folders.
using Replaced = std::map<std::string, fs::path>;

/// Returns whether a file of a component's folder says which weights there are, or is one of them.
bool is_of_weights(const fs::path& file) {
  const auto name = file.filename().string();
  return spec::is_weight_file(file) || spec::is_torch_name(file) ||
         name.find(".index.") != std::string::npos;
}

/// Returns the links of a folder that is the base but for what is replaced, by their places in it.
std::map<fs::path, fs::path> links_of(const fs::path& base, const Replaced& replaced) {
  std::map<fs::path, fs::path> links = {{"model_index.json", base / "model_index.json"}};
  for (const auto& entry : fs::directory_iterator(base)) {
    if (!entry.is_directory()) continue;
    const fs::path name = entry.path().filename();
    const auto found = replaced.find(name.string());
    if (found == replaced.end() || fs::is_directory(found->second)) {
      links[name] = found == replaced.end() ? entry.path() : found->second;
      continue;
    }
    for (const auto& file : fs::directory_iterator(entry.path()))
      if (!is_of_weights(file.path())) links[name / file.path().filename()] = file.path();
    links[name / found->second.filename()] = found->second;
  }
  return links;
}

/// Makes a folder of links, named by what they are, unless it is there, and returns its path.
fs::path linked_folder(const std::string& name, const std::map<fs::path, fs::path>& links) {
  Xxh64 digest;
  for (const auto& [place, target] : links)
    for (const fs::path* path : {&place, &target})
      digest.update(path->c_str(), path->native().size() + 1);
  const fs::path all = fs::absolute(spec::user_caches() / "troupe" / "models");
  const fs::path folder = all / fmt::format("{}-{:016x}", name, digest.digest());
  if (fs::is_directory(folder)) return folder;
  fs::create_directories(all);
  std::string made = (all / ".made-XXXXXX").string();
  if (mkdtemp(made.data()) == nullptr)
    throw std::runtime_error(all.string() + ": " + std::strerror(errno));
  for (const auto& [place, target] : links) {
    fs::create_directories((made / place).parent_path());
    fs::create_symlink(target, made / place);
  }
  std::error_code error;
  fs::rename(made, folder, error);  // whole or not at all
  if (!error) return folder;
  fs::remove_all(made);
  if (!fs::is_directory(folder)) throw std::runtime_error(folder.string() + ": " + error.message());
  return folder;  // another process was quicker
}

/// Adds the components that a file has to what is replaced; what an option has replaced before
/// stays. Throws std::runtime_error where the file has none.
void add_file(Replaced& replaced, const fs::path& file, const fs::path& base,
              const std::string& only = "") {
  const auto index = spec::WeightIndex::read_file(file);
  auto components = spec::components_of(index, base);
  if (!only.empty() && std::ranges::count(components, only) == 0)
    throw std::runtime_error(file.string() + ": its tensors are not those of the " + only + " of " +
                             base.string());
  if (!only.empty()) components = {only};
  if (std::ranges::count(components, spec::kSecondTransformer) > 0)
    throw std::runtime_error(
        file.string() + ": has one of the two transformers of " + base.string() +
        ", and its tensors do not say which: copy that folder without the weights of these, and "
        "link the file of much noise into transformer, that of little noise into transformer_2");
  const auto known = spec::base_of(index);
  if (components.empty())
    throw std::runtime_error(
        file.string() + ": its tensors are those of no part of " + base.string() +
        (known.empty() ? "" : "; they are " + known + "'s (--base " + known + ")"));
  for (const std::string& component : components)
    replaced.emplace(component, file);
}

}  // namespace

void warn_of_shadow(const std::string& option, const std::string& text) {
  const auto name = spec::hub_name(text);
  if (name && is_there(text) && spec::cached_model(*name))
    say("warning: " + option + (option.empty() ? "" : " ") + text +
        " is the folder here, not the model of that name in the Hugging Face cache");
}

namespace {

/// Returns whether the cache has a model's configs, which say what its parts are.
bool has_configs(const spec::HubName& name) {
  try {
    const auto folder = spec::cached_model(name);
    if (folder) spec::components_of(spec::WeightIndex(), *folder);
    return folder.has_value();
  } catch (const std::runtime_error&) {
    return false;
  }
}

/// Returns the folder of `--base`, which need not have the weights that a file brings.
fs::path found_base(const std::string& text, bool fetch) {
  const auto name = spec::hub_name(text);
  warn_of_shadow("--base", text);
  if (name && !is_there(text) && (fetch ? !has_configs(*name) : !spec::cached_model(*name))) {
    // What weights are wanted beside the file's is known when the configs are there.
    static const std::vector<std::string> kParts = {
        "transformer",           "unet", "vae", "text_encoder", "text_encoder_2", "text_encoder_3",
        spec::kSecondTransformer};
    fetch_model(*name, fetch, fetch ? kParts : std::vector<std::string>());
  }
  return fs::absolute(spec::model_folder(text)).lexically_normal();
}

/// A folder of links, and the parts in it that are not the base's.
struct Composition {
  fs::path folder;
  Replaced replaced;
};

/// Makes the folder of links for a file, or a model some of whose parts are replaced.
Composition composed_model(const std::string& model, bool is_file, const fs::path& base,
                           const ModelParts& parts) {
  Composition made;
  for (const auto& [option, component, path] :
       {std::tuple("--vae", "vae", parts.vae),
        {"--text-encoder", "text_encoder", parts.text_encoder},
        {"--text-encoder-2", "text_encoder_2", parts.text_encoder_2},
        {"--text-encoder-3", "text_encoder_3", parts.text_encoder_3}}) {
    if (path.empty()) continue;
    const fs::path whole = absolute_path(path);
    naming(option, [&] {
      if (!fs::is_directory(base / component))
        throw std::runtime_error(path + ": " + base.string() + " has no " + component);
      if (fs::is_directory(whole))
        made.replaced.emplace(component, whole);
      else
        add_file(made.replaced, whole, base, component);
    });
  }
  if (is_file) naming("--base", [&] { return spec::components_of(spec::WeightIndex(), base); });
  return naming("--model", [&] {
    const fs::path whole = absolute_path(model);
    if (is_file) add_file(made.replaced, whole, base);
    const std::string name = is_file ? whole.stem().string() : spec::model_label(base.string());
    std::string plain = name.substr(0, 200);  // of a file's name, which ends with a number
    std::ranges::replace(plain, '/', '-');
    made.folder = linked_folder(plain, links_of(base, made.replaced));
    return made;
  });
}

/// Makes the same with what `--fetch` completes the base by, and says which parts are whose.
std::string completed_model(const std::string& model, bool is_file, const fs::path& base,
                            const ModelParts& parts) {
  Composition made = composed_model(model, is_file, base, parts);
  const auto name = spec::hub_name(is_file ? parts.base : model);
  if (parts.fetch && name && !is_there(is_file ? parts.base : model) && !opens(made.folder)) {
    std::vector<std::string> replaced;
    for (const auto& [component, path] : made.replaced)
      replaced.push_back(component);
    naming(is_file ? "--base" : "--model", [&] { return fetch_model(*name, true, replaced); });
    made = composed_model(model, is_file, base, parts);
  }
  for (const auto& [component, path] : made.replaced)
    say(component + ": " + path.string());
  say("all else: " + base.string());
  return made.folder.string();
}

/// Returns the folder of a model that is no file.
std::string found_folder(const std::string& text, bool fetch, bool is_completed) {
  const auto name = spec::hub_name(text);
  if (!name || is_there(text)) {
    if (fetch) say("warning: --fetch has no effect: --model " + text + " is the folder here");
    warn_of_shadow("--model", text);
    return absolute_path(text);
  }
  return naming("--model", [&] {
    if (fetch && !is_completed ? !is_whole(*name) : !spec::cached_model(*name))
      fetch_model(*name, fetch);
    try {
      return absolute_path(spec::model_folder(text).string());
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(error.what() + std::string(", and so does --fetch"));
    }
  });
}

}  // namespace

std::string found_model(const std::string& text, const ModelParts& parts) {
  const bool is_weights = spec::is_weight_file(text) || spec::is_torch_name(text);
  const bool is_file = is_weights && fs::is_regular_file(text);
  if (is_weights && !is_there(text))
    throw std::runtime_error("--model " + text + ": there is no such file");
  const bool composed =
      is_file ||
      !(parts.vae + parts.text_encoder + parts.text_encoder_2 + parts.text_encoder_3).empty();
  if (!parts.base.empty() && !is_file)
    throw UsageError(
        "--base goes with --model FILE.safetensors or FILE.gguf (or .ckpt, .pt, .bin): a folder "
        "has its own");
  if (is_file && parts.base.empty()) throw naming_base(text);
  const std::string folder =
      is_file ? naming("--base", [&] { return found_base(parts.base, parts.fetch).string(); })
              : found_folder(text, parts.fetch, composed);
  return composed ? completed_model(text, is_file, folder, parts) : folder;
}

std::string model_for_cluster(const std::string& text, std::string_view option) {
  warn_of_shadow(std::string(option), text);
  return spec::hub_name(text) && !is_there(text) ? text : absolute_path(text);
}

std::vector<std::string> allowed_folders(const std::vector<std::string>& texts) {
  std::vector<std::string> folders;
  for (const std::string& text : texts) {
    const auto name = spec::hub_name(text);
    if (!name || is_there(text)) {
      folders.push_back(absolute_path(text));
      continue;
    }
    naming("--allow-models", [&] { return spec::model_folder(text); });
    folders.push_back(absolute_path(spec::cached_repository(*name).string()));
  }
  return folders;
}

}  // namespace troupe::cli
