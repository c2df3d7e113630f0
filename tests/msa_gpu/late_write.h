// SPDX-License-Identifier: Apache-2.0
// A kernel ahead that lets its successor start at once and writes late: what an early start must not read.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace msa::sm90 {

// Copies `bytes` (a multiple of 16) of device memory some 50 us after the next kernel may have started.
cudaError_t write_late(void* to, const void* from, size_t bytes, cudaStream_t stream);

}  // namespace msa::sm90
