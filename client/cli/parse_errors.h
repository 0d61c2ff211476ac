#pragma once
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
}

namespace troupe::cli {

/// Returns an error's text for people: on one line, and without the tags of the rooms that it comes
/// from.
std::string one_line(std::string text);

/// Pairs of a room's tag and the option that says what the room works with.
using RoomOptions = std::vector<std::pair<std::string, std::string>>;
/// Returns a room's error under the room's option: "[keys] x: is no folder" becomes "--keys x: is
/// no folder". The words of other rooms stay as they are.
std::string by_option(const std::string& what, const RoomOptions& options);

/// Returns the option parser's complaint in words that say what is wrong with the command line.
std::string parse_error_text(const std::string& what);
/// Returns the complaint about words that `app` does not know.
std::string unexpected_text(const CLI::App& app, const std::vector<std::string>& extras);

}  // namespace troupe::cli
