#pragma once
#include <string>

#include "base/files.h"

namespace troupe::journal {

/// Locks of the folder itself, and of its file `lock`, which somebody may remove: file systems that
/// lock no folders have only the file's.
struct FolderLock {
  FileHandle folder;
  FileHandle file;
};

/// Makes the folder, if there is none, for its owner alone, and holds it until the handles go; its
/// file `lock` names this process. Throws std::runtime_error "[journal] FOLDER: why": in
/// use by another controller, not writable, another user's, or open to others.
FolderLock lock_folder(const std::string& folder);

}  // namespace troupe::journal
