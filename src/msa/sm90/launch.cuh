// SPDX-License-Identifier: Apache-2.0
// Launching a kernel that may start while the one before it in the stream runs.
//
// The rule. wait_for_previous_kernel() returns when the kernel before is over and what it wrote is visible.
// That one waited too before it wrote, so the same holds for all kernels before it, however early each let
// its successor start. Before its wait a kernel may therefore read only what no kernel of the step writes
// (weights, metadata that copies brought, keys of earlier steps), and it writes nothing. One that reads more
// says so, and the kernel before it lets it start only after its own wait. At least one CTA of every kernel
// waits. A kernel of few CTAs lets the next one start with its first instruction: the next one's weights are
// then on their way while it works. A CTA starts only when all CTAs of the kernels before it have started,
// so none can be locked out.
#pragma once

#include <cuda_runtime.h>

namespace msa::sm90 {

// `most_smem_bytes`: of any launch of the kernel, where they differ.
template <typename... Params, typename... Args>
cudaError_t launch_dependent_sized(void (*kernel)(Params...), dim3 grid, int threads, int smem_bytes,
                                   int most_smem_bytes, cudaStream_t stream, const Args&... args) {
  constexpr int kDefaultSmemBytes = 48 * 1024;
  if (most_smem_bytes > kDefaultSmemBytes) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_smem_bytes);
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

template <typename... Params, typename... Args>
cudaError_t launch_dependent(void (*kernel)(Params...), dim3 grid, int threads, int smem_bytes,
                             cudaStream_t stream, const Args&... args) {
  return launch_dependent_sized(kernel, grid, threads, smem_bytes, smem_bytes, stream, args...);
}

}  // namespace msa::sm90
