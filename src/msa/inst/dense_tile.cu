// SPDX-License-Identifier: Apache-2.0
#include "msa/sm90/dense/dense_tile.cuh"

#include <algorithm>

#include "msa/sm90/dense/dense_merge.cuh"
#include "msa/sm90/dense/dense_schedule.cuh"
#include "sm90/launch.cuh"
#include "sm90/tensor_map.h"

namespace msa::sm90::dense {
namespace {

template <hopper::Element kType>
cudaError_t launch_type(const DenseParams& p, const TileWorkspace& ws, cudaStream_t stream) {
  using Traits = TileTraits<kType>;
  TileMaps maps;
  int sms = 0;
  cudaError_t error = make_query_map(p, &maps.q);
  if (error == cudaSuccess) error = make_kv_map(p, kBlock, !Traits::kFp8, &maps.kv);
  if (error == cudaSuccess) error = multiprocessors(&sms);
  if (error == cudaSuccess)
    error = hopper::launch_dependent(schedule_kernel<ScheduleTraits>, {dim3(1), ScheduleTraits::kThreads},
                                     stream, p, ws, sms);
  if (error != cudaSuccess) return error;
  constexpr int kBytes = static_cast<int>(sizeof(TileShared<Traits>));
  const int64_t items = ws.max_tiles * p.kv_heads + ws.max_partials;
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(sms, items)));
  error =
      hopper::launch_dependent(tile_kernel<Traits>, {grid, Traits::kThreads, kBytes}, stream, p, ws, maps);
  if (error != cudaSuccess || ws.max_partials == 0) return error;
  const int64_t rows = std::min<int64_t>(ws.max_tiles * p.kv_heads, ws.max_partials) * kTileRows;
  const dim3 merge_grid(static_cast<unsigned>(std::min<int64_t>(rows, 4 * sms)));
  return hopper::launch_dependent(merge_tiles_kernel<MergeTiles>, {merge_grid, MergeTiles::kThreads}, stream,
                                  p, ws);
}

}  // namespace

cudaError_t launch_tiles(const DenseParams& p, const TileWorkspace& ws, cudaStream_t stream) {
  if (p.kv_type == hopper::Element::kE4M3) return launch_type<hopper::Element::kE4M3>(p, ws, stream);
  return launch_type<hopper::Element::kBF16>(p, ws, stream);
}

}  // namespace msa::sm90::dense
