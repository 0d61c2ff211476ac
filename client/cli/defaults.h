#pragma once
#include <string>

#include "client/cli/options.h"

namespace troupe::cli {

/// Gives the verb's options the defaults that the user has set: in the environment (variable_of),
/// else in the file, under [VERB] or before the first section. The file is TOML as CLI11 reads it,
/// with names of options without dashes in front. Warns on standard error of a variable that was
/// probably meant for an option. Throws UsageError for a name that no option has
/// and a value that the option does not take, std::runtime_error for a file that cannot be read.
void take_defaults(Options& verb);

}  // namespace troupe::cli
