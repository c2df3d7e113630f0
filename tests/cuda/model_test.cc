// SPDX-License-Identifier: Apache-2.0
// The whole text model on a GPU against the CPU reference: the same checkpoint, the same prompt, bf16 on both
// sides.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "checkpoint/checkpoint.h"
#include "checkpoint/random/synthetic.h"
#include "engine/sequence_runner.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

struct RunOptions {
  Device device = Device::kCuda;
  int chunk = 0;  // 0: the whole prompt
  bool graphs = true;
  DType kv_dtype = DType::kBF16, index_dtype = DType::kBF16;
  std::optional<uint64_t> block_order_seed = {};
  DType dtype = DType::kBF16;              // of the CPU's activations
  std::vector<int32_t> continuation = {};  // decoded one by one after the prompt, whatever the model says
};

struct ModelRun {
  std::vector<float> logits;  // of every wanted row, then of the continuation's
  Capture capture;            // of the prompt
};

ModelRun run_model(const Checkpoint& checkpoint, const std::vector<int32_t>& ids,
                   const std::vector<int32_t>& positions, const RunOptions& options) {
  ModelConfig config = checkpoint.config();
  config.dtype = options.dtype;
  const int total = static_cast<int>(ids.size());
  const EngineOptions engine_options{
      .device = options.device,
      .cache_tokens = total + 1000,
      .cpu = {.threads = 2},
      .gpu = {.kv_dtype = options.kv_dtype, .index_dtype = options.index_dtype, .graphs = options.graphs},
      .max_model_tokens = 8192,
      .max_step_tokens = 4096,
      .max_step_sequences = 16};
  SequenceRunner runner(create_runner(config, checkpoint.weights(), engine_options).value(),
                        options.block_order_seed);
  Sequence sequence = runner.new_sequence();
  sequence.ids = ids;
  ModelRun run;
  const auto take_logits = [&] {
    const Tensor logits = runner.logits();
    run.logits.insert(run.logits.end(), logits.as<float>(), logits.as<float>() + logits.numel());
  };
  const int chunk = options.chunk > 0 ? options.chunk : total;
  for (int begin = 0; begin < total; begin += chunk) {
    const int num_tokens = std::min(chunk, total - begin);
    std::vector<int32_t> rows;
    for (const int32_t position : positions)
      if (position >= begin && position < begin + num_tokens) rows.push_back(position - begin);
    runner.run(sequence, num_tokens, rows, options.chunk > 0 ? nullptr : &run.capture).value();
    take_logits();
  }
  for (const int32_t id : options.continuation) {
    sequence.ids.push_back(id);
    runner.prefill(sequence, 1).value();
    take_logits();
  }
  return run;
}

// How often two runs agree on the best id, among the rows where the reference is sure: its best two logits
// differ by more than 1% of the best.
struct GreedyMatch {
  int sure = 0, equal = 0;
};

GreedyMatch compare_greedy(const std::vector<float>& logits, const std::vector<float>& reference,
                           size_t vocab) {
  GreedyMatch match;
  for (size_t row = 0; row < reference.size() / vocab; ++row) {
    const auto best = [&](const std::vector<float>& all) {
      return std::max_element(all.begin() + row * vocab, all.begin() + (row + 1) * vocab) - all.begin() -
             row * vocab;
    };
    const size_t id = best(reference);
    const float top = reference[row * vocab + id];
    float second = -INFINITY;
    for (size_t i = 0; i < vocab; ++i)
      if (i != id) second = std::max(second, reference[row * vocab + i]);
    if (!(top - second > 0.01f * std::fabs(top))) continue;
    ++match.sure;
    match.equal += static_cast<size_t>(best(logits)) == id;
  }
  return match;
}

// Errors of the rows of logits. Most rows differ by roundings; where an expert or a block was chosen the
// other way at a near-tie, a row differs altogether.
struct RowErrors {
  double median = 0;
  int rows = 0, far = 0;  // off by more than kFar
};
constexpr double kFar = 0.1;

RowErrors compare_rows(const std::vector<float>& logits, const std::vector<float>& reference, size_t vocab) {
  std::vector<double> errors;
  for (size_t row = 0; row < reference.size() / vocab; ++row)
    errors.push_back(
        test::relative_error({logits.data() + row * vocab, vocab}, {reference.data() + row * vocab, vocab}));
  RowErrors result{.rows = static_cast<int>(errors.size())};
  for (const double error : errors) result.far += !(error <= kFar);
  std::nth_element(errors.begin(), errors.begin() + errors.size() / 2, errors.end());
  result.median = errors[errors.size() / 2];
  return result;
}

struct Comparison {
  RowErrors logits;
  test::SelectionMatch selections;
  GreedyMatch greedy;

  // Several models' counts, and the sum of their medians.
  void add(const Comparison& other) {
    logits.median += other.logits.median;
    logits.rows += other.logits.rows, logits.far += other.logits.far;
    selections.rows += other.selections.rows, selections.equal += other.selections.equal;
    greedy.sure += other.greedy.sure, greedy.equal += other.greedy.equal;
  }
};

