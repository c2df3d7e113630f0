// SPDX-License-Identifier: Apache-2.0
// Which kernels multiply weights of a format.
#pragma once

#include <algorithm>

#include "ops/cuda/moe/launch.cuh"
#include "ops/cuda/moe/many/tile_held.cuh"
#include "sm90/launch.cuh"

namespace sparrow::ops::cuda {

// Cells: the compiler gives up on overlapping products where a kernel has too many widths of too many
// registers; these are what it takes. An expert of few tokens needs little room for them, and MXFP4 leaves
// the rest to weights on their way. MXFP8 wants few tiles of the shared expert, which has all rows: 129
// experts of three tiles fill the SMs of a card three times, nearly to the last one.
template <MatrixFormat kFormat, bool kFirst>
struct FewTokens {
  using Traits = TileTraits<kFirst, kFormat, true, 16, 32, 48, 64>;
};
template <bool kFirst>
struct FewTokens<MatrixFormat::kMxfp4, kFirst> {
  using Traits = TileTraits<kFirst, MatrixFormat::kMxfp4, true, 16, 32, 48>;
};

template <MatrixFormat kFormat>
struct ProductTraits {
  template <bool kFirst>
  using Few = typename FewTokens<kFormat, kFirst>::Traits;
  template <bool kFirst>
  using Many = TileTraits<kFirst, kFormat, false, 16, 32, 48, 64, 80, 96, 112, 128, 144>;
  using Held = HeldTraits<kFormat, 96, 112, 128, 144>;
};
template <>
struct ProductTraits<MatrixFormat::kBF16> {
  template <bool kFirst>
  using Many = TileTraits<kFirst, MatrixFormat::kBF16, false, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160>;
  template <bool kFirst>
  using Few = Many<kFirst>;
  using Held = HeldTraits<MatrixFormat::kBF16, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160>;
};

template <typename T>
void launch_tiles(const TileParams& p, int max_shares, cudaStream_t stream) {
  const int max_items = 2 * max_shares * ((p.out_rows + T::kRows - 1) / T::kRows);
  SPARROW_CUDA(hopper::launch_dependent(
      tile_kernel<T>, {dim3(std::min(num_sms(), max_items)), T::kThreads, T::kSmemBytes}, stream, p));
}

template <MatrixFormat kFormat, bool kFirst>
void launch_product(const TileParams& p, Tokens tokens, int max_shares, cudaStream_t stream) {
  using Traits = ProductTraits<kFormat>;
  static_assert(Traits::template Few<kFirst>::kTokens == share_tokens(kFormat, Tokens::kFew));
  static_assert(Traits::template Many<kFirst>::kTokens == share_tokens(kFormat, Tokens::kMany));
  static_assert(Traits::Held::kTokens == share_tokens(kFormat, Tokens::kHeld));
  if (tokens == Tokens::kFew)
    return launch_tiles<typename Traits::template Few<kFirst>>(p, max_shares, stream);
  if constexpr (!kFirst)
    if (tokens == Tokens::kHeld && p.columns <= kMaxHeldColumns) {
      using T = typename Traits::Held;
      SPARROW_CUDA(
          hopper::launch_dependent(held_kernel<T>, {dim3(num_sms()), T::kThreads, T::kSmemBytes}, stream, p));
      return;
    }
  launch_tiles<typename Traits::template Many<kFirst>>(p, max_shares, stream);
}

}  // namespace sparrow::ops::cuda
