// SPDX-License-Identifier: Apache-2.0
// Attention on a GPU, as models see it: msa::gpu::Plan with its store, index, attend and dense.
#pragma once

#include "msa/gpu.h"  // IWYU pragma: export
