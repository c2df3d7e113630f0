// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/gemm/unit_f32.h"
#include "ops/cpu/vision_simd.h"

namespace sparrow::ops::cpu {

constinit const Kernels kAvx2Kernels = {&RowSimd<msa::Avx2>::kTable, &VisionSimd<msa::Avx2>::kTable,
                                        &GemmSimd<UnitF32<msa::Avx2>>::kTable, nullptr};

}  // namespace sparrow::ops::cpu
