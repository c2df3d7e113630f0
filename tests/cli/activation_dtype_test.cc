// SPDX-License-Identifier: Apache-2.0
// Who may have --activation-dtype fp8, and what the others are told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/load_model.h"

namespace sparrow::cli {
namespace {

using testing::HasSubstr;

ModelConfig mxfp8_model() {
  ModelConfig config;
  config.quant = QuantFormat::kMxfp8;
  config.hidden_size = 6144;
  return config;
}

std::string refusal(const LoadOptions& options, const ModelConfig& config, Device device) {
  const Result<bool> result = rounds_tokens(options, config, device);
  return result.ok() ? "" : result.error().message;
}

TEST(ActivationDtype, TokensStayAsTheyAreUnlessAskedFor) {
  for (const char* value : {"auto", "bfloat16", "bf16"})
    for (const Device device : {Device::kCpu, Device::kCuda})
      EXPECT_FALSE(rounds_tokens({.activation_dtype = value}, {}, device).value()) << value;
  EXPECT_FALSE(rounds_tokens({}, mxfp8_model(), Device::kCuda).value());
}

TEST(ActivationDtype, Fp8IsForMxfp8OnAGpu) {
  const LoadOptions fp8{.activation_dtype = "fp8"};
  EXPECT_TRUE(rounds_tokens(fp8, mxfp8_model(), Device::kCuda).value());
  EXPECT_THAT(refusal(fp8, mxfp8_model(), Device::kCpu), HasSubstr("needs a GPU"));
  ModelConfig config = mxfp8_model();
  config.quant = QuantFormat::kMxfp4;
  EXPECT_THAT(refusal(fp8, config, Device::kCuda), HasSubstr("needs a model with experts in MXFP8"));
  config = mxfp8_model();
  config.hidden_size = 6144 + 64;
  EXPECT_THAT(refusal(fp8, config, Device::kCuda),
              HasSubstr("hidden_size must be a multiple of 128, got 6208"));
  EXPECT_THAT(refusal({.activation_dtype = "fp8", .batch_invariant = true}, mxfp8_model(), Device::kCuda),
              HasSubstr("not with --batch-invariant"));
  EXPECT_THAT(refusal({.activation_dtype = "int8"}, mxfp8_model(), Device::kCuda), HasSubstr("got int8"));
}

}  // namespace
}  // namespace sparrow::cli
