#pragma once

// What the CUDA sources use of the runtime's types, for a C++ compiler.

using cudaError_t = int;
using cudaStream_t = struct CUstream_st*;
inline constexpr cudaError_t cudaSuccess = 0;
inline constexpr cudaError_t cudaErrorInvalidValue = 1;
inline constexpr cudaError_t cudaErrorInvalidConfiguration = 9;
