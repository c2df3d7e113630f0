// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/vision/attend.cuh"

#include <climits>

#include "device/cuda/arguments.h"
#include "device/cuda/check.h"
#include "sm90/launch.cuh"

namespace sparrow::ops::cuda {
namespace {

constexpr int kSms = 132;  // of an H200

}  // namespace

void attend_segments(const AttendSegmentsArgs& args, cudaStream_t stream) {
  if (args.num_items == 0) return;
  using T = AttendTraits;
  Arguments("attend_segments")
      .range("rows", args.rows, 1, INT_MAX)
      .multiple("rows", args.rows, 4)
      .range("num_heads", args.num_heads, 1, INT_MAX)
      .pointer("heads", args.heads)
      .pointer("items", args.items, 4)
      .pointer("out", args.out);
  // Four rows of a piece are 128 bytes.
  constexpr cuuint64_t kLineBytes = 4 * kPieceRowBytes;
  const auto lines = static_cast<cuuint64_t>(args.rows) / 4;
  CUtensorMap map;
  SPARROW_CUDA(hopper::make_tensor_map(
      hopper::TensorView{
          .data = args.heads,
          .rank = 3,
          .extents = {kLineBytes / 2, lines, static_cast<cuuint64_t>(3 * args.num_heads * T::kPieces)},
          .strides = {kLineBytes, lines * kLineBytes},
          .box = {kLineBytes / 2, T::kKeys / 4, T::kPieces},
          .swizzle = false},
      &map));
  SPARROW_CUDA(hopper::launch_dependent(
      attend_segments_kernel<T>,
      {dim3(std::min(args.num_items, kSms)), T::kThreads, static_cast<int>(sizeof(AttendShared))}, stream,
      args, map));
}

}  // namespace sparrow::ops::cuda
