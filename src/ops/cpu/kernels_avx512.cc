// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/gemm/unit_f32.h"
#include "ops/cpu/vision_simd.h"

namespace sparrow::ops::cpu {

// The stronger sets differ in their bf16 products alone, which have files of their own.
constinit const Kernels kAvx512Kernels = {&RowSimd<msa::Avx512>::kTable, &VisionSimd<msa::Avx512>::kTable,
                                          &GemmSimd<UnitF32<msa::Avx512>>::kTable, nullptr};
constinit const Kernels kAvx512Bf16Kernels = {&RowSimd<msa::Avx512>::kTable, &VisionSimd<msa::Avx512>::kTable,
                                              &GemmSimd<UnitF32<msa::Avx512>>::kTable, &kAvx512Bf16Gemm};
constinit const Kernels kAmxKernels = {&RowSimd<msa::Avx512>::kTable, &VisionSimd<msa::Avx512>::kTable,
                                       &GemmSimd<UnitF32<msa::Avx512>>::kTable, &kAmxGemm};

}  // namespace sparrow::ops::cpu
