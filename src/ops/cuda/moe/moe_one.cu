// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/arguments.h"
#include "ops/cuda/moe/families.h"
#include "ops/cuda/moe/few/experts_cells.cuh"
#include "ops/cuda/moe/few/experts_few.cuh"
#include "ops/cuda/moe/launch.cuh"
#include "ops/cuda/moe/launch_few.h"
#include "sm90/launch.cuh"

namespace sparrow::ops::cuda {
namespace {

template <typename Params>
Params params_of(const MoeShape& shape, const MoeArgs& args) {
  Params p;
  p.x = args.x, p.ids = args.ids, p.weights = args.weights, p.h = hidden_rows(args), p.out = args.out;
  p.barrier = static_cast<uint32_t*>(args.workspace);
  p.rows = args.rows, p.hidden = shape.hidden, p.inter = shape.inter, p.num_experts = shape.num_experts;
  p.top_k = shape.top_k;
  p.alpha = args.alpha, p.limit = args.limit, p.beta = args.beta, p.scaling = args.scaling;
  return p;
}

// As many units of 16 weight rows as the rows allow at most; the device counts the real ones.
int max_units(const MoeShape& shape, int rows) {
  return (rows * shape.top_k + 1) * (2 * shape.inter / 16);
}

void launch_bf16(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream) {
  using T = ExpertsFew;
  auto p = params_of<ExpertsFewParams>(shape, args);
  const DeviceMatrix& w = args.gate_up;
  p.gate_up = line_map(w.bf16(), w.rows, w.cols, T::kRows, T::kDepth / 64), p.down = args.down.bf16();
  constexpr int kSmemBytes = hopper::smem_share(T::kCtasPerSm);
  const int slots = num_sms() * resident_ctas(experts_few_kernel, T::kThreads, kSmemBytes);
  p.depth = down_depth(shape.inter, T::kMaxDepth);
  p.slab = round_up(ceil_div(shape.hidden, slots), 8);
  p.holds = p.depth == shape.inter;
  p.ring_offset = T::kHeldOffset + (p.holds ? (p.slab + args.rows) * p.depth * 2 : 0);
  p.ring_bytes = kSmemBytes - p.ring_offset;
  const int ctas = std::min(slots, std::max(max_units(shape, args.rows), ceil_div(shape.hidden, p.slab)));
  SPARROW_CUDA(
      hopper::launch_dependent(experts_few_kernel, {dim3(ctas), T::kThreads, kSmemBytes}, stream, p));
}

// How the one launch on cells is laid out on this device.
template <typename T>
struct CellsPlan {
  static constexpr int kSmemBytes = hopper::smem_share(T::kCtasPerSm);
  int ctas, runs, x_offset, h_offset, parts_offset, ring_offset;

  CellsPlan(const MoeShape& shape, int rows) {
    const int slots = num_sms() * resident_ctas(experts_cells_kernel<T>, T::kThreads, kSmemBytes);
    const int all_runs = shape.hidden / kCellRows;
    ctas = std::min(slots, std::max(max_units(shape, rows), all_runs));
    runs = ceil_div(all_runs, ctas);
    x_offset = T::kHeldOffset + round_up(slab_bytes(shape), 128);
    h_offset = x_offset + round_up(rows * T::token_bytes(shape.hidden), 128);
    const int places = rows * (shape.top_k + 1);
    parts_offset = h_offset + round_up(places * T::token_bytes(shape.inter), 128);
    ring_offset = parts_offset + round_up(places * runs * kCellRows * 4, 128);
  }
  int slab_bytes(const MoeShape& shape) const { return runs * (shape.inter / kCellColumns) * T::kCellBytes; }
  int ring_bytes() const { return kSmemBytes - ring_offset; }
  // With less than this in the ring the memory would wait.
  bool fits(const MoeShape& shape) const {
    return runs <= T::kMaxRuns && ring_bytes() >= 2 * std::max(T::kPieceBytes, slab_bytes(shape));
  }
};

template <MatrixFormat kFormat>
void launch_cells(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream) {
  using T = ExpertsCells<kFormat>;
  const CellsPlan<T> plan(shape, args.rows);
  Arguments("moe_one_launch").require("rows", plan.fits(shape), "must leave room for weights");
  auto p = params_of<ExpertsCellsParams>(shape, args);
  p.gate_up = args.gate_up.cells(), p.down = args.down.cells(), p.runs = plan.runs;
  p.x_offset = plan.x_offset, p.h_offset = plan.h_offset, p.parts_offset = plan.parts_offset;
  p.ring_offset = plan.ring_offset, p.ring_bytes = plan.ring_bytes();
  SPARROW_CUDA(hopper::launch_dependent(experts_cells_kernel<T>,
                                        {dim3(plan.ctas), T::kThreads, plan.kSmemBytes}, stream, p));
}

}  // namespace

bool moe_one_launch_fits(const MoeShape& shape, const MoeArgs& args) {
  if (args.rows > RouteFew<8>::kTokens || args.gate_up.format != args.down.format) return false;
  switch (args.gate_up.format) {
    case MatrixFormat::kMxfp8:
      return CellsPlan<ExpertsCells<MatrixFormat::kMxfp8>>(shape, args.rows).fits(shape);
    case MatrixFormat::kMxfp4:
      return CellsPlan<ExpertsCells<MatrixFormat::kMxfp4>>(shape, args.rows).fits(shape);
    default:
      return true;
  }
}

bool moe_one_launch_pays(const MoeShape& shape, const MoeArgs& args) {
  if (args.rows > kMoeOneLaunchRows || !moe_one_launch_fits(shape, args)) return false;
  switch (args.gate_up.format) {
    case MatrixFormat::kMxfp8:
    case MatrixFormat::kMxfp4:
      // us, one launch and two: MXFP8 14.3 and 16.1, two rows 23.5 and 24.0; MXFP4 12.1 and 14.5, 19.0 both.
      // 768 channels: MXFP8 22.8 and 24.3, 35.4 both; MXFP4 18.2 and 19.2, but 28.9 and 26.8 for two rows.
      return args.rows == 1 || shape.inter < 768;
    default:
      // Where one launch must cut the second product's rows, two are faster: 133 against 173 us for one row
      // of 3,072 channels, 62 against 81 for two of 768.
      return shape.inter <= ExpertsFew::kMaxDepth;
  }
}

void moe_one_launch(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream) {
  Arguments("moe_one_launch")
      .range("rows", args.rows, 1, RouteFew<8>::kTokens)
      .require("down", args.down.format == args.gate_up.format, "must have the format of gate_up");
  switch (args.gate_up.format) {
    case MatrixFormat::kMxfp8:
      return launch_cells<MatrixFormat::kMxfp8>(shape, args, stream);
    case MatrixFormat::kMxfp4:
      return launch_cells<MatrixFormat::kMxfp4>(shape, args, stream);
    default:
      return launch_bf16(shape, args, stream);
  }
}

}  // namespace sparrow::ops::cuda
