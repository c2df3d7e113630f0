// SPDX-License-Identifier: Apache-2.0
// RandomTensor: what turns random bits into the elements of one tensor. The same name, shape, type and seed
// give the same bytes on every machine and in any order of filling.
#pragma once

#include <cstddef>
#include <cstdint>

#include "checkpoint/random/random_bits.h"
#include "checkpoint/tensor_row.h"
#include "config/config.h"

namespace sparrow {

// What the elements of a F32 or BF16 tensor are made from.
struct RandomNumbers {
  uint64_t key;
  UniformSpread spread;
};
RandomNumbers random_numbers(const TensorRow& row, const ModelConfig& config, uint64_t seed);

class RandomTensor {
 public:
  RandomTensor(const TensorRow& row, const ModelConfig& config, uint64_t seed);

  // Elements [first, first + count) of the tensor; `first` is a multiple of kStep.
  static constexpr int64_t kStep = 8;
  void fill(int64_t first, int64_t count, std::byte* out) const;

  // Of codes and scales.
  const RandomBytes& bytes() const { return bytes_; }

 private:
  DType dtype_;
  RandomNumbers numbers_;
  RandomBytes bytes_;  // of one-byte types
};

}  // namespace sparrow
