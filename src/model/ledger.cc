// SPDX-License-Identifier: Apache-2.0
#include "model/ledger.h"

#include <algorithm>
#include <array>

#include "checkpoint/census.h"

namespace sparrow {
namespace {

struct Part {
  std::string_view name;
  std::array<std::string_view, 3>
      marks;  // a tensor belongs to the first part that has one of them in its name
};

constexpr std::array kParts = {
    Part{"vision", {"vision_tower.", "multi_modal_projector.", "patch_merge_mlp."}},
    Part{"routed experts", {".experts."}},
    Part{"shared experts", {".shared_experts."}},
    Part{"embeddings", {"embed_tokens.", "lm_head."}},
    Part{"router, norms", {"norm", "e_score_correction_bias", "block_sparse_moe.gate.weight"}},
    Part{"attention, index", {"self_attn."}},
    Part{"dense feed-forward", {"mlp."}},
};

size_t part_of(std::string_view name) {
  for (size_t i = 0; i < kParts.size(); ++i)
    for (const std::string_view mark : kParts[i].marks)
      if (!mark.empty() && name.find(mark) != std::string_view::npos) return i;
  SPARROW_CHECK(false);
  return 0;
}

}  // namespace

Ledger make_ledger(const ModelConfig& config, const ParallelConfig& parallel, DType kv_dtype,
                   DType index_dtype, bool vision) {
  std::array<int64_t, kParts.size()> bytes{};
  for (const TensorSpec& spec : expected_tensors(config))
    bytes[part_of(spec.name)] += shard_bytes(config, parallel, spec);
  if (!vision) bytes[0] = 0;

  Ledger ledger;
  for (size_t i = 0; i < kParts.size(); ++i) {
    if (bytes[i] > 0) ledger.weights.push_back({kParts[i].name, bytes[i]});
    ledger.weight_bytes += bytes[i];
  }
  std::sort(ledger.weights.begin(), ledger.weights.end(),
            [](const LedgerRow& a, const LedgerRow& b) { return a.bytes > b.bytes; });

  const int64_t sparse_layers = std::count(config.layer_is_sparse.begin(), config.layer_is_sparse.end(), 1);
  const int64_t heads = kv_heads_per_rank(config, parallel.size);
  ledger.kv_token_bytes =
      config.num_layers * heads * 2 * config.head_dim * static_cast<int64_t>(size_of(kv_dtype));
  ledger.index_token_bytes = sparse_layers * config.head_dim * static_cast<int64_t>(size_of(index_dtype));
  return ledger;
}

}  // namespace sparrow
