// SPDX-License-Identifier: Apache-2.0
// Quantised models against Hugging Face, which computed the goldens from the dequantised weights, and against
// their own bf16 expansion: there the bits are the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "checkpoint/tensor_table.h"
#include "engine/oracle_cases.h"
#include "ops/cpu/reference.h"

namespace sparrow {
namespace {

using namespace oracle;

using FormatOnIsa = testing::TestWithParam<std::tuple<std::string, CpuIsa>>;
std::string case_name(const testing::TestParamInfo<FormatOnIsa::ParamType>& info) {
  return std::get<0>(info.param) + "_" + isa_name(std::get<1>(info.param));
}

class QuantisedBf16Oracle : public FormatOnIsa {};

// By row, since an expert that flips takes its row far off: transformers on a CPU and on a GPU do that to
// each other, too.
TEST_P(QuantisedBf16Oracle, MostRowsAreAsNearToHuggingFaceAsRoundingLetsThem) {
  const auto& [name, isa] = GetParam();
  const Case c(name, name + "-bf16");
  const ModelRun run = c.run({.isa = isa});
  const std::vector<float> golden = c.golden.floats("logits");
  ASSERT_EQ(run.logits.size(), golden.size());
  const size_t rows = c.positions.size(), columns = golden.size() / rows;
  std::vector<double> errors;
  for (size_t row = 0; row < rows; ++row)
    errors.push_back(test::relative_error(std::span(run.logits).subspan(row * columns, columns),
                                          std::span(golden).subspan(row * columns, columns)));
  std::ranges::sort(errors);
  EXPECT_LE(errors[rows / 2], 1.5e-2);
  EXPECT_LE(errors[rows * 9 / 10], 3e-2);
  const auto match =
      test::compare_selections(selections(c, run), golden_selections(c), c.checkpoint.config().top_k_blocks);
  EXPECT_GT(match.rows, 0);
  EXPECT_GE(match.equal, 0.95 * match.rows) << "of " << match.rows;
}

INSTANTIATE_TEST_SUITE_P(Goldens, QuantisedBf16Oracle,
                         testing::Combine(testing::Values("mxfp8", "mxfp4"),
                                          testing::ValuesIn(isas(CpuIsa::kAvx2))),
                         case_name);

// The weights with every quantised matrix expanded.
struct Expanded {
  Weights weights;
  std::vector<std::unique_ptr<BFloat16[]>> matrices;

  explicit Expanded(const Checkpoint& from) : weights(from.weights()) {
    for (const TensorRow& row : tensor_table(from.config())) {
      if (row.piece != TensorPiece::kValues || !is_mx(row.format)) continue;
      const ops::Weight weight = find_weight(from.weights(), row.role, row.layer, row.expert);
      const int64_t out = weight.out(), in = weight.in();
      BFloat16* const values =
          matrices.emplace_back(std::make_unique<BFloat16[]>(static_cast<size_t>(out * in))).get();
      for (int64_t o = 0; o < out; ++o)
        for (int64_t k = 0; k < in; ++k)
          values[o * in + k] = to_bf16(ops::reference::weight_at(weight, o, k));
      *find_tensor(weights, row.role, TensorPiece::kValues, row.layer, row.expert) =
          Tensor(values, DType::kBF16, {out, in});
      *find_tensor(weights, row.role, TensorPiece::kScales, row.layer, row.expert) = Tensor();
    }
  }
};

class SameBitsAsExpanded : public FormatOnIsa {};

TEST_P(SameBitsAsExpanded, InPrefillAndDecode) {
  const auto& [name, isa] = GetParam();
  const Case c(name);
  const Expanded expanded(c.checkpoint);
  ASSERT_FALSE(expanded.matrices.empty());
  ModelConfig plain = c.checkpoint.config();
  plain.quant = QuantFormat::kNone;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const RunOptions options{.chunk = 333, .decode = 8, .isa = isa, .dtype = dtype};
    EXPECT_TRUE(c.run(options).same_bits(run_model(plain, expanded.weights, c.ids, c.positions, options)))
        << name_of(dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, SameBitsAsExpanded,
                         testing::Combine(testing::Values("mxfp8", "mxfp4"),
                                          testing::ValuesIn(isas(CpuIsa::kAvx2))),
                         case_name);

}  // namespace
}  // namespace sparrow
