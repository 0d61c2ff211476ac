#pragma once
#include <functional>
#include <string>
#include <vector>

#include "client/repl/command.h"

namespace troupe::repl {

/// Word at the cursor, and the words that it could become.
struct Completion {
  std::string word;                  // the part of the word that is there, without its quotes
  char quote = 0;                    // quote that the word is inside of
  std::vector<std::string> choices;  // sorted; each begins with `word`
  /// Returns what all choices have in common beyond `word`, as it is to be typed; if there is only
  /// one, with the quote that ends it and a space, but not behind a folder.
  std::string to_insert() const;
};

/// Words that may stand for an argument behind those that are there, the command's name first;
/// asked for only when they are needed. Not for files.
using ArgumentWords = std::function<std::vector<std::string>(Argument, const Words& before)>;

/// `before` is the line up to the cursor. Completed are commands by name, arguments by what they
/// are, the options of `submit` and `follow` and their values, and files.
Completion complete(const std::string& before, const std::vector<Command>& commands,
                    const ArgumentWords& words_for);

/// Paths that begin with `typed`: folders, with a slash behind them, and files whose names end with
/// `ending` ("" = all). Those whose names begin with a dot only where it is typed. Sorted.
std::vector<std::string> file_words(const std::string& typed, const std::string& ending);

}  // namespace troupe::repl