Comparison compare(const Checkpoint& checkpoint, const ModelRun& run, const ModelRun& reference) {
  const size_t vocab = checkpoint.config().vocab_size;
  Comparison c{.logits = compare_rows(run.logits, reference.logits, vocab),
               .greedy = compare_greedy(run.logits, reference.logits, vocab)};
  for (size_t layer = 0; layer < reference.capture.selected_blocks.size(); ++layer) {
    const test::SelectionMatch match =
        test::compare_selections(run.capture.selected_blocks[layer], reference.capture.selected_blocks[layer],
                                 checkpoint.config().top_k_blocks);
    c.selections.rows += match.rows;
    c.selections.equal += match.equal;
  }
  return c;
}

void print(const std::string& name, const Comparison& c) {
  std::printf(
      "%-34s logits %.1e, %d of %d rows far off; selections %d of %d; greedy ids %d of %d sure ones\n",
      name.c_str(), c.logits.median, c.logits.far, c.logits.rows, c.selections.equal, c.selections.rows,
      c.greedy.equal, c.greedy.sure);
}

// The GPU must be as near to a run in f32 as the CPU is in bf16: the same roundings, elsewhere. Near-ties
// fall by chance, so their counts are compared with some room: the larger of half as many again and 1%.
void expect_as_near(const Comparison& gpu, const Comparison& cpu) {
  const auto most = [](int count, int rows) { return std::max(1.5 * count, 0.01 * rows) + 2; };
  EXPECT_LE(gpu.logits.median, 1.25 * cpu.logits.median + 1e-3);
  EXPECT_LE(gpu.logits.far, most(cpu.logits.far, cpu.logits.rows));
  EXPECT_LE(gpu.selections.rows - gpu.selections.equal,
            most(cpu.selections.rows - cpu.selections.equal, cpu.selections.rows));
  EXPECT_GE(gpu.greedy.equal, 0.95 * gpu.greedy.sure);
}

struct DevicePair {
  Comparison gpu, cpu;  // with a run in f32
};

DevicePair compare_devices(const std::string& name, const Checkpoint& checkpoint,
                           const std::vector<int32_t>& ids, const std::vector<int32_t>& continuation) {
  std::vector<int32_t> positions(ids.size());
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i);
  const RunOptions on_gpu{.continuation = continuation};
  const RunOptions on_cpu{.device = Device::kCpu, .continuation = continuation};
  const RunOptions exact{.device = Device::kCpu, .dtype = DType::kF32, .continuation = continuation};
  const ModelRun truth = run_model(checkpoint, ids, positions, exact);
  const Comparison gpu = compare(checkpoint, run_model(checkpoint, ids, positions, on_gpu), truth);
  const Comparison cpu = compare(checkpoint, run_model(checkpoint, ids, positions, on_cpu), truth);
  print(name + ", GPU", gpu);
  print(name + ", CPU in bf16", cpu);
  return {gpu, cpu};
}

class CudaOracle : public testing::TestWithParam<const char*> {};

TEST_P(CudaOracle, GoldenCheckpointIsAsNearAsTheCpu) {
  const std::string name = GetParam();
  const test::TensorFile golden(test::golden_dir() / (name + ".golden.safetensors"));
  const Checkpoint checkpoint = Checkpoint::open(test::golden_dir() / name).value();
  const auto [gpu, cpu] =
      compare_devices(name, checkpoint, golden.ints("input_ids"), golden.ints("greedy_ids"));
  expect_as_near(gpu, cpu);
}

INSTANTIATE_TEST_SUITE_P(Goldens, CudaOracle, testing::Values("f32", "bf16", "yarn"));

// All of them together: one of a few rows alone has too few near-ties to count.
TEST(CudaModel, RandomTinyModelsAreAsNearAsTheCpu) {
  DevicePair all;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const test::TempDir dir;
    const DType dtype = seed % 3 == 0 ? DType::kF32 : seed % 3 == 1 ? DType::kBF16 : DType::kF8E4M3;
    write_synthetic_checkpoint(
        {.preset = "tiny", .seed = seed, .dir = dir.path() / "model", .format = format_of(dtype)})
        .value();
    const Checkpoint checkpoint = Checkpoint::open(dir.path() / "model").value();
    const int length = std::array{1, 127, 128, 129, 1000, 2047, 2048, 2049, 3000, 4000}[seed % 10];
    std::vector<int32_t> ids(length);
    for (int i = 0; i < length; ++i)
      ids[i] = static_cast<int32_t>((i * 7919 + seed * 104729) % checkpoint.config().vocab_size);
    const std::string name = strf("seed {}, {}, {} tokens", seed, name_of(dtype), length);
    const auto [gpu, cpu] = compare_devices(name, checkpoint, ids, {1, 2, 3, 5, 8});
    all.gpu.add(gpu), all.cpu.add(cpu);
  }
  print("all, GPU", all.gpu);
  print("all, CPU in bf16", all.cpu);
  expect_as_near(all.gpu, all.cpu);
}

