#pragma once

#include <c10/util/Half.h>
#include <cuda_runtime.h>

using __half = c10::Half;
