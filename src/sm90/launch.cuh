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
// so none can be locked out. One that writes before its wait (ops/cuda/moe/many/tile_items.cuh) knows that
// the kernel before it, which has waited, does not touch that.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

namespace hopper {

struct Launch {
  dim3 grid;
  int threads = 0;
  int smem_bytes = 0;       // dynamic ones, of each CTA
  int cluster = 1;          // CTAs along x; 1: none but what the kernel declares
  int most_smem_bytes = 0;  // of any launch of the kernel, where they differ
};

template <typename... Params, typename... Args>
cudaError_t launch_dependent(void (*kernel)(Params...), const Launch& launch, cudaStream_t stream,
                             const Args&... args) {
  constexpr int kDefaultSmemBytes = 48 * 1024, kPortableCluster = 8;
  const int most_smem_bytes = std::max(launch.smem_bytes, launch.most_smem_bytes);
  cudaError_t error = cudaSuccess;
  if (most_smem_bytes > kDefaultSmemBytes)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_smem_bytes);
  if (error == cudaSuccess && launch.cluster > kPortableCluster)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(launch.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = launch.grid;
  config.blockDim = dim3(launch.threads);
  config.dynamicSmemBytes = static_cast<size_t>(launch.smem_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = launch.cluster > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

// Shared memory of a CTA when `ctas` of them share an SM: 228 KiB, one of them the system's for each CTA.
inline constexpr int smem_share(int ctas) {
  return 233472 / ctas / 128 * 128 - 1024;
}

}  // namespace hopper