// Chunks, block order, graphs: other kernels may run, but the model is the same.
TEST(CudaModel, ChunksGraphsAndBlockOrderChangeNothingThatMatters) {
  const test::TensorFile golden(test::golden_dir() / "bf16.golden.safetensors");
  const Checkpoint checkpoint = Checkpoint::open(test::golden_dir() / "bf16").value();
  const std::vector<int32_t> ids = golden.ints("input_ids"), positions = golden.ints("logit_positions");
  const std::vector<int32_t> continuation = golden.ints("greedy_ids");
  const size_t vocab = checkpoint.config().vocab_size;
  const ModelRun whole = run_model(checkpoint, ids, positions, {.continuation = continuation});
  const auto expect_near = [&](RunOptions options) {
    options.continuation = continuation;
    const RowErrors errors =
        compare_rows(run_model(checkpoint, ids, positions, options).logits, whole.logits, vocab);
    EXPECT_LE(errors.median, 2e-2);
    EXPECT_LE(errors.far, 4) << "of " << errors.rows;
  };
  expect_near({});
  expect_near({.block_order_seed = 3});
  expect_near({.graphs = false});
  for (const int chunk : {1000, 128, 77, 16, 1}) {
    SCOPED_TRACE(chunk);
    expect_near({.chunk = chunk});
  }
}

TEST(CudaModel, Fp8CacheStaysNear) {
  const test::TensorFile golden(test::golden_dir() / "bf16.golden.safetensors");
  const Checkpoint checkpoint = Checkpoint::open(test::golden_dir() / "bf16").value();
  const std::vector<int32_t> ids = golden.ints("input_ids"), positions = golden.ints("logit_positions");
  const std::vector<int32_t> continuation = golden.ints("greedy_ids");
  const ModelRun bf16 = run_model(checkpoint, ids, positions, {.continuation = continuation});
  const ModelRun fp8 =
      run_model(checkpoint, ids, positions, {.kv_dtype = DType::kF8E4M3, .continuation = continuation});
  const RowErrors errors = compare_rows(fp8.logits, bf16.logits, checkpoint.config().vocab_size);
  EXPECT_GT(errors.median, 0) << "nothing was rounded to fp8";
  EXPECT_LE(errors.median, 5e-2);  // e4m3 rounds at 2^-4, over thousands of keys
}

// Rounded index keys change no number but the choice of blocks, and that where two are nearly as good. A
// wrong lane would select at random and agree on a third of the blocks. tests/engine/index_agreement_test.cc
// has the same on a CPU.
TEST(CudaModel, Fp8IndexStaysNear) {
  const test::TensorFile golden(test::golden_dir() / "f32.golden.safetensors");
  const Checkpoint checkpoint = Checkpoint::open(test::golden_dir() / "f32").value();
  const std::vector<int32_t> ids = golden.ints("input_ids"), continuation = golden.ints("greedy_ids");
  std::vector<int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), 0);
  const auto run = [&](DType kv_dtype, DType index_dtype) {
    return run_model(checkpoint, ids, positions,
                     {.kv_dtype = kv_dtype, .index_dtype = index_dtype, .continuation = continuation});
  };
  const ModelRun exact = run(DType::kBF16, DType::kBF16);
  const ModelConfig& config = checkpoint.config();
  for (const DType kv_dtype : {DType::kBF16, DType::kF8E4M3}) {
    const ModelRun fp8 = run(kv_dtype, DType::kF8E4M3);
    test::BlockMatch blocks;
    for (size_t layer = 0; layer < exact.capture.selected_blocks.size(); ++layer)
      blocks.add(test::compare_blocks(fp8.capture.selected_blocks[layer],
                                      exact.capture.selected_blocks[layer], config.top_k_blocks));
    const RowErrors errors = compare_rows(fp8.logits, exact.logits, config.vocab_size);
    const GreedyMatch greedy = compare_greedy(fp8.logits, exact.logits, config.vocab_size);
    const auto decoded = [&](const ModelRun& from) {  // one by one, which other kernels do
      const auto values = static_cast<std::ptrdiff_t>(continuation.size() * config.vocab_size);
      return std::vector(from.logits.end() - values, from.logits.end());
    };
    const RowErrors decodes = compare_rows(decoded(fp8), decoded(exact), config.vocab_size);
    std::printf(
        "K and V %s, index keys e4m3: %.2f%% of %ld scored blocks agree; logits %.1e, %d of %d rows "
        "far off; greedy ids %d of %d sure ones\n",
        std::string(name_of(kv_dtype)).c_str(), 100 * blocks.share(), blocks.blocks, errors.median,
        errors.far, errors.rows, greedy.equal, greedy.sure);
    EXPECT_LT(blocks.same, blocks.blocks) << "nothing was rounded to fp8";
    EXPECT_GE(blocks.share(), 0.9);
    EXPECT_LE(errors.median, 5e-2);
    EXPECT_LE(decodes.median, 5e-2);
  }
}

}  // namespace
}  // namespace sparrow
