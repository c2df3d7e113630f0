// SPDX-License-Identifier: Apache-2.0
// Launching a kernel that may start while the one before it in the stream drains. Such a kernel calls
// wait_for_previous_kernel() before it touches memory.
#pragma once

#include <cuda_runtime.h>

namespace msa::sm90 {

template <typename... Params, typename... Args>
cudaError_t launch_dependent(void (*kernel)(Params...), dim3 grid, int threads, int smem_bytes,
                             cudaStream_t stream, const Args&... args) {
  constexpr int kDefaultSmemBytes = 48 * 1024;
  if (smem_bytes > kDefaultSmemBytes) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = static_cast<size_t>(smem_bytes);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

}  // namespace msa::sm90
