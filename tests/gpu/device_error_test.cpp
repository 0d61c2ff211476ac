// The numbers that actors know CUDA's errors by are CUDA's.
#include <cuda_runtime_api.h>

#include "actors/device.h"
#include "tests/support/doctest.h"

TEST_CASE("errors that stick have CUDA's numbers") {
  for (const auto error :
       {cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable, cudaErrorContained,
        cudaErrorIllegalAddress, cudaErrorLaunchTimeout, cudaErrorContextIsDestroyed,
        cudaErrorAssert, cudaErrorHardwareStackError, cudaErrorIllegalInstruction,
        cudaErrorMisalignedAddress, cudaErrorInvalidAddressSpace, cudaErrorInvalidPc,
        cudaErrorLaunchFailure, cudaErrorTensorMemoryLeak, cudaErrorMpsClientTerminated,
        cudaErrorExternalDevice})
    CHECK(troupe::actors::sticks(error));
  CHECK(troupe::actors::kIllegalAddress == cudaErrorIllegalAddress);
  for (const auto error : {cudaSuccess, cudaErrorMemoryAllocation, cudaErrorNotReady,
                           cudaErrorLaunchOutOfResources, cudaErrorStreamCaptureUnsupported})
    CHECK_FALSE(troupe::actors::sticks(error));
}
