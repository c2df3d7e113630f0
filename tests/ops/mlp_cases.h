// SPDX-License-Identifier: Apache-2.0
// Random MLPs, for the tests of experts.
#pragma once

#include <random>

#include "ops/ops_cases.h"

namespace sparrow::ops {

struct OwnedMlp {
  OwnedWeight gate, up, down;
  MlpWeights w;
};

inline OwnedMlp random_mlp(std::mt19937& rng, MatrixFormat format, int64_t columns, int64_t hidden) {
  OwnedMlp mlp{random_weight(rng, format, hidden, columns),
               random_weight(rng, format, hidden, columns),
               random_weight(rng, format, columns, hidden),
               {}};
  mlp.w = {mlp.gate.w, mlp.up.w, mlp.down.w};
  return mlp;
}

}  // namespace sparrow::ops
