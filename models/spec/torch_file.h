#pragma once

#include <filesystem>
#include <vector>

#include "models/spec/weight_index.h"

namespace troupe::spec {

/// Returns whether a file's name is one that torch.save's files have (.bin, .ckpt, .pt, .pth), and
/// not hidden.
bool is_torch_name(const std::filesystem::path& file);

/// Returns whether the file begins as torch.save's do; false also where it cannot be read.
bool is_torch_file(const std::filesystem::path& file);

/// Reads which tensors a file of torch.save has, in its zip form or the one before it; no weights,
/// and nothing is executed: of pickle the operations are known that tensors, dictionaries, lists,
/// numbers and texts need. Tensors of dictionaries in dictionaries are called "outer.inner"; where
/// the file has a `state_dict`, it alone is read. Throws std::runtime_error naming file and what is
/// wrong for: another function or class than those of tensors, by its name, another operation, a
/// pickle longer than 32 MiB or with more than 2 million values, more than 65,536 tensors, a
/// storage that is compressed, missing or shorter than its tensors, strides that are neither those
/// of rows one behind the other nor those of a transposed matrix.
std::vector<TensorEntry> read_torch_file(const std::filesystem::path& file);

}  // namespace troupe::spec
