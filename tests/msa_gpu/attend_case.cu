// SPDX-License-Identifier: Apache-2.0
#include "msa_gpu/attend_case.h"

#include <cuda_fp8.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

namespace msa::sm90 {
namespace {

constexpr int kRowsChecked = 48;
constexpr uint16_t kNan = 0x7fff;

uint16_t to_bf16(float x) {
  const __nv_bfloat16 value = __float2bfloat16_rn(x);
  uint16_t bits;
  std::memcpy(&bits, &value, 2);
  return bits;
}

std::vector<float> make_normals(std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> out(4096);
  for (float& x : out) x = normal(rng);
  return out;
}

// (request, row) pairs to compare.
std::vector<std::pair<int, int>> rows_to_check(const Case& c) {
  std::vector<std::pair<int, int>> all, rows;
  for (size_t r = 0; r + 1 < c.cu.size(); ++r)
    for (int row = c.cu[r]; row < c.cu[r + 1]; ++row)
      if (c.seq_lens[r] > 0) {
        all.push_back({static_cast<int>(r), row});
        if (row == c.cu[r] || row + 1 == c.cu[r + 1]) rows.push_back(all.back());
      }
  std::mt19937 rng(7);
  std::shuffle(all.begin(), all.end(), rng);
  for (size_t i = 0; i < all.size() && i < kRowsChecked; ++i) rows.push_back(all[i]);
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

size_t row_width(const Case& c) {
  return size_t(c.shape.kv_heads) * c.shape.group * 128;
}

}  // namespace

float from_bf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}

Case::Case(const Shape& s) : shape(s), rng_(s.seed), normals_(make_normals(rng_)) {
  cu.push_back(0);
  for (size_t r = 0; r < s.seq_lens.size(); ++r) {
    seq_lens.push_back(s.seq_lens[r]);
    cu.push_back(cu.back() + s.queries[r]);
    max_blocks = std::max(max_blocks, (s.seq_lens[r] + 127) / 128);
  }
  total = cu.back();
  max_blocks += s.spare_blocks;
  // Scales of four significant bits, as e4m3 has: their products are exact in bf16.
  const float values[] = {1.25f, 0.6875f, 0.8125f, 1.5f, 0.5625f, 2.0f, 1.125f, 0.9375f};
  if (s.scaled)
    for (int i = 0; i < 2 * s.kv_heads; ++i) kv_scales.push_back(values[i % 8]);
  make_pages();
  make_selection();
  q.resize(size_t(total) * row_width(*this));
  for (auto& x : q) x = to_bf16(2 * normal());
}

void Case::make_pages() {
  const int requests = static_cast<int>(seq_lens.size());
  int used = 0;
  for (int len : seq_lens) used += (len + 127) / 128;
  num_pages = used * 2 + 1;
  std::vector<int> order(num_pages);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), rng_);
  table.assign(size_t(requests) * max_blocks, -1);
  const size_t tile = 128 * 128, page = tile * 2 * shape.kv_heads;
  pages.assign(page * num_pages, kNan);
  pages8.assign(shape.fp8 ? pages.size() : 0, 0x7f);
  int next = 0;
  for (int r = 0; r < requests; ++r)
    for (int b = 0; b < (seq_lens[r] + 127) / 128; ++b) {
      const int id = order[next++];
      table[size_t(r) * max_blocks + b] = id;
      for (int kv = 0; kv < 2 * shape.kv_heads; ++kv)
        for (int key = 0; key < std::min(128, seq_lens[r] - b * 128); ++key)
          for (int d = 0; d < 128; ++d)
            set_element(id * page + kv * tile + key * 128 + d, normal(), shape.scaled ? kv_scales[kv] : 1);
    }
}

void Case::set_element(size_t at, float x, float scale) {
  if (shape.fp8) {
    const __nv_fp8_e4m3 small(x);
    std::memcpy(&pages8[at], &small, 1);
    x = static_cast<float>(small) * scale;
  }
  pages[at] = to_bf16(x);
}

