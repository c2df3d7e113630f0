// SPDX-License-Identifier: Apache-2.0
// Gemm: dense products through cuBLASLt or, for few rows, linear_small() and linear_held(): what each shape
// runs with is measured. Or, batch-invariant, with one algorithm for any number of rows. cuBLASLt gets
// quantised matrices expanded to bf16, which is exact, or to e4m3 where rows come as e4m3. The library is
// opened at run time: a program with CUDA in it starts where there is none.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "ops/cuda/device_matrix.h"
#include "ops/cuda/mx/fold.h"
#include "ops/cuda/parts/part_tree.h"
#include "ops/gpu_workspace.h"

namespace sparrow::ops::cuda {

// out[rows, n] = x[rows, k] w[n, k]^T, summed in f32. All dense, row-major, aligned to 16 bytes.
class Gemm {
 public:
  // Fails where libcublasLt is missing or too old. batch_invariant: a row's bits depend neither on the others
  // nor on how many rows of the matrix are here.
  static Result<std::unique_ptr<Gemm>> create(bool batch_invariant = false);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  // Times the candidates for products of up to `rows` rows, more than the next smaller number it was called
  // with, over several matrices of one shape and format so that none stays in a cache. Synchronises.
  void tune(std::span<const DeviceMatrix> weights, int rows, const __nv_bfloat16* x, __nv_bfloat16* out,
            cudaStream_t stream);
  void tune(std::span<const DeviceMatrix> weights, int rows, const __nv_bfloat16* x, float* out,
            cudaStream_t stream);

  // What tune() chose, for a Gemm of another process that is to run with the same. Error: no such thing.
  std::vector<std::byte> choices() const;
  Status take_choices(std::span<const std::byte> choices);

  // Launches; can be captured once its shape has been run or tuned.
  void run(const DeviceMatrix& w, int rows, const __nv_bfloat16* x, __nv_bfloat16* out, cudaStream_t stream);
  void run(const DeviceMatrix& w, int rows, const __nv_bfloat16* x, float* out, cudaStream_t stream);

  // The same of rows that were rounded, and matrices that are folded rows of MXFP8 (mx/fold.h).
  void tune(std::span<const DeviceMatrix> weights, int rows, const E4m3Rows& x, __nv_bfloat16* out,
            cudaStream_t stream);
  void run(const DeviceMatrix& w, int rows, const E4m3Rows& x, __nv_bfloat16* out, cudaStream_t stream);

  // Of a batch-invariant Gemm: the product with columns in parts, summed in f32 in the tree's first slot.
  // Parts are multiples of kColumnTile.
  void tune_parts(const DeviceMatrix& w, int parts);
  void run(const DeviceMatrix& w, int rows, const __nv_bfloat16* x, const PartTree& tree,
           cudaStream_t stream);

  // Device memory that all products share, one after the other on one stream: kProductWorkspaceBytes, and
  // room for the largest quantised matrix as bf16, where there is one.
  void set_workspace(void* workspace, __nv_bfloat16* expanded = nullptr) {
    workspace_ = workspace;
    expanded_ = expanded;
  }

 private:
  struct Shape;
  struct Library;
  struct Product;
  explicit Gemm(bool batch_invariant);
  struct Input;
  Input place_of(const DeviceMatrix& w, const Input& x) const;
  Input put_in_place(const DeviceMatrix& w, const Input& x, cudaStream_t stream) const;
  Product& product(const Shape& shape, const DeviceMatrix& w, const Input& x);
  void tune(const Shape& shape, std::span<const DeviceMatrix> weights, const Input& x, void* out,
            cudaStream_t stream);
  void run(const Shape& shape, const DeviceMatrix& w, const Input& x, void* out, cudaStream_t stream);
  void launch(const Product& p, const DeviceMatrix& w, const Input& x, void* out, cudaStream_t stream) const;

  const bool batch_invariant_;
  std::unique_ptr<Library> library_;
  void* workspace_ = nullptr;
  __nv_bfloat16* expanded_ = nullptr;
};

}  // namespace sparrow::ops::cuda
