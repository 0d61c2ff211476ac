#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/image/clip_file.h"
#include "troupe/client.h"

namespace troupe::cli {

/// Writes a temporary file beside `path`, then renames it: `path` is whole or untouched.
/// Throws std::runtime_error naming path and cause.
void write_file(const std::string& path, std::string_view bytes);

/// Throws std::runtime_error saying why a file could not be written at `path`, by trying in its
/// folder. `what` opens the message, e.g. "--output".
void check_writable(const std::string& what, const std::string& path);

/// Makes the folder that `option` names in an existing one, unless it is there. Throws
/// std::runtime_error naming path and cause.
void make_folder(const std::string& option, const std::string& path);

/// Makes the folder of `--keep-logs` in an existing one, and its path absolute; nothing for "".
/// Throws std::runtime_error naming path and cause.
void make_log_folder(std::string& path);

/// The absolute path, without `.` and `..`; "" for "".
std::string absolute_path(const std::string& path);

/// Throws UsageError when the file name of `option` has an extension that is not `wanted` (".png").
void check_extension(const std::string& option, const std::string& path, const std::string& wanted);

/// True if the name says that latents are to be written, not pictures: x.safetensors.
bool is_latents_name(const std::string& path);

/// Returns the format of a picture's or a video's file by its name: apng for .png and for no
/// ending. Nothing for another ending.
std::optional<models::ClipFormat> clip_format(const std::string& path);

/// Returns the paths of `count` pictures: `out.png` itself for one; `out-0.png`, `out-1.png`, … for
/// several; where the pattern has `{}`, the number stands there. `.png` is added when missing.
/// Throws UsageError for another extension or if the pattern names no file.
std::vector<std::string> picture_paths(const std::string& pattern, int count);

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

/// The tensor `latents`, float32 [n, channels, rows, columns], of a safetensors file.
/// Throws std::runtime_error naming file and cause: not readable, no such tensor, another type or
/// rank, a value that is not finite.
Latents read_latents(const std::string& path);

/// The safetensors bytes of a file with that one tensor.
std::string latents_file_bytes(const Latents& latents);

}  // namespace troupe::cli
