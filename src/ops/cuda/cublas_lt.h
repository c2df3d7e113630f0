// SPDX-License-Identifier: Apache-2.0
// CublasLt: the functions of libcublasLt that Gemm calls, found at run time.
#pragma once

#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdint>

#include "base/check.h"
#include "base/result.h"
#include "ops/gpu_workspace.h"

namespace sparrow::ops::cuda {

inline void check_lt(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  check_failed(__FILE__, __LINE__, call, strf("cuBLASLt status {}", static_cast<int>(status)));
}
#define CHECK_LT(call) ::sparrow::ops::cuda::check_lt((call), #call)

struct CublasLt {
  void* handle = nullptr;
  cublasLtHandle_t lt = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;

#define SPARROW_LT_FUNCTIONS(X) \
  X(Create)                     \
  X(Destroy)                    \
  X(Matmul)                     \
  X(MatmulDescCreate)           \
  X(MatmulDescDestroy)          \
  X(MatmulDescSetAttribute)     \
  X(MatrixLayoutCreate)         \
  X(MatrixLayoutDestroy)        \
  X(MatmulPreferenceCreate)     \
  X(MatmulPreferenceDestroy) X(MatmulPreferenceSetAttribute) X(MatmulAlgoGetHeuristic) X(MatmulAlgoCheck)
#define SPARROW_LT_DECLARE(name) decltype(&cublasLt##name) name = nullptr;
  SPARROW_LT_FUNCTIONS(SPARROW_LT_DECLARE)
#undef SPARROW_LT_DECLARE

  Status open() {
    for (const char* path : {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13"})
      if (!handle) handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
      return Error{Errc::kNotFound,
                   "libcublasLt.so.13 was not found: install CUDA 13's cuBLAS, or name its folder in "
                   "LD_LIBRARY_PATH"};
#define SPARROW_LT_LOAD(name)                                               \
  name = reinterpret_cast<decltype(name)>(dlsym(handle, "cublasLt" #name)); \
  if (!name) return Error{Errc::kUnsupported, "libcublasLt.so.13 has no cublasLt" #name};
    SPARROW_LT_FUNCTIONS(SPARROW_LT_LOAD)
#undef SPARROW_LT_LOAD
    if (Create(&lt) != CUBLAS_STATUS_SUCCESS)
      return Error{Errc::kUnsupported, "cuBLASLt cannot be started on this GPU"};
    CHECK_LT(MatmulPreferenceCreate(&preference));
    const uint64_t bytes = kProductWorkspaceBytes;
    CHECK_LT(MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                          sizeof(bytes)));
    return Ok{};
  }

  CublasLt() = default;
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;
  ~CublasLt() {
    if (preference) MatmulPreferenceDestroy(preference);
    if (lt) Destroy(lt);
    // The library stays open: it keeps threads and state of its own.
  }
};

}  // namespace sparrow::ops::cuda
