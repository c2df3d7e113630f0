// SPDX-License-Identifier: Apache-2.0
// How fast the GPU reads its memory: what floors are counted with.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace sparrow {

// Bytes a microsecond, the best of several runs over `bytes` of memory, 16-byte aligned; synchronises. `sink`
// is 4 bytes of device memory that may be overwritten.
double measure_read_rate(const void* memory, size_t bytes, unsigned* sink, cudaStream_t stream);

}  // namespace sparrow
