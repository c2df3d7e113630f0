// SPDX-License-Identifier: Apache-2.0
// What launch_pack() and launch_fill_random() do with matrices of cells. The arguments have been checked.
#pragma once

#include "model/cuda/pack/pack.h"

namespace sparrow {

cudaError_t launch_pack_cells(const PackTarget& target, const PackSource& source, cudaStream_t stream);
cudaError_t launch_random_cells(const PackTarget& target, const RandomCells& source, cudaStream_t stream);

}  // namespace sparrow
