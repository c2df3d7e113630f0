// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/moe/families.h"

#include <algorithm>

#include "ops/cuda/moe/launch.cuh"
#include "ops/cuda/moe/many/combine.cuh"
#include "ops/cuda/moe/many/products.h"
#include "ops/cuda/moe/many/route_many.cuh"
#include "ops/cuda/moe/moe_parts.h"
#include "sm90/launch.cuh"

namespace sparrow::ops::cuda {

static __global__ void __launch_bounds__(Combine::kThreads)
    combine_kernel(const __grid_constant__ CombineParams p) {
  __shared__ int32_t places[Combine::kMaxTopK];
  __shared__ float factors[Combine::kMaxTopK];
  const int64_t row = blockIdx.x;
  load_experts(p, row, places, factors);
  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();
  __syncthreads();
  for (int c = threadIdx.x * 8; c < p.hidden; c += Combine::kThreads * 8) {
    float sum[8] = {};
    sum_experts(p, row, c, places, factors, sum);
    __nv_bfloat162 packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) packed[i] = __floats2bfloat162_rn(sum[2 * i], sum[2 * i + 1]);
    *reinterpret_cast<uint4*>(p.out + row * p.hidden + c) = *reinterpret_cast<const uint4*>(packed);
  }
}

namespace {

// Tokens of an expert on average. Up to kFewTokens the weights take longer to come than to be multiplied.
// Holding the tokens pays where arithmetic is the limit; where memory is, it has too few weights in flight.
// Of cells it has more.
constexpr int kFewTokens = 40, kHeldTokens = 160, kHeldTokensOfCells = 112;

Tokens tokens_of(const MoeShape& shape, const MoeArgs& args) {
  const int64_t pairs = int64_t{args.rows} * std::max(shape.top_k, 1);
  const int64_t tokens = pairs / std::max(shape.num_experts, 1);
  if (tokens < kFewTokens) return Tokens::kFew;
  return tokens < (is_mx(args.down.format) ? kHeldTokensOfCells : kHeldTokens) ? Tokens::kMany
                                                                               : Tokens::kHeld;
}

template <bool kFirst>
void launch(MatrixFormat format, const TileParams& p, Tokens tokens, int max_shares, cudaStream_t stream) {
  if (format == MatrixFormat::kMxfp8)
    launch_product<MatrixFormat::kMxfp8, kFirst>(p, tokens, max_shares, stream);
  else if (format == MatrixFormat::kMxfp4)
    launch_product<MatrixFormat::kMxfp4, kFirst>(p, tokens, max_shares, stream);
  else
    launch_product<MatrixFormat::kBF16, kFirst>(p, tokens, max_shares, stream);
}

// Some columns of a matrix: multiples of kColumnTile.
struct Columns {
  int first = 0, count = 0;
};

// Brings boxes of 64 columns of bf16 rows that are `stride` numbers apart.
CUtensorMap columns_map(const __nv_bfloat16* data, int64_t rows, int stride, const Columns& columns,
                        int box_rows) {
  CUtensorMap map;
  SPARROW_CUDA(hopper::make_tensor_map(hopper::MatrixView{.data = data + columns.first,
                                                          .rows = rows,
                                                          .columns = columns.count,
                                                          .row_bytes = int64_t{stride} * 2,
                                                          .box_rows = box_rows,
                                                          .box_columns = 64},
                                       &map));
  return map;
}

// Brings boxes of 128 rows by 64 columns, cells as they lie.
CUtensorMap weight_map(const DeviceMatrix& w, const Columns& columns) {
  constexpr int kBoxRows = 128;
  if (!is_mx(w.format)) return columns_map(w.bf16(), w.rows, w.cols, columns, kBoxRows);
  const int bytes = cell_bytes(w.format), words = bytes / 8;
  CUtensorMap map;
  SPARROW_CUDA(hopper::make_tensor_map(
      hopper::MatrixView{.data = w.cells() + int64_t{columns.first / kCellColumns} * bytes,
                         .element = hopper::Element::kU64,
                         .rows = w.rows / kCellRows,
                         .columns = columns.count / kCellColumns * words,
                         .row_bytes = int64_t{w.cols / kCellColumns} * bytes,
                         .box_rows = kBoxRows / kCellRows,
                         .box_columns = words,
                         .swizzle = false},
      &map));
  return map;
}

// The launches of a layer.
class ManyRows {
 public:
  ManyRows(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream)
      : shape_(shape), args_(args), stream_(stream), tokens_(tokens_of(shape, args)), at_(shape, args.rows) {
    const int first_tokens = rounds() ? kE4m3ShareTokens : share_tokens(args.gate_up.format, tokens_);
    route_ = {.ids = args.ids,
              .row_at = place<int32_t>(at_.row_at),
              .place_of = place<int32_t>(at_.place_of),
              .shares = place<Share>(at_.shares),
              .num_shares = place<int32_t>(at_.num_shares),
              .rows = args.rows,
              .num_experts = shape.num_experts,
              .top_k = shape.top_k,
              .share_tokens = std::min(first_tokens, share_tokens(args.down.format, tokens_)),
              .shared = args.shared == nullptr};
  }

