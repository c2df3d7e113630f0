// SPDX-License-Identifier: Apache-2.0
// Gemm: dense products through cuBLASLt or, for few rows, linear_small() and linear_held(): what each shape
// runs with is measured. Or, batch-invariant, with one algorithm for any number of rows. The library is
// opened at run time: a program with CUDA in it starts where there is none.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "ops/gpu_workspace.h"

namespace sparrow::ops::cuda {

// out[rows, n] = x[rows, k] w[n, k]^T; x and w bf16, summed in f32; out bf16 or f32. All dense, row-major,
// aligned to 16 bytes.
struct GemmShape {
  int rows = 0, n = 0, k = 0;
  bool f32_out = false;
  bool operator==(const GemmShape&) const = default;
};

class Gemm {
 public:
  // Fails where libcublasLt is missing or too old. batch_invariant: a row's bits do not depend on the others.
  static Result<std::unique_ptr<Gemm>> create(bool batch_invariant = false);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  // Times the candidates for products of up to `shape.rows` rows, more than the next smaller number it was
  // called with, over several matrices of that shape so that none stays in a cache. Synchronises.
  void tune(const GemmShape& shape, std::span<const void* const> weights, const void* x, void* out,
            cudaStream_t stream);

  // Launches; can be captured once its shape has been run or tuned.
  void run(const GemmShape& shape, const void* w, const void* x, void* out, cudaStream_t stream);

  // kProductWorkspaceBytes of device memory that all products share, one after the other on one stream.
  void set_workspace(void* workspace) { workspace_ = workspace; }

 private:
  struct Library;
  struct Product;
  explicit Gemm(bool batch_invariant);
  Product& product(const GemmShape& shape);

  const bool batch_invariant_;
  std::unique_ptr<Library> library_;
  void* workspace_ = nullptr;
};

}  // namespace sparrow::ops::cuda
