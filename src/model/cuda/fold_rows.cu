// SPDX-License-Identifier: Apache-2.0
// A warp for each row, which it reads twice; a lane moves the 32 codes that share a scale.
#include "model/cuda/fold_rows.h"

#include <algorithm>

#include "base/matrix_format.h"
#include "ops/cuda/mx/cell.h"
#include "ops/cuda/mx/fold.h"

namespace sparrow {
namespace {

using namespace ops::cuda;

constexpr int kWarps = 8, kMaxCtas = 132 * 8;

struct Group {
  alignas(16) uint8_t codes[kScaleGroup];

  __device__ explicit Group(const uint8_t* from) {
    const auto* const words = reinterpret_cast<const uint4*>(from);
    reinterpret_cast<uint4*>(codes)[0] = words[0], reinterpret_cast<uint4*>(codes)[1] = words[1];
  }
  __device__ void store(uint8_t* to) const {
    auto* const words = reinterpret_cast<uint4*>(to);
    words[0] = reinterpret_cast<const uint4*>(codes)[0], words[1] = reinterpret_cast<const uint4*>(codes)[1];
  }
  __device__ uint32_t largest() const {
    uint32_t m = 0;
#pragma unroll
    for (const uint8_t code : codes) m = max(m, uint32_t{code} & 0x7f);
    return m;
  }
  // Returns how many numbers are others now.
  __device__ unsigned fold(int shift) {
    unsigned changed = 0;
#pragma unroll
    for (uint8_t& code : codes) {
      const uint32_t folded = fold_code(code, shift);
      changed += fold_code(folded, -shift) != code ? 1 : 0;
      code = static_cast<uint8_t>(folded);
    }
    return changed;
  }
};

__global__ void __launch_bounds__(kWarps * 32) fold_rows_kernel(const FoldRowsParams p) {
  constexpr unsigned kAll = 0xffffffff;
  const int lane = threadIdx.x % 32;
  const int64_t groups = p.columns / kScaleGroup;
  for (int64_t row = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32; row < p.rows;
       row += int64_t{gridDim.x} * kWarps) {
    uint8_t* const codes = p.codes + row * p.columns;
    uint8_t* const scales = p.scales + row * groups;
    int scale = 0;
    bool is_bad = false;
    for (int64_t g = lane; g < groups; g += 32) {
      const uint32_t largest = Group(codes + g * kScaleGroup).largest();
      is_bad |= largest == 0x7f || scales[g] > max_cell_scale(MatrixFormat::kMxfp8);
      if (!is_bad) scale = max(scale, folded_scale(largest, scales[g]));
    }
    if (__any_sync(kAll, is_bad)) continue;
    scale = __reduce_max_sync(kAll, scale);
    unsigned changed = 0;
    for (int64_t g = lane; g < groups; g += 32) {
      if (scales[g] == scale) continue;
      Group group(codes + g * kScaleGroup);
      changed += group.fold(scales[g] - scale);
      group.store(codes + g * kScaleGroup);
      scales[g] = static_cast<uint8_t>(scale);
    }
    changed = __reduce_add_sync(kAll, changed);
    if (lane == 0 && changed > 0) atomicAdd(p.changed, static_cast<unsigned long long>(changed));
  }
}

}  // namespace

cudaError_t launch_fold_rows(const FoldRowsParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.columns == 0) return cudaSuccess;
  const auto ctas = static_cast<unsigned>(std::min<int64_t>((p.rows + kWarps - 1) / kWarps, kMaxCtas));
  fold_rows_kernel<<<ctas, kWarps * 32, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace sparrow
