// SPDX-License-Identifier: Apache-2.0
#include "msa/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace msa::reference {
namespace {

float element(Type type, const void* data, int64_t i) {
  if (type == Type::kF32) return static_cast<const float*>(data)[i];
  return std::bit_cast<float>(uint32_t{static_cast<const uint16_t*>(data)[i]} << 16);
}

void set_element(Type type, void* data, int64_t i, float x) {
  if (type == Type::kF32) {
    static_cast<float*>(data)[i] = x;
    return;
  }
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = std::isnan(x) ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u);
  static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(rounded >> 16);
}

// Products of bf16 numbers are exact in double, and 128 of them lose nothing that a float would show.
double dot(Type type, const void* a, int64_t a_at, const void* b, int64_t b_at) {
  double sum = 0;
  for (int d = 0; d < kHeadDim; ++d)
    sum += double{element(type, a, a_at + d)} * double{element(type, b, b_at + d)};
  return sum;
}

int64_t position_of(const Plan& plan, int request, int row) {
  return int64_t{plan.seq_lens[request]} - plan.cu_seqlens_q[request + 1] + row;
}

int64_t page_of(const Plan& plan, int request, int64_t block) {
  return plan.block_table[int64_t{request} * plan.max_blocks + block];
}

bool is_in_share(const Plan& plan, const IndexParams& params, int request, int64_t block) {
  return page_of(plan, request, block) % params.share.count == params.share.share;
}

// Rank of a block before scores count: 0 for a scored block, else higher is kept first. Local blocks outrank
// init blocks, and within each the nearest to the query goes first.
int64_t force_of(const Selection& selection, int64_t own, int64_t block) {
  constexpr int64_t kLocal = int64_t{1} << 40;
  if (block > own - selection.local_blocks) return kLocal + block;
  if (block < selection.init_blocks) return 1 + block;
  return 0;
}

}  // namespace

void block_scores(const Plan& plan, const IndexParams& params, int request, int row, int head,
                  float* scores) {
  const int64_t position = position_of(plan, request, row);
  const int64_t q_at = (int64_t{row} * params.heads.kv_heads + head) * kHeadDim;
  for (int64_t block = 0; block <= position / kBlock; ++block) {
    if (!is_in_share(plan, params, request, block)) continue;
    const int64_t page = page_of(plan, request, block) / params.share.count * kBlock;
    float best = -std::numeric_limits<float>::infinity();
    for (int64_t key = 0; key < kBlock && block * kBlock + key <= position; ++key) {
      const float score =
          static_cast<float>(dot(params.type, params.q, q_at, params.k_pages, (page + key) * kHeadDim));
      if (!std::isnan(score)) best = std::max(best, score);
    }
    scores[block] = best;
  }
}

void index_query(const Plan& plan, const IndexParams& params, int request, int row) {
  const Selection& selection = params.selection;
  const int64_t own = position_of(plan, request, row) / kBlock;
  std::vector<float> scores(own + 1);
  std::vector<int32_t> order(own + 1);
  for (int head = 0; head < params.heads.kv_heads; ++head) {
    block_scores(plan, params, request, row, head, scores.data());
    for (int64_t block = 0; block <= own; ++block) order[block] = static_cast<int32_t>(block);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      const int64_t force_a = force_of(selection, own, a), force_b = force_of(selection, own, b);
      if (force_a != force_b) return force_a > force_b;
      if (scores[a] != scores[b]) return scores[a] > scores[b];
      return a < b;
    });
    const int64_t at = (int64_t{row} * params.heads.kv_heads + head) * selection.top_k;
    if (params.candidates != nullptr) {
      const auto is_forced = [&](int32_t block) { return force_of(selection, own, block) > 0; };
      const bool is_decided =
          own < selection.top_k || std::ranges::count_if(order, is_forced) >= selection.top_k;
      std::erase_if(order, [&](int32_t block) {
        return is_decided || is_forced(block) || !is_in_share(plan, params, request, block);
      });
      for (size_t i = 0; i < static_cast<size_t>(selection.top_k); ++i)
        params.candidates[at + i] = i < order.size() ? Candidate{scores[order[i]], order[i]} : Candidate{};
      order.resize(own + 1);
      continue;
    }
    const int64_t count = std::min<int64_t>(selection.top_k, own + 1);
    std::sort(order.begin(), order.begin() + count);
    int32_t* out = params.selected + at;
    for (int64_t i = 0; i < selection.top_k; ++i) out[i] = i < count ? order[i] : -1;
  }
}

void attend_query(const Plan& plan, const AttendParams& params, int request, int row) {
  const int query_heads = params.heads.query_heads, kv_heads = params.heads.kv_heads;
  const int64_t position = position_of(plan, request, row);
  std::vector<int64_t> keys;  // element offset of each visible key's row; its value lies one tile further
  std::vector<double> weights;
  for (int head = 0; head < query_heads; ++head) {
    const int64_t kv_head = head / (query_heads / kv_heads);
    keys.clear();
    const auto add_block = [&](int64_t block) {
      const int64_t tile = (page_of(plan, request, block) * kv_heads + kv_head) * 2 * kBlock;
      for (int64_t key = 0; key < kBlock && block * kBlock + key <= position; ++key)
        keys.push_back((tile + key) * kHeadDim);
    };
    if (params.selected == nullptr) {
      for (int64_t block = 0; block <= position / kBlock; ++block) add_block(block);
    } else {
      const int32_t* ids = params.selected + (int64_t{row} * kv_heads + kv_head) * params.top_k;
      for (int i = 0; i < params.top_k && ids[i] >= 0; ++i) add_block(ids[i]);
    }
    const int64_t q_at = (int64_t{row} * query_heads + head) * kHeadDim;
    weights.resize(keys.size());
    double largest = -std::numeric_limits<double>::infinity(), total = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      weights[i] = dot(params.type, params.q, q_at, params.kv_pages, keys[i]) * double{params.scale};
      largest = std::max(largest, weights[i]);
    }
    for (double& weight : weights) total += weight = std::exp(weight - largest);
    for (int d = 0; d < kHeadDim; ++d) {
      double sum = 0;
      for (size_t i = 0; i < keys.size(); ++i)
        sum += weights[i] *
               double{element(params.type, params.kv_pages, keys[i] + int64_t{kBlock} * kHeadDim + d)};
      set_element(params.type, params.out, q_at + d, static_cast<float>(sum / total));
    }
  }
}

void index(const Plan& plan, const IndexParams& params) {
  for (int request = 0; request < plan.num_requests; ++request)
    for (int row = plan.cu_seqlens_q[request]; row < plan.cu_seqlens_q[request + 1]; ++row)
      index_query(plan, params, request, row);
}

}  // namespace msa::reference
