// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/gemm.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <limits>
#include <map>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "device/cuda/arguments.h"
#include "device/cuda/stream.h"
#include "ops/cuda/cublas_lt.h"
#include "ops/cuda/linear_held.h"
#include "ops/cuda/linear_small.h"
#include "ops/cuda/mx/expand.h"
#include "ops/cuda/parts/part_rows.h"

namespace sparrow::ops::cuda {
namespace {

constexpr int kCandidates = 8;
// A batch-invariant product runs every number of rows with what suits this one: enough for decode steps, not
// too small a tile for prompts.
constexpr int kInvariantRows = 128;
// And a matrix of any number of rows with what suits one of so many: ranks hold an n-th of the whole one's.
constexpr int kInvariantMatrixRows = 4096;
// Columns of e4m3 that may be summed on the tensor cores alone, which keep 13 bits. Measured with a mean of
// half the deviation in both operands: 1.9e-3 off at 1,024 columns, of which 1.7e-3 is the result's rounding;
// 1.3e-2 at 6,144.
constexpr int kMaxE4m3Sum = 1024;

// A choice as it travels. The algorithm is what cuBLASLt calls opaque data, good for the same version of it.
struct SentChoice {
  int32_t format, n, k, stride, f32_out, e4m3, rows, streamed;
  cublasLtMatmulAlgo_t algorithm;
};

}  // namespace

// Rows of bf16 or of codes, which have scales.
struct Gemm::Input {
  const void* values = nullptr;
  const float* scales = nullptr;

  const __nv_bfloat16* bf16() const { return static_cast<const __nv_bfloat16*>(values); }
};

struct Gemm::Shape {
  MatrixFormat format;
  int rows, n, k, stride;  // columns of a product, and from one row to the next
  bool f32_out, e4m3;

  Shape(const DeviceMatrix& w, int rows, bool f32_out, bool e4m3 = false)
      : format(w.format), rows(rows), n(w.rows), k(w.cols), stride(k), f32_out(f32_out), e4m3(e4m3) {}
  static Shape of_part(const DeviceMatrix& w, int rows, int parts) {
    Shape shape(w, rows, /*f32_out=*/true);
    shape.k /= parts;
    return shape;
  }

  // With another number of rows next to each other.
  using Key = std::tuple<MatrixFormat, int, int, int, bool, bool, int>;
  Key key(int with_rows) const { return {format, n, k, stride, f32_out, e4m3, with_rows}; }
  static int rows_of(const Key& key) { return std::get<6>(key); }
  Key key() const { return key(rows); }

  void check(const Arguments& arguments, const void* x, const void* out) const {
    arguments.range("rows", rows, 1, INT_MAX)
        .range("n", n, 1, INT_MAX)
        .range("k", k, 1, INT_MAX)
        .pointer("x", x)
        .pointer("out", out);
  }

  bool can_be_streamed() const {
    return rows <= kLinearSmallRows && linear_small_fits(n, k) && !(is_mx(format) && f32_out) && !e4m3;
  }
  // By a kernel of ours for few rows.
  void launch_streamed(const DeviceMatrix& w, const __nv_bfloat16* x, void* out, cudaStream_t stream) const {
    if (rows == 1 && !f32_out && linear_held_fits(format, n, k))
      linear_held({.w = w, .x = x, .out = static_cast<__nv_bfloat16*>(out)}, stream);
    else if (f32_out)
      linear_small(w, x, static_cast<float*>(out), rows, stream);
    else
      linear_small(w, x, static_cast<__nv_bfloat16*>(out), rows, stream);
  }
};

// One shape with its descriptors and the algorithm it runs with.
struct Gemm::Product {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm;
  bool streamed = false;  // by linear_held() or linear_small() instead
};

struct Gemm::Library : CublasLt {
  std::map<Shape::Key, Product> products;
  struct Choice {
    cublasLtMatmulAlgo_t algorithm;
    bool streamed;
  };
  std::map<Shape::Key, Choice> tuned;

  ~Library() {
    for (auto& [key, product] : products) release(product);
  }

