#pragma once
#include <string>

namespace CLI {
class App;
}

namespace troupe::cli {

enum class Shell { bash, zsh, fish };

/// A script that completes `troupe` in that shell: commands, their options, the words that an
/// option takes, files of its kind, numbers of jobs.
std::string completion_script(CLI::App& troupe, Shell shell);

/// The manual page, in man's macros: of `troupe` itself, or of one of its commands.
std::string manual_page(CLI::App& troupe);
std::string manual_page(CLI::App& troupe, CLI::App& verb);

}  // namespace troupe::cli
