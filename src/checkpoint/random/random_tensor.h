// SPDX-License-Identifier: Apache-2.0
// RandomTensor: what turns random bits into the elements of one tensor. The same name, shape, type and seed
// give the same bytes on every machine and in any order of filling.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "checkpoint/random/random_bits.h"
#include "checkpoint/safetensors.h"
#include "config/config.h"

namespace sparrow {

class RandomTensor {
 public:
  RandomTensor(const TensorSpec& spec, const ModelConfig& config, uint64_t seed);

  // Elements [first, first + count) of the tensor; `first` is a multiple of kStep.
  static constexpr int64_t kStep = 8;
  void fill(int64_t first, int64_t count, std::byte* out) const;

  // What the elements of a F32 or BF16 tensor are made from.
  uint64_t key() const { return key_; }
  UniformSpread spread() const { return spread_; }

 private:
  DType dtype_;
  uint64_t key_;
  UniformSpread spread_;
  std::array<uint8_t, 256> table_{};  // of one-byte types
};

}  // namespace sparrow
