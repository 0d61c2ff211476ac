#pragma once
#include <functional>
#include <string>

#include "client/cli/options.h"

namespace troupe::cli {

/// Gives the verb's options that the command line does not have the defaults that the user has set:
/// in the environment (Option::environment), else in the file, under [VERB] or before the first
/// section. The file is TOML as CLI11 reads it, with names of options without dashes in front.
/// `check` throws UsageError where options contradict each other: then a default is left out that
/// is a rival of what goes before it. Warns on standard error of a variable that was probably meant
/// for an option. Throws UsageError for a name that no option has, for a value that the option does
/// not take and for what `check` still refuses, std::runtime_error for a file that cannot be read.
void take_defaults(Options& verb, const std::function<void()>& check);

/// Shows the defaults in the verb's help. What is wrong with them is said on standard error.
void show_defaults(Options& verb);

/// Returns an error's text behind the variables and lines of the file that set options which it
/// names: "TROUPE_STEPS: --steps is …".
std::string with_places(const Options& verb, const std::string& what);

}  // namespace troupe::cli
