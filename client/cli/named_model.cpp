#include "client/cli/named_model.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <stdexcept>

#include "base/format.h"
#include "client/cli/files.h"
#include "client/cli/terminal.h"
#include "client/cli/verb.h"
#include "models/spec/hub.h"
#include "models/text/tokenizers.h"

namespace troupe::cli {
namespace {

namespace fs = std::filesystem;

bool is_there(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
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

void run_hf(const spec::HubName& name, bool dry) {
  auto words = spec::fetch_words(name);
  if (dry) words.push_back("--dry-run");
  if (const int code = run_program(words); code != 0)
    throw std::runtime_error(
        fmt::format("{}: `hf download{}` of huggingface_hub (1.0 or later) ended with {}; what it "
                    "said stands above",
                    spec::hub_text(name), dry ? " --dry-run" : "", code));
}

/// Fetches what the cache lacks of a model. `hf` says before how much that is; without `fetch` the
/// terminal is asked then. Returns whether it was fetched.
bool fetch_model(const spec::HubName& name, bool fetch) {
  const bool asks = !fetch && isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
  if (!fetch && !asks) return false;
  if (spec::hub_is_offline()) {
    if (!fetch) return false;
    throw std::runtime_error(spec::hub_text(name) +
                             ": HF_HUB_OFFLINE, or TRANSFORMERS_OFFLINE, forbids to fetch it");
  }
  run_hf(name, true);
  if (asks) {
    std::cerr << "fetch " << spec::hub_text(name) << " into " << spec::hub_cache().string()
              << "? [y/N] " << std::flush;
    std::string answer;
    std::getline(std::cin, answer);
    if (answer != "y" && answer != "Y" && answer != "yes") return false;
  }
  run_hf(name, false);
  return true;
}

/// Returns whether the cache has all that is read of a model.
bool is_whole(const spec::HubName& name) {
  try {
    const auto folder = spec::cached_model(name);
    if (folder) models::read_model_folder(*folder);
    return folder.has_value();
  } catch (const std::runtime_error&) {
    return false;  // who reads it next says what is wrong with it
  }
}

}  // namespace

Option* add_fetch_option(Options& app, bool& fetch) {
  return app.add_flag(
      "--fetch", fetch,
      "Let hf fetch what the Hugging Face cache lacks of --model ORG/NAME (docs/models.md)");
}

std::string found_model(const std::string& text, bool fetch) {
  const auto name = spec::hub_name(text);
  if (!name) return absolute_path(text);
  return naming("--model", [&] {
    if (is_there(text)) {
      if (spec::cached_model(*name))
        say("warning: --model " + text + " is the folder here, not the model of that name in the " +
            "Hugging Face cache");
      return absolute_path(text);
    }
    if (fetch ? !is_whole(*name) : !spec::cached_model(*name)) fetch_model(*name, fetch);
    try {
      return absolute_path(spec::model_folder(text).string());
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(error.what() + std::string(", and so does --fetch"));
    }
  });
}

std::string model_for_cluster(const std::string& text) {
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
