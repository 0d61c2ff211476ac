#pragma once
#include <string>
#include <vector>

namespace troupe::repl {

/// Paths that begin with `typed`: folders, with a slash behind them, and files whose names end with
/// `ending` ("" = all). Those whose names begin with a dot only where it is typed. Sorted.
std::vector<std::string> file_words(const std::string& typed, const std::string& ending);

/// Returns whether an option or argument is a file or a folder, and the ending of its files, by its
/// name in the help: "F.safetensors" has ".safetensors", "FILE" and "FILE[:SCALE]" have "".
bool is_file(const std::string& type);
std::string ending_of(const std::string& type);

}  // namespace troupe::repl
