// SPDX-License-Identifier: Apache-2.0
// PeerBed: ranks that exchange rows, all in this process and on one GPU.
#pragma once

#include <cuda_bf16.h>

#include <memory>
#include <vector>

#include "base/check.h"
#include "comm/cuda/peer_memory.h"
#include "cuda/comm/peer_rows.h"
#include "cuda/device_array.h"
#include "device/arena.h"
#include "ops/cuda/comm/exchange.h"

namespace sparrow::test {

using ops::cuda::ExchangeArgs;
using ops::cuda::Peers;

// Where things lie in a rank's memory.
struct PeerBedLayout {
  std::byte *words, *mailbox, *partial, *out;
  float* logits;
  int32_t* ids;

  PeerBedLayout(Arena& arena, int hidden, int rows) {
    words = arena.take<std::byte>(sizeof(ops::cuda::PeerWords));
    mailbox = arena.take<std::byte>(ops::cuda::mailbox_bytes(hidden, sizeof(float)));
    partial = arena.take<std::byte>(int64_t{rows} * hidden * sizeof(float));
    out = arena.take<std::byte>(int64_t{rows} * hidden * sizeof(Bf16));
    logits = arena.take<float>(int64_t{rows} * 1000);
    ids = arena.take<int32_t>(rows);
  }
  static size_t bytes(int hidden, int rows) {
    Arena counted;
    PeerBedLayout(counted, hidden, rows);
    return round_up(counted.used(), PeerMemory::kPage);
  }
};

// One rank of it.
class PeerBedRank {
 public:
  static constexpr float kEps = 1e-6f;

  PeerBedRank(std::unique_ptr<PeerMemory>& memory, int hidden, int max_rows)
      : memory_(memory), hidden_(hidden), residual(size_t(max_rows) * hidden), weight(hidden) {
    const PeerBedLayout at = layout();
    SPARROW_CUDA(cudaMemset(at.mailbox, 0xff, ops::cuda::mailbox_bytes(hidden, sizeof(float))));
    SPARROW_CUDA(cudaDeviceSynchronize());
  }

  PeerBedLayout layout() const {
    Arena arena(memory_->of(memory_->rank()));
    return {arena, hidden_, int(residual.size() / hidden_)};
  }
  Peers peers(uint64_t patience_ns = 10'000'000'000) const {
    Peers p{.memory = {},
            .mailbox = layout().mailbox,
            .rank = memory_->rank(),
            .size = memory_->size(),
            .patience_ns = patience_ns,
            .report = memory_->report(),
            .shared_gpu = true};
    for (int r = 0; r < p.size; ++r) p.memory[r] = memory_->of(r);
    return p;
  }
  void upload(const Rows& rows, bool f32) {
    const auto& mine = rows.partial[memory_->rank()];
    const auto copy = [](void* to, const auto& from) {
      SPARROW_CUDA(cudaMemcpy(to, from.data(), from.size() * sizeof(from[0]), cudaMemcpyHostToDevice));
    };
    f32 ? copy(layout().partial, mine) : copy(layout().partial, as_bf16(mine));
    copy(residual.data(), as_bf16(rows.residual));
    copy(weight.data(), as_bf16(rows.weight));
    SPARROW_CUDA(cudaMemset(layout().out, 0xff, size_t(rows.rows) * hidden_ * sizeof(Bf16)));
  }
  ExchangeArgs args(int rows, bool f32, bool many, bool with_residual = true) const {
    return {.peers = peers(),
            .groups = ops::cuda::one_group(memory_->size(), rows),
            .partial = layout().partial,
            .residual = with_residual ? residual.data() : nullptr,
            .residual_out = residual.data(),
            .weight = weight.data(),
            .out = reinterpret_cast<Bf16*>(layout().out),
            .rows = rows,
            .hidden = hidden_,
            .eps = kEps,
            .f32_partials = f32,
            .many = many};
  }
  std::vector<BFloat16> download(const void* from, size_t count) const {
    std::vector<BFloat16> values(count);
    SPARROW_CUDA(cudaDeviceSynchronize());
    SPARROW_CUDA(cudaMemcpy(values.data(), from, count * 2, cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  std::unique_ptr<PeerMemory>& memory_;
  const int hidden_;

 public:
  DeviceArray<Bf16> residual, weight;
};

// All of them in this process, on one GPU.
struct PeerBed {
  std::vector<std::unique_ptr<PeerMemory>> memory;
  std::vector<std::unique_ptr<PeerBedRank>> ranks;

  PeerBed(int size, int hidden, int max_rows) {
    for (int r = 0; r < size; ++r)
      memory.push_back(PeerMemory::create(r, size, PeerBedLayout::bytes(hidden, max_rows)).value());
    std::vector<Bytes> handles;
    for (const auto& m : memory) handles.push_back(m->handle().value());
    for (const auto& m : memory) m->open(handles).value();
    for (int r = 0; r < size; ++r)
      ranks.push_back(std::make_unique<PeerBedRank>(memory[r], hidden, max_rows));
  }
};

}  // namespace sparrow::test
