// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/moe/families.h"

#include "base/math.h"
#include "device/cuda/arguments.h"
#include "ops/cuda/linear_small.h"
#include "ops/cuda/moe/few/down_cells.cuh"
#include "ops/cuda/moe/few/down_few.cuh"
#include "ops/cuda/moe/few/gate_up_cells.cuh"
#include "ops/cuda/moe/launch_few.h"
#include "ops/cuda/moe/stream_launch.cuh"
#include "sm90/launch.cuh"

namespace sparrow::ops::cuda {
namespace {

// As the second product wants it.
HiddenLayout hidden_layout(const MoeShape& shape, const MoeArgs& args) {
  if (!is_mx(args.down.format)) return {shape.inter, shape.inter};
  const int columns = down_depth(shape.inter, kHiddenPieceColumns), stride = columns + kHiddenPieceGap;
  return {columns, stride, int64_t{args.rows} * (shape.top_k + 1) * stride, kCellTokensUnit};
}

StreamParams gate_up_params(const MoeShape& shape, const MoeArgs& args) {
  return {.ids = args.ids,
          .out = hidden_rows(args),
          .rows = args.rows,
          .columns = shape.hidden,
          .out_rows = 2 * shape.inter,
          .num_experts = shape.num_experts,
          .top_k = shape.top_k,
          .hidden = hidden_layout(shape, args),
          .alpha = args.alpha,
          .limit = args.limit,
          .beta = args.beta};
}

// As many units as the rows allow at most; the device counts the real ones.
template <typename T>
int max_gate_up_units(const MoeShape& shape, int rows) {
  const int pairs = rows * shape.top_k;
  const int shares =
      std::min(pairs, shape.num_experts + pairs / T::kTokens) + round_up(rows, T::kTokens) / T::kTokens;
  return shares * (round_up(2 * shape.inter, T::kRows) / T::kRows);
}

// Whether the rows of any share fit beside the ring.
template <typename T>
constexpr bool gate_up_rows_fit(int hidden) {
  return hopper::smem_share(1) - T::kRowsOffset >= T::Route::kTokens * T::row_bytes(hidden);
}

template <typename T>
void launch_gate_up_tiles(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream) {
  constexpr int kSmemBytes = hopper::smem_share(1);
  const GateUpCellsParams p{.cells = args.gate_up.cells(),
                            .x = args.x,
                            .ids = args.ids,
                            .out = hidden_rows(args),
                            .layout = hidden_layout(shape, args),
                            .rows = args.rows,
                            .hidden = shape.hidden,
                            .inter = shape.inter,
                            .num_experts = shape.num_experts,
                            .top_k = shape.top_k,
                            .shared_bytes = cell_matrix_bytes(T::kFormat, 2 * shape.inter, shape.hidden),
                            .held_rows = (kSmemBytes - T::kRowsOffset) / T::row_bytes(shape.hidden),
                            .alpha = args.alpha,
                            .limit = args.limit,
                            .beta = args.beta};
  SPARROW_CUDA(hopper::launch_dependent(gate_up_cells_kernel<T>, {dim3(num_sms()), T::kThreads, kSmemBytes},
                                        stream, p));
}

template <MatrixFormat kFormat>
void launch_gate_up_cells(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream) {
  // MXFP4 is bound by decoding and has twice the warps for it, on taller tiles.
  using Tiles = std::conditional_t<kFormat == MatrixFormat::kMxfp8, GateUpCells<kFormat, 2, 8, 5>,
                                   GateUpCells<kFormat, 4, 16, 3>>;
  static_assert(gate_up_rows_fit<Tiles>(6144));
  if (gate_up_rows_fit<Tiles>(shape.hidden)) return launch_gate_up_tiles<Tiles>(shape, args, stream);
  using Units = CellStreamTraits<kFormat, StreamJob::kRoutedGateUp, 16, 2, 1, 8, 16, 2>;
  launch_cell_stream<Units>(args.gate_up, args.x, gate_up_params(shape, args),
                            max_gate_up_units<Units>(shape, args.rows), stream);
}

template <MatrixFormat kFormat>
void launch_down_cells(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream) {
  using T = DownCells;
  DownCellsParams p{.w = args.down.cells(),
                    .h = hidden_rows(args),
                    .ids = args.ids,
                    .weights = args.weights,
                    .out = args.out,
                    .rows = args.rows,
                    .hidden = shape.hidden,
                    .inter = shape.inter,
                    .num_experts = shape.num_experts,
                    .top_k = shape.top_k,
                    .scaling = args.scaling};
  const int all_runs = shape.hidden / kCellRows;
  p.runs = (all_runs + num_sms() - 1) / num_sms();
  const HiddenLayout hidden = hidden_layout(shape, args);
  p.cells = hidden.columns / kCellColumns, p.h_piece = hidden.piece;
  p.ring_offset = round_up(T::kSumsOffset + args.rows * T::sum_stride(p.runs) * 4, 128);
  constexpr int kSmemBytes = hopper::smem_share(1);
  p.slots = std::min((kSmemBytes - p.ring_offset) / T::slot_bytes(kFormat, p.runs, p.cells), T::kMaxSlots);
  // Fewer warps wait less for each other's turn; where a share takes several steps more of them are faster.
  const int consumers = p.cells % 3 == 0 && p.cells * kCellColumns == shape.inter ? 12 : T::kMaxConsumers;
  SPARROW_CUDA(hopper::launch_dependent(
      down_cells_kernel<kFormat>, {dim3((all_runs + p.runs - 1) / p.runs), T::threads(consumers), kSmemBytes},
      stream, p));
}

template <int kTokens>
void launch_gate_up(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream) {
  using T = StreamTraits<StreamJob::kRoutedGateUp, kTokens, 1, 8, 512, 2>;
  launch_stream<T>({args.gate_up.bf16(), args.x, shape.num_experts + 1}, gate_up_params(shape, args),
                   max_gate_up_units<T>(shape, args.rows), stream);
}

void launch_down(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream) {
  DownFewParams p{.w = args.down.bf16(),
                  .h = hidden_rows(args),
                  .ids = args.ids,
                  .weights = args.weights,
                  .out = args.out,
                  .rows = args.rows,
                  .hidden = shape.hidden,
                  .inter = shape.inter,
                  .num_experts = shape.num_experts,
                  .top_k = shape.top_k,
                  .scaling = args.scaling};
  p.depth = down_depth(shape.inter, DownFew::kMaxDepth);
  // Half an SM for each CTA where rows are few: it starts when the first of the two CTAs of gate and up is
  // gone.
  constexpr int kHalfRows = 8;
  const int ctas = args.rows <= kHalfRows ? 2 : 1, slots = num_sms() * ctas;
  p.slab = std::min(DownFew::kMaxSlab, round_up((shape.hidden + slots - 1) / slots, 8));
  p.tokens = std::min(args.rows, DownFew::kTokens);
  if (p.depth < shape.inter) p.lines = line_map(p.w, args.down.rows, shape.inter, p.slab, p.depth / 64);
  const int ring = DownFew::ring_offset(args.rows, p.slab);
  const int stage = DownFew::stage_bytes(p.slab, p.tokens, p.depth);
  p.stages = std::min((hopper::smem_share(ctas) - ring) / stage, DownFew::kMaxStages);
  SPARROW_CUDA(hopper::launch_dependent(
      down_few_kernel,
      {dim3((shape.hidden + p.slab - 1) / p.slab), DownFew::threads(p.slab), ring + p.stages * stage}, stream,
      p));
}

}  // namespace

bool moe_few_fits(const MoeShape& shape, int rows) {
  return rows <= kFewRows && shape.top_k <= kFewTopK && rows * shape.top_k <= kFewPairs &&
         shape.num_experts <= kMaxExperts && shape.hidden <= DownFew::kMaxSlab * num_sms();
}

void moe_few(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream, unsigned parts) {
  Arguments("moe_few")
      .range("rows", args.rows, 1, kFewRows)
      .range("rows * top_k", args.rows * shape.top_k, 1, kFewPairs);
  if (parts == kMoeAll && !args.shared_gpu && moe_one_launch_pays(shape, args))
    return moe_one_launch(shape, args, stream);
  if (parts & kMoeGateUp) {
    if (args.gate_up.format == MatrixFormat::kMxfp8)
      launch_gate_up_cells<MatrixFormat::kMxfp8>(shape, args, stream);
    else if (args.gate_up.format == MatrixFormat::kMxfp4)
      launch_gate_up_cells<MatrixFormat::kMxfp4>(shape, args, stream);
    else if (args.rows <= 8)
      launch_gate_up<8>(shape, args, stream);
    else
      launch_gate_up<16>(shape, args, stream);
  }
  if (parts & kMoeDown) {
    if (args.down.format == MatrixFormat::kMxfp8)
      launch_down_cells<MatrixFormat::kMxfp8>(shape, args, stream);
    else if (args.down.format == MatrixFormat::kMxfp4)
      launch_down_cells<MatrixFormat::kMxfp4>(shape, args, stream);
    else
      launch_down(shape, args, stream);
  }
}

void mlp_few(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream, unsigned parts) {
  Arguments("mlp_few").range("rows", args.rows, 1, kLinearSmallRows);
  if (parts & kMoeGateUp)
    launch_stream_rows<StreamJob::kGateUp>(args.gate_up, args.x, gate_up_params(shape, args), stream);
  if (parts & kMoeDown) linear_small(args.down, hidden_rows(args), args.out, args.rows, stream);
}

}  // namespace sparrow::ops::cuda
