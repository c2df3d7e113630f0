// SPDX-License-Identifier: Apache-2.0
// The ranks of a program that was built without CUDA: there are none.
#include "engine/ranks/rank_group.h"

namespace sparrow {

Result<std::unique_ptr<RankGroup>> create_rank_group(const ModelConfig&, const Weights&, const RankOptions&) {
  return Error{Errc::kUnsupported,
               "this program was built without CUDA: build it where nvcc is, or use --device cpu"};
}

Result<std::unique_ptr<RankGroup>> create_ranks_in_turn(const ModelConfig& config, const Weights& weights,
                                                        const RankOptions& options) {
  return create_rank_group(config, weights, options);
}

bool has_usable_gpu(int) {
  return false;
}

}  // namespace sparrow
