// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/step_cost.h"

#include <algorithm>

#include "model/device_layout.h"

namespace sparrow::cli {
namespace {

constexpr double kBf16 = 2, kF32 = 4;
constexpr double kBlock = 128;

// A number of a matrix, with its share of a scale.
double bytes_of_number(MatrixFormat format) {
  const double element =
      static_cast<double>(size_of(dtype_of(format))) / static_cast<double>(values_per_element(format));
  return is_mx(format) ? element + 1.0 / static_cast<double>(kScaleGroup) : element;
}

// Keys that the new tokens of one request see, summed over them, where each sees at most `most`.
double keys_seen(int queries, int64_t context, double most) {
  double sum = 0;
  for (int q = 0; q < queries; ++q)
    sum += std::min<double>(most, static_cast<double>(context - queries + q + 1));
  return sum;
}

// Of all requests. However many queries of one select a key, it is read once; there are no more than all.
double keys_seen(const StepWork& work, double most) {
  return work.requests * keys_seen(work.queries, work.context, most) +
         keys_seen(work.prompt_queries, work.prompt_context, most);
}
double keys_read(const StepWork& work, double selected) {
  return work.requests * std::min<double>(static_cast<double>(work.context), work.queries * selected) +
         std::min<double>(static_cast<double>(work.prompt_context), work.prompt_queries * selected);
}

}  // namespace

double PartCost::floor_us(double bytes_per_us, double flops_per_us) const {
  return std::max(bytes / bytes_per_us, flops / flops_per_us);
}

std::vector<PartCost> step_cost(const ModelConfig& config, const Grid& grid, const StepWork& work) {
  const double tokens = static_cast<double>(work.tokens());
  const double hidden = config.hidden_size, head = config.head_dim;
  const double query_heads = static_cast<double>(config.num_query_heads) / grid.tp;
  const double kv_heads = kv_heads_per_rank(config, grid);
  const double q_dim = query_heads * head, kv_dim = kv_heads * head;
  const double all = static_cast<double>(std::max(work.context, work.prompt_context));
  const double cached = keys_read(work, all);
  const double kv_row = 2 * kv_dim * static_cast<double>(size_of(work.kv_dtype));  // K and V of a token
  const double index_row = head * static_cast<double>(size_of(work.index_dtype));

  PartCost norm{"norms"}, projection{"q/k/v product"}, store{"rotary + store"}, index{"index"};
  PartCost attend{"sparse attention"}, dense{"dense attention"}, output{"output product"}, router{"router"};
  PartCost experts{"experts"}, head_cost{"vocabulary"};
  const auto product = [&](PartCost& cost, double n, double k, double rows, double weight_size) {
    cost.bytes += n * k * weight_size + rows * (n + k) * kBf16;
    cost.flops += 2 * rows * n * k;
  };
  const DeviceLayout layout = make_device_layout(config, grid).value();  // a rank of it has run
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const bool sparse = config.layer_is_sparse[layer];
    const auto number = [&](DeviceTensor of) {
      return bytes_of_number(layout.layers[static_cast<size_t>(layer)].tensors[of].format);
    };
    const double expert_number =  // of gate, up and down together
        2 * number(DeviceTensor::kGateUp) + number(DeviceTensor::kDown);
    const double rows_of_qkv = q_dim + 2 * kv_dim + (sparse ? kv_dim + head : 0);
    norm.bytes += 2 * tokens * hidden * 4 * kBf16;  // twice: residual and delta in, residual and norm out
    product(projection, rows_of_qkv, hidden, tokens, number(DeviceTensor::kQkv));
    store.bytes += tokens * (rows_of_qkv + q_dim + (sparse ? kv_dim : 0)) * kBf16 + tokens * kv_row +
                   (sparse ? tokens * index_row : 0);
    if (sparse) {
      const double selected = config.top_k_blocks * kBlock;
      index.bytes += cached * index_row + tokens * kv_dim * kBf16;
      index.flops += 2 * kv_dim * keys_seen(work, all);
      attend.bytes += keys_read(work, selected) * kv_row + 2 * tokens * q_dim * kBf16;
      attend.flops += 4 * q_dim * keys_seen(work, selected);
    } else {
      dense.bytes += cached * kv_row + 2 * tokens * q_dim * kBf16;
      dense.flops += 4 * q_dim * keys_seen(work, all);
    }
    product(output, hidden, q_dim, tokens, number(DeviceTensor::kO));
    if (config.layer_is_moe[layer]) {
      // Experts compute for all groups; their work is the same share of it whichever way they are cut.
      const double all_tokens = tokens * grid.dp, ranks = grid.world();
      const double inter = config.expert_intermediate_size, shared = config.shared_intermediate_size / ranks;
      const double here = has_whole_experts(grid) ? inter : inter / ranks;  // of an expert that was hit
      router.bytes += config.num_experts * hidden * kF32 + tokens * hidden * kBf16;
      router.flops += 2 * tokens * config.num_experts * hidden;
      experts.bytes += hidden * expert_number * (work.experts_hit[layer] * here + shared) +
                       2 * all_tokens * hidden * kBf16;
      experts.flops += 6 * hidden * all_tokens * (config.experts_per_token * inter / ranks + shared);
    } else {
      const double inter = static_cast<double>(config.dense_intermediate_size) / grid.tp;
      experts.bytes += hidden * inter * expert_number + 2 * tokens * hidden * kBf16;
      experts.flops += 6 * hidden * tokens * inter;
    }
  }
  const double vocabulary = static_cast<double>(config.vocab_size) / grid.tp;
  const double logits = work.requests + (work.prompt_queries > 0 ? 1 : 0);
  product(head_cost, vocabulary, hidden, logits, kBf16);
  head_cost.bytes += logits * vocabulary * (kF32 - kBf16);
  return {norm, projection, store, index, attend, dense, output, router, experts, head_cost};
}

}  // namespace sparrow::cli
