// SPDX-License-Identifier: Apache-2.0
// Ledger: what a rank's memory holds, to the byte, from the configuration alone.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/tensor_row.h"
#include "config/config.h"
#include "model/sharding.h"

namespace sparrow {

std::string_view name_of(LedgerPart part);

struct LedgerRow {
  std::string_view name;
  int64_t bytes = 0;
};

struct Ledger {
  std::vector<LedgerRow> weights;  // by part of the model, largest first
  int64_t weight_bytes = 0;
  int64_t kv_token_bytes = 0;     // K and V of one token, all layers
  int64_t index_token_bytes = 0;  // index-K of one token, all sparse layers; the rank's share of it

  int64_t token_bytes() const { return kv_token_bytes + index_token_bytes; }
  int64_t block_bytes() const { return token_bytes() * 128; }
};

// `grid` has been validated. Without `vision` the vision tower is left out. `index_ranks` of
// model/sharding.h.
Ledger make_ledger(const ModelConfig& config, const Grid& grid, DType kv_dtype, DType index_dtype,
                   bool vision, int index_ranks = 1);

}  // namespace sparrow
