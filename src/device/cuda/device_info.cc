// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/device_info.h"

#include <cuda_runtime_api.h>

#include "device/cuda/check.h"

namespace sparrow {

Result<DeviceInfo> find_device(int ordinal) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    cudaGetLastError();
    return Error{
        Errc::kUnsupported,
        strf("no GPU was found ({}): install NVIDIA's driver and check that nvidia-smi lists a GPU, or run "
             "with --device cpu",
             error == cudaSuccess ? "the driver lists none" : cudaGetErrorString(error))};
  }
  if (ordinal < 0 || ordinal >= count)
    return Error{Errc::kInvalidArgument, strf("GPU {} does not exist: this machine has {}", ordinal, count)};
  cudaDeviceProp properties;
  SPARROW_CUDA(cudaGetDeviceProperties(&properties, ordinal));
  DeviceInfo info = {.ordinal = ordinal,
                     .name = properties.name,
                     .num_sms = properties.multiProcessorCount,
                     .compute_major = properties.major,
                     .compute_minor = properties.minor};
  // The kernels use instructions of sm_90a, which no other architecture runs, newer ones included.
  if (info.compute_major != 9 || info.compute_minor != 0)
    return Error{
        Errc::kUnsupported,
        strf(
            "{} has compute capability {}.{}, but this build's kernels need 9.0 (H100, H200): choose another "
            "GPU with CUDA_VISIBLE_DEVICES, or run with --device cpu",
            info.name, info.compute_major, info.compute_minor)};
  return info;
}

Result<DeviceInfo> use_device(int ordinal) {
  DeviceInfo info = SPARROW_TRY(find_device(ordinal));
  SPARROW_CUDA(cudaSetDevice(ordinal));
  SPARROW_CUDA(cudaMemGetInfo(&info.free_bytes, &info.total_bytes));
  return info;
}

}  // namespace sparrow
