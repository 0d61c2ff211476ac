#pragma once
#include <string>

#include "client/repl/words.h"

namespace troupe::repl {

/// Returns words as a JSON array of arguments: a word that is JSON stands as it is, every other
/// word is a string. `5 [1, 2] "two words"` is [5,[1,2],"two words"]; for the string "5" write
/// '"5"'.
std::string call_arguments(const Words& words);

}  // namespace troupe::repl
