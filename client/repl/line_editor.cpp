#include "client/repl/line_editor.h"

#include <histedit.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "base/format.h"
#include "client/cli/terminal.h"

namespace troupe::repl {
namespace {

constexpr int kHistoryLines = 1000;
constexpr std::size_t kMostChoices = 200;

/// A Ctrl-C at the prompt interrupts the reading and does no more.
class InterruptibleRead {
 public:
  InterruptibleRead() {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    sigaction(SIGINT, &action, &before_);
  }
  ~InterruptibleRead() { sigaction(SIGINT, &before_, nullptr); }
  InterruptibleRead(const InterruptibleRead&) = delete;
  InterruptibleRead& operator=(const InterruptibleRead&) = delete;

 private:
  struct sigaction before_ {};
};

/// The choices in columns.
std::string columns(const std::vector<std::string>& choices, std::size_t width) {
  std::size_t cell = 0;
  for (const std::string& choice : choices)
    cell = std::max(cell, choice.size() + 2);
  const std::size_t across = std::max<std::size_t>(1, (width == 0 ? 80 : width) / cell);
  std::string text;
  for (std::size_t i = 0; i < choices.size() && i < kMostChoices; ++i) {
    text += choices[i];
    const bool last = (i + 1) % across == 0 || i + 1 == choices.size();
    text.append(last ? "\n" : std::string(cell - choices[i].size(), ' '));
  }
  if (choices.size() > kMostChoices)
    text += fmt::format("\n… {} more\n", choices.size() - kMostChoices);
  return text;
}

}  // namespace

struct LineEditor::Impl {
  EditLine* editor = nullptr;
  History* history = nullptr;
  HistEvent event{};
  std::string file;
  Complete complete;
  std::string prompt;

  static Impl& of(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return *static_cast<Impl*>(self);
  }
  static char* prompt_of(EditLine* editor) { return of(editor).prompt.data(); }

  static unsigned char on_tab(EditLine* editor, int) {
    Impl& self = of(editor);
    const LineInfo* line = el_line(editor);
    const Completion completion = self.complete({line->buffer, line->cursor});
    if (completion.choices.empty()) return CC_REFRESH_BEEP;
    const std::string more = completion.to_insert();
    if (!more.empty()) {
      if (el_insertstr(editor, more.c_str()) == -1) return CC_ERROR;
      return CC_REFRESH;
    }
    const std::string list = "\n" + columns(completion.choices, cli::output_width());
    std::fputs(list.c_str(), stdout);
    std::fflush(stdout);
    return CC_REDISPLAY;
  }

  ~Impl() {
    if (editor) el_end(editor);
    if (history) history_end(history);
  }
};

LineEditor::LineEditor(std::string file, Complete complete) : impl_(std::make_unique<Impl>()) {
  // In the C locale libedit drops every letter beyond ASCII.
  if (std::setlocale(LC_CTYPE, "") == nullptr || MB_CUR_MAX == 1)
    std::setlocale(LC_CTYPE, "C.UTF-8");
  impl_->file = std::move(file);
  impl_->complete = std::move(complete);
  impl_->editor = el_init("troupe", stdin, stdout, stderr);
  impl_->history = history_init();
  if (!impl_->editor || !impl_->history)
    throw std::runtime_error("[repl] the terminal cannot be edited on; use -c or a pipe");
  EditLine* editor = impl_->editor;
  el_set(editor, EL_CLIENTDATA, impl_.get());
  el_set(editor, EL_PROMPT, &Impl::prompt_of);
  el_set(editor, EL_SIGNAL, 1);
  el_set(editor, EL_EDITOR, "emacs");
  history(impl_->history, &impl_->event, H_SETSIZE, kHistoryLines);
  history(impl_->history, &impl_->event, H_SETUNIQUE, 1);
  if (!impl_->file.empty()) history(impl_->history, &impl_->event, H_LOAD, impl_->file.c_str());
  el_set(editor, EL_HIST, history, impl_->history);
  el_set(editor, EL_ADDFN, "troupe-complete", "Complete the word", &Impl::on_tab);
  el_set(editor, EL_BIND, "^I", "troupe-complete", nullptr);
  el_set(editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
}

LineEditor::~LineEditor() = default;

LineEditor::Line LineEditor::read(const std::string& prompt) {
  const InterruptibleRead interruptible;
  impl_->prompt = prompt;
  int count = 0;
  errno = 0;
  const char* text = el_gets(impl_->editor, &count);
  if (text == nullptr || count <= 0) {
    if (count < 0 && errno == EINTR) {
      el_reset(impl_->editor);
      std::fputs("^C\n", stdout);
      std::fflush(stdout);
      return {Outcome::interrupted, ""};
    }
    return {Outcome::end, ""};
  }
  std::string line(text, static_cast<std::size_t>(count));
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r'))
    line.pop_back();
  return {Outcome::line, std::move(line)};
}

void LineEditor::remember(const std::string& line) {
  history(impl_->history, &impl_->event, H_ENTER, line.c_str());
  // At once: a terminal that is closed ends the process by a signal.
  if (!impl_->file.empty()) history(impl_->history, &impl_->event, H_SAVE, impl_->file.c_str());
}

std::string history_file() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path folder;
  if (state && state[0] == '/') {
    folder = state;
  } else if (home && home[0] == '/') {
    folder = std::filesystem::path(home) / ".local/state";
  } else {
    return "";
  }
  std::error_code error;
  std::filesystem::create_directories(folder / "troupe", error);
  if (error || access((folder / "troupe").c_str(), W_OK) != 0) return "";
  return folder / "troupe/repl_history";
}

}  // namespace troupe::repl
