// SPDX-License-Identifier: Apache-2.0
#include "ops/sample_batch.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace sparrow::ops::cuda {
namespace {

bool has_penalties(const SampleSpec& spec) {
  return spec.repetition_penalty != 1.0 || spec.presence_penalty != 0.0 || spec.frequency_penalty != 0.0;
}

}  // namespace

void SampleBatch::clear() {
  rows_.clear();
  words_.clear();
  plain_greedy_ = true;
}

size_t SampleBatch::bytes_of(const SampleSpec& spec) {
  const size_t pairs = (has_penalties(spec) ? spec.seen.size() : 0) + spec.bias.size();
  return sizeof(PackedRow) + sizeof(int32_t) * (2 * pairs + spec.allowed.size() + spec.banned.size() +
                                                spec.more_banned.size() + spec.mask.size());
}

void SampleBatch::add_row(const SampleSpec& spec) {
  PackedRow row = {.temperature = spec.temperature,
                   .top_p = spec.top_p,
                   .min_p = spec.min_p,
                   .draw = spec.draw,
                   .repetition_penalty = spec.repetition_penalty,
                   .presence_penalty = spec.presence_penalty,
                   .frequency_penalty = spec.frequency_penalty,
                   .logits_row = spec.logits_row,
                   .top_k = spec.top_k,
                   .first_word = static_cast<int32_t>(words_.size())};
  if (has_penalties(spec)) {
    row.num_seen = static_cast<int32_t>(spec.seen.size());
    for (const SeenId& seen : spec.seen) words_.insert(words_.end(), {seen.id, seen.count});
  }
  // Sorted, so that the biases of one id stand together and one thread adds them in their order.
  std::vector<std::pair<int32_t, float>> bias(spec.bias.begin(), spec.bias.end());
  std::stable_sort(bias.begin(), bias.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  row.num_bias = static_cast<int32_t>(bias.size());
  for (const auto& [id, value] : bias) words_.insert(words_.end(), {id, std::bit_cast<int32_t>(value)});
  row.num_allowed = static_cast<int32_t>(spec.allowed.size());
  words_.insert(words_.end(), spec.allowed.begin(), spec.allowed.end());
  row.num_banned = static_cast<int32_t>(spec.banned.size() + spec.more_banned.size());
  words_.insert(words_.end(), spec.banned.begin(), spec.banned.end());
  words_.insert(words_.end(), spec.more_banned.begin(), spec.more_banned.end());
  row.num_mask = static_cast<int32_t>(spec.mask.size());
  words_.insert(words_.end(), spec.mask.begin(), spec.mask.end());
  const bool changed = row.num_seen + row.num_bias + row.num_allowed + row.num_banned + row.num_mask > 0;
  plain_greedy_ = plain_greedy_ && spec.temperature == 0 && !changed;
  rows_.push_back(row);
}

void SampleBatch::pack(void* out) const {
  auto* const rows = static_cast<PackedRow*>(out);
  constexpr int32_t kRowWords = sizeof(PackedRow) / sizeof(int32_t);
  for (size_t i = 0; i < rows_.size(); ++i) {
    rows[i] = rows_[i];
    rows[i].first_word += static_cast<int32_t>(rows_.size()) * kRowWords;
  }
  if (!words_.empty()) std::memcpy(rows + rows_.size(), words_.data(), words_.size() * sizeof(int32_t));
}

}  // namespace sparrow::ops::cuda