void Case::make_selection() {
  const int k = shape.top_k;
  selected.assign(size_t(total) * shape.kv_heads * k, -1);
  for (size_t r = 0; r < seq_lens.size(); ++r)
    for (int head = 0; head < shape.kv_heads; ++head) {
      std::vector<int> order;
      for (int i = 0; i < shape.queries[r]; ++i) {
        const int position = seq_lens[r] - shape.queries[r] + i;
        if (position < 0) continue;
        const int own = position / 128;
        if (order.empty() || order.size() != size_t(own) || shape.pattern == Pattern::kIndependent) {
          order.resize(own);  // the blocks before the query's own, in order of preference
          std::iota(order.begin(), order.end(), 0);
          std::shuffle(order.begin(), order.end(), rng_);
        } else if (shape.pattern == Pattern::kCorrelated && own > 1) {
          std::swap(order[rng_() % own], order[rng_() % own]);
        }
        const int count = std::min(k, own + 1);
        int32_t* out = selected.data() + (size_t(cu[r] + i) * shape.kv_heads + head) * k;
        std::copy(order.begin(), order.begin() + (count - 1), out);
        out[count - 1] = own;
        std::sort(out, out + count);
      }
    }
}

// From a table: millions are drawn per case.
float Case::normal() {
  state_ = state_ * 6364136223846793005u + 1442695040888963407u;
  return normals_[state_ >> 52];
}

CaseOnDevice::CaseOnDevice(const Case& made)
    : c(made),
      q(c.q),
      pages(c.pages),
      pages8(c.pages8),
      kv_scales(c.kv_scales),
      selected(c.selected),
      table(c.table),
      seq_lens(c.seq_lens),
      cu(c.cu),
      out(c.q.size()) {
  out.poison();
}

double row_difference(const Case& c, const std::vector<uint16_t>& a, const std::vector<uint16_t>& b,
                      int row) {
  double error = 0, norm = 0;
  const size_t width = row_width(c);
  for (size_t i = row * width; i < (row + 1) * width; ++i) {
    const double x = from_bf16(a[i]), y = from_bf16(b[i]);
    error += (x - y) * (x - y), norm += y * y;
  }
  return std::sqrt(error / norm);
}

void expect_matches_reference(const Case& c, const std::vector<uint16_t>& got, double tolerance) {
  std::vector<uint16_t> want(c.q.size(), 0);
  AttendParams params;
  params.heads = {c.shape.kv_heads * c.shape.group, c.shape.kv_heads};
  params.top_k = c.shape.top_k;
  params.q = c.q.data(), params.kv_pages = c.pages.data(), params.selected = c.selected.data();
  params.out = want.data();
  const auto rows = rows_to_check(c);
  std::vector<std::thread> threads;
  constexpr size_t kThreads = 16;
  for (size_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (size_t i = t; i < rows.size(); i += kThreads)
        reference::attend_query(c.plan(), params, rows[i].first, rows[i].second);
    });
  for (auto& thread : threads) thread.join();
  const size_t width = row_width(c);
  for (size_t r = 0; r + 1 < c.cu.size(); ++r)
    for (size_t i = c.cu[r] * width; i < c.cu[r + 1] * width; ++i) {
      ASSERT_TRUE(std::isfinite(from_bf16(got[i]))) << "row " << i / width << " element " << i % width;
      if (c.seq_lens[r] == 0) ASSERT_EQ(0, got[i]) << "padding row " << i / width;
    }
  double worst = 0;
  for (const auto& [request, row] : rows) {
    const double difference = row_difference(c, got, want, row);
    ASSERT_LT(difference, tolerance) << "request " << request << " row " << row - c.cu[request] << " of "
                                     << c.shape.queries[request] << ", seq_len " << c.seq_lens[request];
    worst = std::max(worst, difference);
  }
  testing::Test::RecordProperty("worst", std::to_string(worst));
}

}  // namespace msa::sm90