  // cuBLAS counts columns first: out^T [n, rows] = w [k, n]^T x^T [k, rows].
  Product describe(const Shape& shape, const Input& w = {}, const Input& x = {}) {
    Product p{};
    CHECK_LT(MatmulDescCreate(&p.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    CHECK_LT(
        MatmulDescSetAttribute(p.operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)));
    if (shape.e4m3) {
      // One factor for each row of w and of x.
      const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
      for (const auto attribute : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE})
        CHECK_LT(MatmulDescSetAttribute(p.operation, attribute, &mode, sizeof(mode)));
      set_scales(p, w, x);  // without which there are no algorithms
      const auto fast = static_cast<int8_t>(shape.k <= kMaxE4m3Sum);
      CHECK_LT(MatmulDescSetAttribute(p.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast)));
    }
    const cudaDataType_t type = shape.e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    CHECK_LT(MatrixLayoutCreate(&p.w, type, shape.k, shape.n, shape.stride));
    CHECK_LT(MatrixLayoutCreate(&p.x, type, shape.k, shape.rows, shape.stride));
    CHECK_LT(
        MatrixLayoutCreate(&p.out, shape.f32_out ? CUDA_R_32F : CUDA_R_16BF, shape.n, shape.rows, shape.n));
    return p;
  }

  std::vector<cublasLtMatmulHeuristicResult_t> candidates(const Product& p) {
    std::vector<cublasLtMatmulHeuristicResult_t> found(kCandidates);
    int count = 0;
    CHECK_LT(MatmulAlgoGetHeuristic(lt, p.operation, p.w, p.x, p.out, p.out, preference, kCandidates,
                                    found.data(), &count));
    SPARROW_CHECK(count > 0);
    found.resize(count);
    return found;
  }

  void release(const Product& p) {
    MatmulDescDestroy(p.operation);
    for (const cublasLtMatrixLayout_t layout : {p.w, p.x, p.out}) MatrixLayoutDestroy(layout);
  }

  bool can_run(const Product& p, const cublasLtMatmulAlgo_t& algorithm) {
    cublasLtMatmulHeuristicResult_t usable{};
    return MatmulAlgoCheck(lt, p.operation, p.w, p.x, p.out, p.out, &algorithm, &usable) ==
               CUBLAS_STATUS_SUCCESS &&
           usable.workspaceSize <= static_cast<size_t>(kProductWorkspaceBytes);
  }

  // With sums over all of k in one place, a row's bits follow from the algorithm alone.
  void forbid_split_sums() {
    const uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
    CHECK_LT(MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none,
                                          sizeof(none)));
  }

  // The library's first choice that runs any number of rows. It follows from the number of columns alone:
  // whoever holds some rows of a matrix, or some of its columns, gets the bits of who holds it whole.
  cublasLtMatmulAlgo_t choose_for_all_rows(Shape shape) {
    shape.n = kInvariantMatrixRows;
    shape.stride = shape.k;
    const auto with_rows = [&](int rows, const auto& use) {
      shape.rows = rows;
      const Product p = describe(shape);
      const auto result = use(p);
      release(p);
      return result;
    };
    for (const auto& candidate : with_rows(kInvariantRows, [&](const Product& p) { return candidates(p); })) {
      bool runs = true;
      for (int rows = 1; rows <= (1 << 20) && runs; rows = 3 * rows + 1)
        runs = with_rows(rows, [&](const Product& p) { return can_run(p, candidate.algo); });
      if (runs) return candidate.algo;
    }
    check_failed(__FILE__, __LINE__, "choose_for_all_rows",
                 strf("cuBLASLt has no algorithm for every number of rows of {} columns", shape.k));
  }

  void set_scales(const Product& p, const Input& w, const Input& x) {
    CHECK_LT(MatmulDescSetAttribute(p.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &w.scales,
                                    sizeof(w.scales)));
    CHECK_LT(MatmulDescSetAttribute(p.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &x.scales,
                                    sizeof(x.scales)));
  }

  void launch(const Product& p, const Input& w, const Input& x, void* out, void* workspace,
              cudaStream_t stream) {
    if (x.scales != nullptr) set_scales(p, w, x);
    const float one = 1, zero = 0;
    CHECK_LT(Matmul(lt, p.operation, &one, w.values, p.w, x.values, p.x, &zero, out, p.out, out, p.out,
                    &p.algorithm, workspace, kProductWorkspaceBytes, stream));
  }
};

Gemm::Gemm(bool batch_invariant) : batch_invariant_(batch_invariant), library_(std::make_unique<Library>()) {}
Gemm::~Gemm() = default;

Result<std::unique_ptr<Gemm>> Gemm::create(bool batch_invariant) {
  auto gemm = std::unique_ptr<Gemm>(new Gemm(batch_invariant));
  SPARROW_TRY(gemm->library_->open());
  if (batch_invariant) gemm->library_->forbid_split_sums();
  return gemm;
}

