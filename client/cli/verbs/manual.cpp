#include <filesystem>
#include <iostream>

#include "client/cli/files.h"
#include "client/cli/json.h"
#include "client/cli/shell_completion.h"
#include "client/cli/verb.h"

namespace troupe::cli {
namespace {

class CompletionVerb : public Verb {
 public:
  explicit CompletionVerb(Options& options) : Verb(options) {
    app_->take_no_defaults();
    app_->add_option("SHELL", shell_, "bash, zsh or fish")->check(one_of({"bash", "zsh", "fish"}));
    set_footer("`cmake --install` puts the scripts where the shells look for them.",
               {"source <(troupe completion bash)",
                "troupe completion zsh > ~/.zfunc/_troupe   # with fpath+=~/.zfunc",
                "troupe completion fish > ~/.config/fish/completions/troupe.fish"},
               "commands.md#completion-and-man");
  }

  int run() override {
    if (shell_.empty()) throw UsageError("completion needs a SHELL: bash, zsh or fish");
    const auto shell = shell_ == "bash" ? Shell::bash : shell_ == "zsh" ? Shell::zsh : Shell::fish;
    const auto script = completion_script(*app_->parent(), shell);
    json() ? print_json({{"shell", shell_}, {"script", script}}) : void(std::cout << script);
    return kOk;
  }

 private:
  std::string shell_;
};

class ManVerb : public Verb {
 public:
  explicit ManVerb(Options& options) : Verb(options) {
    app_->take_no_defaults();
    app_->add_option("COMMAND", command_, "Its page, instead of that of `troupe` itself")
        ->kind(ValueKind::command);
    app_->add_option("--write", folder_, "Write all pages into this folder")
        ->check(not_empty())
        ->type_name("DIR");
    set_footer("The pages say what --help says.",
               {"troupe man run | man -l -", "troupe man --write ~/.local/share/man/man1"},
               "commands.md#completion-and-man");
  }

  int run() override {
    Options& troupe = *app_->parent();
    if (!folder_.empty()) return write_all(troupe);
    std::string page;
    if (command_.empty()) {
      page = manual_page(troupe);
    } else {
      page = manual_page(troupe, named(troupe));
    }
    json() ? print_json({{"page", page}}) : void(std::cout << page);
    return kOk;
  }

 private:
  Options& named(Options& troupe) const {
    for (const auto& verb : troupe.commands())
      if (verb->name() == command_) return *verb;
    throw UsageError("man \"" + command_ + "\": no such command");
  }

  int write_all(Options& troupe) const {
    if (!command_.empty()) throw UsageError("--write goes without a COMMAND: it writes all pages");
    make_folder("--write", folder_);
    auto files = nlohmann::json::array();
    const auto write = [&](const std::string& name, const std::string& page) {
      files.push_back(folder_ + "/" + name + ".1");
      write_file(files.back(), page);
      if (!json()) std::cout << files.back().get<std::string>() << "\n";
    };
    write("troupe", manual_page(troupe));
    for (const auto& verb : troupe.commands())
      write("troupe-" + verb->name(), manual_page(troupe, *verb));
    if (json()) print_json({{"files", files}});
    return kOk;
  }

  std::string command_;
  std::string folder_;
};

}  // namespace

std::unique_ptr<Verb> make_completion(Options& options) {
  return std::make_unique<CompletionVerb>(options);
}

std::unique_ptr<Verb> make_man(Options& options) {
  return std::make_unique<ManVerb>(options);
}

}  // namespace troupe::cli