  // Rows of the experts, one for each that a row goes to.
  __nv_bfloat16* expert_rows() const { return place<__nv_bfloat16>(at_.parts); }

  void route() const {
    SPARROW_CUDA(hopper::launch_dependent(route_many_kernel, {dim3(RouteMany::kCluster), RouteMany::kThreads},
                                          stream_, route_));
  }

  void gate_up() const {
    TileParams p = product(place<__nv_bfloat16>(at_.hidden), shape_.hidden, 2 * shape_.inter, shape_.inter);
    p.w = weight_map(args_.gate_up, {0, shape_.hidden});
    if (rounds())
      launch_e4m3_product({p, args_.rounded}, max_shares(), stream_);
    else
      launch<true>(args_.gate_up.format, p, tokens_, max_shares(), stream_);
  }

  // Of these channels. follows_gate_up: it is the next launch, and gate_up() the one before.
  void down(const Columns& channels, __nv_bfloat16* out, bool follows_gate_up) const {
    TileParams p = product(out, channels.count, shape_.hidden, shape_.hidden);
    p.w = weight_map(args_.down, channels);
    p.tokens = columns_map(place<__nv_bfloat16>(at_.hidden), int64_t{args_.rows} * (shape_.top_k + 1),
                           shape_.inter, channels, RouteMany::kStep);
    p.all_stored = 2 * shape_.inter / kCellRows;
    if (follows_gate_up && p.next_may_start && !rounds()) p.counter = place<uint32_t>(kMoeCounterAt);
    launch<false>(args_.down.format, p, tokens_, max_shares(), stream_);
  }

  CombineParams sum() const {
    const __nv_bfloat16* const last = expert_rows() + int64_t{args_.rows} * shape_.top_k * shape_.hidden;
    return {.parts = expert_rows(),
            .shared = args_.shared != nullptr ? args_.shared : last,
            .weights = args_.weights,
            .place_of = route_.place_of,
            .out = args_.out,
            .rows = args_.rows,
            .hidden = shape_.hidden,
            .top_k = shape_.top_k,
            .scaling = args_.scaling};
  }

 private:
  bool rounds() const { return args_.rounded.codes != nullptr; }
  int max_shares() const { return max_moe_shares(args_.rows, shape_.num_experts, shape_.top_k); }
  template <typename T>
  T* place(int64_t offset) const {
    return reinterpret_cast<T*>(static_cast<uint8_t*>(args_.workspace) + offset);
  }
  TileParams product(__nv_bfloat16* out, int columns, int out_rows, int out_columns) const {
    return {.w = {},
            .tokens = {},
            .x = args_.x,
            .row_at = route_.row_at,
            .shares = route_.shares,
            .num_shares = route_.num_shares,
            .out = out,
            .columns = columns,
            .out_rows = out_rows,
            .out_columns = out_columns,
            .next_may_start = tokens_ != Tokens::kHeld,
            .alpha = args_.alpha,
            .limit = args_.limit,
            .beta = args_.beta};
  }

  const MoeShape& shape_;
  const MoeArgs& args_;
  const cudaStream_t stream_;
  const Tokens tokens_;
  const MoeManyLayout at_;
  RouteManyParams route_;
};

}  // namespace

void moe_many(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream, unsigned parts) {
  const ManyRows layer(shape, args, stream);
  const bool dense = shape.num_experts == 0;  // its one expert has the result
  if (parts & kMoeRoute) layer.route();
  if (parts & kMoeGateUp) layer.gate_up();
  if (parts & kMoeDown)
    layer.down({0, shape.inter}, dense ? args.out : layer.expert_rows(),
               (parts & kMoeRoute) != 0 && (parts & kMoeGateUp) != 0);
  if ((parts & kMoeCombine) && !dense)
    SPARROW_CUDA(
        hopper::launch_dependent(combine_kernel, {dim3(args.rows), Combine::kThreads}, stream, layer.sum()));
}

void moe_many_in_parts(const MoeShape& shape, const MoeArgs& args, const PartTree& sums,
                       cudaStream_t stream) {
  const ManyRows layer(shape, args, stream);
  layer.route();
  layer.gate_up();
  const int channels = shape.inter / sums.parts;
  for (int part = 0; part < sums.parts; ++part) {
    layer.down({part * channels, channels}, layer.expert_rows(), part == 0);
    launch_combine_part(layer.sum(), place_of(sums, part), stream);
  }
}

}  // namespace sparrow::ops::cuda