// Where cuBLASLt finds a matrix: in its own place, or in the memory that all products share.
Gemm::Input Gemm::place_of(const DeviceMatrix& w, const Input& x) const {
  if (!is_mx(w.format)) return {w.values};
  if (x.scales == nullptr) return {expanded_};
  // As bf16 the matrix would take twice as much: there is room for the scales.
  const auto* const codes = reinterpret_cast<const uint8_t*>(expanded_);
  return {codes, reinterpret_cast<const float*>(codes + int64_t{w.rows} * w.cols)};
}

Gemm::Input Gemm::put_in_place(const DeviceMatrix& w, const Input& x, cudaStream_t stream) const {
  const Input weights = place_of(w, x);
  if (x.scales != nullptr)
    expand(w, E4m3Rows{reinterpret_cast<uint8_t*>(expanded_), const_cast<float*>(weights.scales)}, stream);
  else if (is_mx(w.format))
    expand(w, expanded_, stream);
  return weights;
}

void Gemm::launch(const Product& p, const DeviceMatrix& w, const Input& x, void* out,
                  cudaStream_t stream) const {
  library_->launch(p, put_in_place(w, x, stream), x, out, workspace_, stream);
}

Gemm::Product& Gemm::product(const Shape& shape, const DeviceMatrix& w, const Input& x) {
  Library& lib = *library_;
  if (const auto found = lib.products.find(shape.key()); found != lib.products.end()) return found->second;
  Product p = lib.describe(shape, place_of(w, x), x);
  // What was measured for the next larger number of rows, where it can do this one.
  const auto tuned = lib.tuned.lower_bound(shape.key(batch_invariant_ ? kInvariantRows : shape.rows));
  const bool same = tuned != lib.tuned.end() && tuned->first == shape.key(Shape::rows_of(tuned->first));
  p.streamed = same && tuned->second.streamed;
  if (same && lib.can_run(p, tuned->second.algorithm)) {
    p.algorithm = tuned->second.algorithm;
  } else {
    SPARROW_CHECK(!batch_invariant_);
    p.algorithm = lib.candidates(p).front().algo;
  }
  return lib.products.emplace(shape.key(), p).first->second;
}

void Gemm::tune(const Shape& shape, std::span<const DeviceMatrix> weights, const Input& x, void* out,
                cudaStream_t stream) {
  Library& lib = *library_;
  if (batch_invariant_) {
    const Shape::Key all_rows = shape.key(kInvariantRows);
    if (!lib.tuned.contains(all_rows))
      lib.tuned.emplace(all_rows, Library::Choice{lib.choose_for_all_rows(shape), false});
    return;
  }
  const Arguments arguments("Gemm::tune");
  shape.check(arguments, x.values, out);
  arguments.pointer("the workspace", workspace_);
  for (const DeviceMatrix& w : weights) {
    check_matrix(arguments, "weights", w, shape.n, shape.k);
    arguments.require("weights", w.format == shape.format, "must have one format");
  }
  Product p = lib.describe(shape, place_of(weights.front(), x), x);
  Event begin(Event::Timing::kOn), end(Event::Timing::kOn);
  const auto time = [&](const auto& launch) {
    float fastest = std::numeric_limits<float>::infinity();
    for (int round = 0; round < 3; ++round) {
      begin.record(stream);
      for (const DeviceMatrix& w : weights) launch(w);
      end.record(stream);
      end.wait();
      if (round > 0)  // the first one loads the kernel
        fastest = std::min(fastest, Event::milliseconds_between(begin, end));
    }
    return fastest;
  };
  float best = std::numeric_limits<float>::infinity();
  Product trial = p;
  for (const cublasLtMatmulHeuristicResult_t& candidate : lib.candidates(p)) {
    trial.algorithm = candidate.algo;
    const float ms = time([&](const DeviceMatrix& w) { launch(trial, w, x, out, stream); });
    if (ms < best) p.algorithm = candidate.algo;
    best = std::min(best, ms);
  }
  if (shape.can_be_streamed())
    p.streamed = time([&](const DeviceMatrix& w) { shape.launch_streamed(w, x.bf16(), out, stream); }) < best;
  lib.tuned.insert_or_assign(shape.key(), Library::Choice{p.algorithm, p.streamed});
  lib.products.insert_or_assign(shape.key(), p);
}

std::vector<std::byte> Gemm::choices() const {
  std::vector<std::byte> bytes;
  for (const auto& [key, choice] : library_->tuned) {
    const auto [format, n, k, stride, f32_out, e4m3, rows] = key;
    const SentChoice sent{
        static_cast<int32_t>(format), n, k, stride, f32_out, e4m3, rows, choice.streamed, choice.algorithm};
    const auto* const begin = reinterpret_cast<const std::byte*>(&sent);
    bytes.insert(bytes.end(), begin, begin + sizeof(sent));
  }
  return bytes;
}

