// SPDX-License-Identifier: Apache-2.0
// DeviceArray: device memory of a test, filled from the host or with a poison that reads as NaN.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "device/cuda/check.h"

namespace sparrow::test {

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    SPARROW_CUDA(cudaMalloc(reinterpret_cast<void**>(&data_), (count + 1) * sizeof(T)));
    SPARROW_CUDA(cudaMemset(data_, 0xff, count * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) {
    SPARROW_CUDA(cudaMemcpy(data_, host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  T* data() const { return data_; }
  size_t size() const { return count_; }
  // Waits for all work on the device.
  std::vector<T> download() const {
    std::vector<T> host(count_);
    SPARROW_CUDA(cudaDeviceSynchronize());
    SPARROW_CUDA(cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  T* data_ = nullptr;
  size_t count_;
};

}  // namespace sparrow::test
