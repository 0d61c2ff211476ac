#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace troupe::spec {

/// A number for the state of a model folder: changes when a file that is read from it (configs,
/// tokenizers, shard indices, safetensors) is replaced, written to, renamed, added or removed, also
/// where its name and size stay. Looks at path, size, inode and times of `model_index.json` and of
/// the files in the component folders beside it, or of the files in the folder of one part with a
/// `config.json`, not into them. Never 0; 0 stands for "unknown" elsewhere. A folder that is not
/// there has a number, too.
std::uint64_t fingerprint(const std::filesystem::path& folder);

/// The same of what a file holds, whatever it is called and wherever it lies.
std::uint64_t bytes_fingerprint(std::string_view bytes);

/// The same of a LoRA's file and of the adapter_config.json beside it.
std::uint64_t lora_fingerprint(const std::filesystem::path& file);

}  // namespace troupe::spec
