#pragma once

#include <string>

namespace troupe::kernels {

/// Opens one of our own libraries that need CUDA: at the path that the environment variable
/// `variable` names, else on the loader's path, else in `../lib` beside the program. Null where it
/// is nowhere, or something that it needs is missing; `why` then says what the loader said.
void* open_plugin(const std::string& file, const char* variable, std::string* why = nullptr);

}  // namespace troupe::kernels
