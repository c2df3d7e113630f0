// SPDX-License-Identifier: Apache-2.0
// Golden checkpoints, and runs of the whole text model over them.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstring>
#include <optional>

#include "checkpoint/checkpoint.h"
#include "engine/cpu/cpu_runner.h"
#include "engine/cpu/sampler.h"
#include "engine/sequence_runner.h"
#include "support/golden.h"
#include "support/variant.h"

namespace sparrow::oracle {

struct ModelRun {
  std::vector<float> logits, greedy_logits;
  std::vector<int32_t> greedy_ids;
  Capture capture;

  bool same_bits(const ModelRun& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    bool all = same(logits, other.logits) && same(greedy_logits, other.greedy_logits) &&
               greedy_ids == other.greedy_ids && capture.selected_blocks == other.capture.selected_blocks;
    for (size_t i = 0; i < capture.hidden.size(); ++i)
      all = all && same(capture.hidden[i], other.capture.hidden[i]);
    return all;
  }
};

struct RunOptions {
  int chunk = 0;   // 0: the whole prompt
  int decode = 0;  // greedy steps
  CpuIsa isa = test::test_isa();
  int threads = 2;
  std::optional<uint64_t> block_order_seed;
  std::optional<DType> dtype;      // of the activations; default: the checkpoint's
  bool round_frequencies = false;  // see RopeConfig
};

inline ModelRun run_model(ModelConfig config, const Weights& weights, const std::vector<int32_t>& ids,
                          const std::vector<int32_t>& positions, const RunOptions& options) {
  config.dtype = options.dtype.value_or(config.dtype);
  config.rope.round_frequencies = options.round_frequencies;
  const int total = static_cast<int>(ids.size());
  SequenceRunner runner(CpuRunner::create(config, weights, total + options.decode + 500,
                                          {.threads = options.threads, .isa = options.isa})
                            .value(),
                        options.block_order_seed);
  Sequence sequence = runner.new_sequence();
  sequence.ids = ids;
  ModelRun run;
  const int chunk = options.chunk > 0 ? options.chunk : total;
  for (int begin = 0; begin < total; begin += chunk) {
    const int num_tokens = std::min(chunk, total - begin);
    std::vector<int32_t> rows;
    for (const int32_t position : positions)
      if (position >= begin && position < begin + num_tokens) rows.push_back(position - begin);
    runner.run(sequence, num_tokens, rows, &run.capture).value();
    const Tensor logits = runner.logits();
    run.logits.insert(run.logits.end(), logits.as<float>(), logits.as<float>() + logits.numel());
  }
  const size_t vocab = config.vocab_size;
  run.greedy_ids.push_back(argmax({run.logits.data() + run.logits.size() - vocab, vocab}).value());
  for (int step = 0; step < options.decode; ++step) {
    sequence.ids.push_back(run.greedy_ids.back());
    const Tensor logits = runner.prefill(sequence, 1).value();
    run.greedy_logits.insert(run.greedy_logits.end(), logits.as<float>(), logits.as<float>() + vocab);
    run.greedy_ids.push_back(argmax({logits.as<float>(), vocab}).value());
  }
  return run;
}

inline ModelRun run_model(const Checkpoint& checkpoint, const std::vector<int32_t>& ids,
                          const std::vector<int32_t>& positions, const RunOptions& options) {
  return run_model(checkpoint.config(), checkpoint.weights(), ids, positions, options);
}

// What one golden checkpoint comes with.
struct Case {
  explicit Case(const std::string& name) : Case(name, name) {}
  Case(const std::string& name, const std::string& golden_name)
      : golden(test::golden_dir() / (golden_name + ".golden.safetensors")),
        checkpoint(Checkpoint::open(test::golden_dir() / name).value()),
        ids(golden.ints("input_ids")),
        positions(golden.ints("logit_positions")) {}

  ModelRun run(const RunOptions& options) const { return run_model(checkpoint, ids, positions, options); }

  test::TensorFile golden;
  Checkpoint checkpoint;
  std::vector<int32_t> ids, positions;
};

// Golden selections are [heads, positions, top_k], ours [positions, heads, top_k].
inline std::vector<int32_t> heads_first(const std::vector<int32_t>& rows, size_t heads, size_t top_k) {
  const size_t positions = rows.size() / (heads * top_k);
  std::vector<int32_t> result(rows.size());
  for (size_t p = 0; p < positions; ++p)
    for (size_t h = 0; h < heads; ++h)
      std::copy_n(rows.begin() + (p * heads + h) * top_k, top_k,
                  result.begin() + (h * positions + p) * top_k);
  return result;
}

// Selections of all sparse layers, in the golden's order.
inline std::vector<int32_t> selections(const Case& c, const ModelRun& run) {
  const ModelConfig& config = c.checkpoint.config();
  std::vector<int32_t> all;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (!config.layer_is_sparse[layer]) continue;
    const auto rows =
        heads_first(run.capture.selected_blocks[layer], config.num_kv_heads, config.top_k_blocks);
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

inline std::vector<int32_t> golden_selections(const Case& c) {
  std::vector<int32_t> all;
  for (int layer = 0; layer < c.checkpoint.config().num_layers; ++layer) {
    if (!c.checkpoint.config().layer_is_sparse[layer]) continue;
    const auto rows = c.golden.ints(strf("selected_blocks.{}", layer));
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

inline std::vector<CpuIsa> isas(CpuIsa first) {
  std::vector<CpuIsa> all;
  for (int isa = static_cast<int>(first); isa <= static_cast<int>(ops::detect_cpu_isa()); ++isa)
    all.push_back(static_cast<CpuIsa>(isa));
  return all;
}

inline std::string isa_name(CpuIsa isa) {
  std::string name = ops::name_of(isa);
  std::erase_if(name, [](unsigned char c) { return std::isalnum(c) == 0; });  // gtest takes nothing else
  return name;
}

}  // namespace sparrow::oracle
