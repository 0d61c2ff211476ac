#pragma once
#include <string>

#include "client/cli/options.h"

namespace troupe::cli {

enum class Shell { bash, zsh, fish };

/// A script that completes `troupe` in that shell: commands, their options, the words that an
/// option takes, files of its kind, numbers of jobs.
std::string completion_script(const Options& troupe, Shell shell);

/// The manual page, in man's macros: of `troupe` itself, or of one of its commands.
std::string manual_page(const Options& troupe);
std::string manual_page(const Options& troupe, const Options& verb);

}  // namespace troupe::cli
