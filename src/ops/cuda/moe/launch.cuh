// SPDX-License-Identifier: Apache-2.0
// Launching the kernels of this folder: each may start while the one before it drains, some in clusters.
#pragma once

#include "device/cuda/check.h"

namespace sparrow::ops::cuda {

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  SPARROW_CUDA(cudaGetDevice(&device));
  SPARROW_CUDA(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

inline int num_sms() {
  return device_attribute(cudaDevAttrMultiProcessorCount);
}

// Shared memory of a CTA when `ctas` of them share an SM: 228 KiB, one of them the system's for each CTA.
inline constexpr int smem_share(int ctas) {
  return 233472 / ctas / 128 * 128 - 1024;
}

// CTAs of a kernel that an SM holds at once.
template <typename Params>
int resident_ctas(void (*kernel)(Params), int threads, int smem_bytes) {
  int ctas = 0;
  SPARROW_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes));
  SPARROW_CUDA(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas, kernel, threads, static_cast<size_t>(smem_bytes)));
  return ctas;
}

template <typename Params>
void launch_overlapped(void (*kernel)(Params), int grid, int cluster, int threads, int smem_bytes,
                       cudaStream_t stream, const Params& params) {
  SPARROW_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes));
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = static_cast<size_t>(smem_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  SPARROW_CUDA(cudaLaunchKernelEx(&config, kernel, params));
}

}  // namespace sparrow::ops::cuda
