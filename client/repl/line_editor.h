#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "client/repl/completion.h"

namespace troupe::repl {

/// Reads lines from the terminal with editing, history and completion (libedit).
class LineEditor {
 public:
  using Complete = std::function<Completion(const std::string& before)>;

  /// History is kept in `history_file` from one console to the next; "" = not.
  LineEditor(std::string history_file, Complete complete);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  enum class Outcome { line, interrupted, end };
  struct Line {
    Outcome outcome = Outcome::end;
    std::string text;  // without its end
  };
  /// The next line. `interrupted` after Ctrl-C, `end` after Ctrl-D or when the terminal is gone.
  Line read(const std::string& prompt);
  void remember(const std::string& line);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns the file where the history is kept: $XDG_STATE_HOME/troupe/repl_history, else below
/// ~/.local/state; "" when there is no such folder and none can be made.
std::string history_file();

}  // namespace troupe::repl
