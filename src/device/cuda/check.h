// SPDX-License-Identifier: Apache-2.0
// SPARROW_CUDA: a failed CUDA call is a bug, and the context is lost with it: says where and why, and aborts.
// Free of fmt, so that kernels' files can include it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

namespace sparrow {

[[noreturn]] inline void cuda_call_failed(const char* file, int line, const char* call, cudaError_t error) {
  std::fprintf(stderr, "%s:%d: CUDA call failed: %s: %s (%s)\n", file, line, call, cudaGetErrorString(error),
               cudaGetErrorName(error));
  std::abort();
}

}  // namespace sparrow

// Variadic: a launch wrapper's template arguments bring commas of their own.
#define SPARROW_CUDA(...)                                                         \
  do {                                                                            \
    const cudaError_t cuda_error_ = (__VA_ARGS__);                                \
    if (cuda_error_ != cudaSuccess)                                               \
      ::sparrow::cuda_call_failed(__FILE__, __LINE__, #__VA_ARGS__, cuda_error_); \
  } while (false)
