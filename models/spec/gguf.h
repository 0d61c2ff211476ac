#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "models/spec/weight_index.h"

namespace troupe::spec {

/// The table of contents of a GGUF file.
struct GgufContents {
  /// Tensors in the order of the file; shapes begin with the outermost side, as everywhere here.
  std::vector<TensorEntry> tensors;
  /// Texts and numbers of the file's keys, as text; lists are left out.
  std::map<std::string, std::string> metadata;
};

/// Returns whether a file's name is that of a safetensors or GGUF file, and not hidden.
bool is_weight_file(const std::filesystem::path& file);

/// Returns whether the file begins as GGUF files do; false also where it cannot be read.
bool is_gguf(const std::filesystem::path& file);

/// Reads the header of a GGUF file, version 2 or 3, little-endian; no weights. Throws
/// std::runtime_error naming file, key or tensor and numbers for: another version, a header that is
/// cut off or longer than 100 MB, more than 65,536 tensors or keys, a name that comes twice, an
/// element type that is not read (with those that are), rows that are no whole number of blocks, a
/// tensor beyond the file's end or over another one. Source: ggml's documentation of GGUF.
GgufContents read_gguf(const std::filesystem::path& file);

}  // namespace troupe::spec
