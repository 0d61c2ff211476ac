#pragma once
#include <functional>
#include <string>
#include <vector>

#include "client/repl/command.h"

namespace troupe::repl {

/// What stands at the cursor, and what could.
struct Completion {
  std::string word;                  // the part of the word that is there
  std::vector<std::string> choices;  // sorted; each begins with `word`
  /// What all choices have in common beyond `word`, and a space where there is only one.
  std::string to_insert() const;
};

/// Words that may stand for an argument behind those that are there, the command's name first;
/// asked for only when they are needed.
using ArgumentWords = std::function<std::vector<std::string>(Argument, const Words& before)>;

/// `before` is the line up to the cursor. Commands are completed by name, arguments by what they
/// are, options of `submit` and `follow` by what `options_of` says.
Completion complete(const std::string& before, const std::vector<Command>& commands,
                    const ArgumentWords& words_for,
                    const std::function<std::vector<std::string>(const std::string&)>& options_of);

}  // namespace troupe::repl
