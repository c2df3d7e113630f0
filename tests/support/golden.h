// SPDX-License-Identifier: Apache-2.0
// Golden files and how close a run came to them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace sparrow::test {

// SPARROW_GOLDEN_DIR in the environment moves it: tests may run on another machine than they were built on.
std::filesystem::path golden_dir();

// Tensors of a safetensors file as vectors. A missing tensor or a wrong type fails the test and gives an
// empty vector.
class TensorFile {
 public:
  explicit TensorFile(const std::filesystem::path& path);

  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  std::vector<int32_t> ints(const std::string& name) const { return read<int32_t>(name); }
  std::vector<float> floats(const std::string& name) const { return read<float>(name); }
  std::vector<uint8_t> bytes(const std::string& name) const { return read<uint8_t>(name); }
  std::vector<std::string> names() const;
  std::vector<int64_t> shape(const std::string& name) const { return file_.find(name)->shape; }

 private:
  template <typename T>
  std::vector<T> read(const std::string& name) const;

  SafetensorsFile file_;
};

// |a - b| / |b| over all elements. Infinite when the sizes differ or anything is not a finite number.
double relative_error(std::span<const float> a, std::span<const float> b);

// Selections are compared as sets, row by row: the oracle lists blocks by score, we list them by id.
struct SelectionMatch {
  int rows = 0, equal = 0;
};
SelectionMatch compare_selections(std::span<const int32_t> a, std::span<const int32_t> b, int64_t top_k);

// The same block by block: of those that the rows of `b` select by score, how many the rows of `a` have. Left
// out are blocks that could not have come out otherwise: a row's own, which is forced and comes last, and
// rows that see no more blocks than they select.
struct BlockMatch {
  int64_t rows = 0, equal_rows = 0, blocks = 0, same = 0;
  double share() const { return blocks == 0 ? 1.0 : static_cast<double>(same) / static_cast<double>(blocks); }
  void add(const BlockMatch& other);
};
BlockMatch compare_blocks(std::span<const int32_t> a, std::span<const int32_t> b, int64_t top_k);

}  // namespace sparrow::test
