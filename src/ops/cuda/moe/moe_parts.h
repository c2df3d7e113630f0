// SPDX-License-Identifier: Apache-2.0
// moe() with the experts' channels summed in parts (parts/part_tree.h): ranks that hold some of the channels
// each, and add up over ranks in the same tree, get the bits of one that holds all.
#pragma once

#include "ops/cuda/moe/moe.h"
#include "ops/cuda/parts/part_tree.h"

namespace sparrow::ops::cuda {

// sums.slots[0] = what moe() has for args.out, in f32. moe()'s sum is made for each part of the channels, of
// rows that each expert has in the part, rounded to bf16; then the parts are added in the tree. A row's bits
// do not depend on the others. Parts are multiples of kColumnTile; args.out, args.rounded are not used.
void moe_in_parts(const MoeShape& shape, const MoeArgs& args, const PartTree& sums, cudaStream_t stream);

// The family behind it: arguments are checked, and a dense MLP has no slots.
void moe_many_in_parts(const MoeShape& shape, const MoeArgs& args, const PartTree& sums, cudaStream_t stream);

}  // namespace sparrow::ops::cuda
