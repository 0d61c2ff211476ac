#pragma once
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace troupe::cli {

/// For people: on one line, and without the tags of the rooms that an error comes from.
std::string one_line(std::string text);

/// The option parser's complaint in words that say what is wrong with the command line.
std::string parse_error_text(const std::string& what);
/// What to say of words that `app` knows nothing of.
std::string unexpected_text(const CLI::App& app, const std::vector<std::string>& extras);

}  // namespace troupe::cli
