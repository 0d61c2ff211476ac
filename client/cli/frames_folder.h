#pragma once
#include <string>
#include <vector>

namespace troupe::cli {

/// A path that ends in a slash: a folder for a video's frames.
bool is_folder_name(const std::string& path);

/// Throws std::runtime_error saying why frames could not be written in that folder, which need not
/// be there yet. A reason is also a file in it that is named as a frame and was not written by
/// troupe.
void check_frames_folder(const std::string& path);

/// Writes `frames[i]` of each picture as PATH/0000.png, …, or of several pictures as
/// PATH/0-0000.png, …; makes the folder in an existing one. Frames of troupe's that were there and
/// are not of these pictures are removed, so that the folder holds what was made and nothing of a
/// longer video before. Other files stay. Returns the paths written. Throws std::runtime_error
/// naming path and cause.
std::vector<std::string> write_frames(const std::string& path,
                                      const std::vector<std::vector<std::string>>& pictures);

}  // namespace troupe::cli