Status Gemm::take_choices(std::span<const std::byte> choices) {
  if (choices.size() % sizeof(SentChoice) != 0)
    return Error{Errc::kCorrupt, strf("{} bytes are no table of products", choices.size())};
  library_->tuned.clear();
  for (const auto& [key, product] : library_->products) library_->release(product);
  library_->products.clear();
  for (size_t at = 0; at < choices.size(); at += sizeof(SentChoice)) {
    SentChoice sent;
    std::memcpy(&sent, choices.data() + at, sizeof(sent));
    library_->tuned[{static_cast<MatrixFormat>(sent.format), sent.n, sent.k, sent.stride, sent.f32_out != 0,
                     sent.e4m3 != 0, sent.rows}] = {sent.algorithm, sent.streamed != 0};
  }
  return Ok{};
}

void Gemm::run(const Shape& shape, const DeviceMatrix& w, const Input& x, void* out, cudaStream_t stream) {
  if (shape.rows == 0) return;
  const Arguments arguments("Gemm::run");
  shape.check(arguments, x.values, out);
  check_matrix(arguments, "w", w);
  arguments.pointer("the workspace", workspace_);
  const Product& p = product(shape, w, x);
  if (p.streamed) return shape.launch_streamed(w, x.bf16(), out, stream);
  launch(p, w, x, out, stream);
}

void Gemm::tune_parts(const DeviceMatrix& w, int parts) {
  SPARROW_CHECK(batch_invariant_);
  tune(Shape::of_part(w, kInvariantRows, parts), {}, {}, nullptr, nullptr);
}

void Gemm::run(const DeviceMatrix& w, int rows, const __nv_bfloat16* x, const PartTree& tree,
               cudaStream_t stream) {
  if (rows == 0) return;
  const Arguments arguments("Gemm::run");
  const Shape shape = Shape::of_part(w, rows, tree.parts);
  arguments.require("tree.parts", is_part_count(tree.parts), "must be 1, 2, 4 or 8")
      .multiple("k", w.cols, tree.parts * kColumnTile);
  shape.check(arguments, x, tree.slots[0]);
  check_matrix(arguments, "w", w);
  const Product& p = product(shape, w, {x});
  const Input weights = put_in_place(w, {x}, stream);
  for (int part = 0; part < tree.parts; ++part) {
    const int64_t column = int64_t{part} * shape.k;
    library_->launch(p, {weights.bf16() + column}, {x + column}, tree.slots[part_step(part).slot], workspace_,
                     stream);
    merge_part(tree, part, int64_t{rows} * shape.n, stream);
  }
}

void Gemm::tune(std::span<const DeviceMatrix> weights, int rows, const __nv_bfloat16* x, __nv_bfloat16* out,
                cudaStream_t stream) {
  tune(Shape(weights.front(), rows, /*f32_out=*/false), weights, {x}, out, stream);
}

void Gemm::tune(std::span<const DeviceMatrix> weights, int rows, const __nv_bfloat16* x, float* out,
                cudaStream_t stream) {
  tune(Shape(weights.front(), rows, /*f32_out=*/true), weights, {x}, out, stream);
}

void Gemm::run(const DeviceMatrix& w, int rows, const __nv_bfloat16* x, __nv_bfloat16* out,
               cudaStream_t stream) {
  run(Shape(w, rows, /*f32_out=*/false), w, {x}, out, stream);
}

void Gemm::run(const DeviceMatrix& w, int rows, const __nv_bfloat16* x, float* out, cudaStream_t stream) {
  run(Shape(w, rows, /*f32_out=*/true), w, {x}, out, stream);
}

void Gemm::tune(std::span<const DeviceMatrix> weights, int rows, const E4m3Rows& x, __nv_bfloat16* out,
                cudaStream_t stream) {
  tune(Shape(weights.front(), rows, /*f32_out=*/false, /*e4m3=*/true), weights, {x.codes, x.scales}, out,
       stream);
}

void Gemm::run(const DeviceMatrix& w, int rows, const E4m3Rows& x, __nv_bfloat16* out, cudaStream_t stream) {
  run(Shape(w, rows, /*f32_out=*/false, /*e4m3=*/true), w, {x.codes, x.scales}, out, stream);
}

}  // namespace sparrow::ops::cuda
