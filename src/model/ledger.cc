// SPDX-License-Identifier: Apache-2.0
#include "model/ledger.h"

#include <algorithm>
#include <array>

#include "checkpoint/tensor_table.h"

namespace sparrow {
namespace {

// By LedgerPart.
constexpr std::array<std::string_view, kNumLedgerParts> kPartNames = {
    "vision",        "routed experts",   "shared experts",     "embeddings",
    "router, norms", "attention, index", "dense feed-forward",
};

}  // namespace

std::string_view name_of(LedgerPart part) {
  return kPartNames[static_cast<size_t>(part)];
}

Ledger make_ledger(const ModelConfig& config, const Grid& grid, DType kv_dtype, DType index_dtype,
                   bool vision, int index_ranks) {
  std::array<int64_t, kNumLedgerParts> bytes{};
  for (const TensorRow& row : tensor_table(config))
    if (vision || row.part != LedgerPart::kVision)
      bytes[static_cast<size_t>(row.part)] += shard_bytes(config, grid, row);

  Ledger ledger;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] > 0) ledger.weights.push_back({name_of(static_cast<LedgerPart>(i)), bytes[i]});
    ledger.weight_bytes += bytes[i];
  }
  std::sort(ledger.weights.begin(), ledger.weights.end(),
            [](const LedgerRow& a, const LedgerRow& b) { return a.bytes > b.bytes; });

  const int64_t sparse_layers = std::count(config.layer_is_sparse.begin(), config.layer_is_sparse.end(), 1);
  const int64_t heads = kv_heads_per_rank(config, grid);
  ledger.kv_token_bytes =
      config.num_layers * heads * 2 * config.head_dim * static_cast<int64_t>(size_of(kv_dtype));
  ledger.index_token_bytes =
      sparse_layers * config.head_dim * static_cast<int64_t>(size_of(index_dtype)) / index_ranks;
  return ledger;
}

}  // namespace sparrow
