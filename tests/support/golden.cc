// SPDX-License-Identifier: Apache-2.0
#include "support/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>

namespace sparrow::test {

std::filesystem::path golden_dir() {
  const char* moved = std::getenv("SPARROW_GOLDEN_DIR");
  return moved ? moved : SPARROW_GOLDEN_DIR;
}

TensorFile::TensorFile(const std::filesystem::path& path) : file_(SafetensorsFile::open(path).value()) {}

template <typename T>
std::vector<T> TensorFile::read(const std::string& name) const {
  const auto tensor = file_.tensor(name);
  if (!tensor.ok()) {
    ADD_FAILURE() << tensor.error().message;
    return {};
  }
  const T* data = tensor->as<T>();
  return std::vector<T>(data, data + tensor->numel());
}

template std::vector<int32_t> TensorFile::read<int32_t>(const std::string&) const;
template std::vector<float> TensorFile::read<float>(const std::string&) const;
template std::vector<uint8_t> TensorFile::read<uint8_t>(const std::string&) const;

std::vector<std::string> TensorFile::names() const {
  std::vector<std::string> all;
  for (const auto& [name, entry] : file_.header().entries) all.push_back(name);
  return all;
}

double relative_error(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size() || a.empty()) return std::numeric_limits<double>::infinity();
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return std::numeric_limits<double>::infinity();
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / norm);
}

SelectionMatch compare_selections(std::span<const int32_t> a, std::span<const int32_t> b, int64_t top_k) {
  EXPECT_EQ(a.size(), b.size());
  SelectionMatch match;
  for (size_t row = 0; row + top_k <= std::min(a.size(), b.size()); row += top_k) {
    const std::multiset<int32_t> left(a.begin() + row, a.begin() + row + top_k);
    const std::multiset<int32_t> right(b.begin() + row, b.begin() + row + top_k);
    ++match.rows;
    match.equal += left == right;
  }
  return match;
}

void BlockMatch::add(const BlockMatch& other) {
  rows += other.rows, equal_rows += other.equal_rows;
  blocks += other.blocks, same += other.same;
}

BlockMatch compare_blocks(std::span<const int32_t> a, std::span<const int32_t> b, int64_t top_k) {
  EXPECT_EQ(a.size(), b.size());
  BlockMatch match;
  for (size_t row = 0; row + top_k <= std::min(a.size(), b.size()); row += top_k) {
    const auto left = a.subspan(row, top_k), scored = b.subspan(row, top_k - 1);
    if (b[row + top_k - 1] < top_k) continue;  // its own block's number: it sees no more than it selects
    const auto same = std::ranges::count_if(
        scored, [&](int32_t block) { return std::ranges::find(left, block) != left.end(); });
    ++match.rows;
    match.equal_rows += same == top_k - 1;
    match.blocks += top_k - 1;
    match.same += same;
  }
  return match;
}

}  // namespace sparrow::test
