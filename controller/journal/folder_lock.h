#pragma once
#include <string>

#include "base/file_handle.h"

namespace troupe::journal {

/// Makes the folder, if there is none, for its owner alone, and holds its file `lock`, in which its
/// process is named, until the handle goes. Throws std::runtime_error "[journal] FOLDER: why": in
/// use by another controller, not writable, another user's, or open to others.
FileHandle lock_folder(const std::string& folder);

}  // namespace troupe::journal
