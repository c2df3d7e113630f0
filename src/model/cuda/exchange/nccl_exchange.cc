// SPDX-License-Identifier: Apache-2.0
// The exchange of ranks that are on several nodes, or that cannot open each other's memory.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "device/cuda/check.h"
#include "device/cuda/memory.h"
#include "model/cuda/exchange/rank_exchange.h"
#include "model/cuda/exchange/row_kernels.h"

namespace sparrow {
namespace {

Bytes gpu_of_this_thread() {
  int device = 0;
  cudaDeviceProp properties{};
  SPARROW_CUDA(cudaGetDevice(&device));
  SPARROW_CUDA(cudaGetDeviceProperties(&properties, device));
  const auto* const uuid = reinterpret_cast<const std::byte*>(&properties.uuid);
  return {uuid, uuid + sizeof(properties.uuid)};
}

class NcclExchange final : public RankExchange {
 public:
  NcclExchange(const ModelConfig& config, const NcclShape& shape, DeviceBuffer memory,
               std::unique_ptr<NcclRanks> ranks, cudaStream_t stream)
      : RankExchange(shape.grid),
        memory_(std::move(memory)),
        ranks_(std::move(ranks)),
        stream_(stream),
        kernels_(config.hidden_size, config.rms_norm_eps, stream) {
    Arena arena(memory_.data());
    buffers_ = ops::cuda::lay_out_peers<__nv_bfloat16>(arena, shape.peers);
    const NcclBuffers messages = lay_out_nccl(arena, shape);
    if (ranks_)
      rows_.emplace(shape, *ranks_, kernels_, messages,
                    NcclRows::Places{.partial = buffers_.partial(),
                                     .normed = buffers_.normed,
                                     .logits = buffers_.logits,
                                     .ids = buffers_.ids,
                                     .lists = buffers_.lists});
    SPARROW_CUDA(cudaMemset(memory_.data(), 0, memory_.bytes()));
    SPARROW_CUDA(cudaDeviceSynchronize());
  }

  Status meet(const Everybody& everybody) override;
  bool is_group() const override { return has_met_; }
  int ranks_on_gpu() const override { return ranks_on_gpu_; }
  std::optional<Error> failure() const override { return ranks_ ? ranks_->failure() : std::nullopt; }
  size_t device_bytes() const override { return memory_.bytes(); }
  std::string warning() const override {
    return ranks_ ? strf("ranks exchange over NCCL {}: run with ranks that share a GPU, never on several yet",
                         ranks_->version())
                  : "";
  }

  bool is_many(std::span<const int> step_rows) const override { return rows_->is_many(step_rows); }
  void add_norm(const Norm& norm, cudaStream_t stream, const Mark& mark) override {
    begin(stream, mark);
    rows_->add_norm({.sum = norm.sum,
                     .step_rows = norm.step_rows,
                     .residual = norm.residual,
                     .residual_out = norm.residual_out,
                     .weight = norm.weight,
                     .rows_wanted = norm.rows_wanted,
                     .rows = norm.rows});
  }
  void collect_logits(const float* mine, int rows, int cols, cudaStream_t stream, const Mark& mark) override {
    begin(stream, mark);
    rows_->collect_logits(mine, rows, cols);
  }
  void exchange_lists(const uint64_t* mine, int rows, cudaStream_t stream, const Mark& mark) override {
    begin(stream, mark);
    rows_->exchange_lists(mine, rows);
  }
  void hand_out_ids(const int32_t* ids, int count, cudaStream_t stream) override {
    begin(stream, {});
    rows_->hand_out_ids(ids, count);
  }

 private:
  void begin(cudaStream_t stream, const Mark& mark) const {
    SPARROW_CHECK(stream == stream_);  // NCCL's
    if (mark) mark(true);
  }

  DeviceBuffer memory_;
  const std::unique_ptr<NcclRanks> ranks_;
  const cudaStream_t stream_;
  CudaRowKernels kernels_;
  std::optional<NcclRows> rows_;
  int ranks_on_gpu_ = 1;
  bool has_met_ = false;
};

Status NcclExchange::meet(const Everybody& everybody) {
  SPARROW_CHECK(ranks_ != nullptr);
  const Bytes mine = gpu_of_this_thread();
  const std::vector<Bytes> gpus = SPARROW_TRY(everybody(mine));
  ranks_on_gpu_ = static_cast<int>(std::count(gpus.begin(), gpus.end(), mine));
  // So NCCL has the memory of its connections before the cache takes the rest, and no capture meets one that
  // is not made yet.
  rows_->connect();
  SPARROW_CUDA(cudaStreamSynchronize(stream_));
  if (std::optional<Error> failed = failure()) return *std::move(failed);
  has_met_ = true;
  return Ok{};
}

}  // namespace

Result<std::unique_ptr<RankExchange>> create_nccl_exchange(const ModelConfig& config,
                                                           const GpuStepLimits& limits, const Grid& grid,
                                                           std::unique_ptr<NcclRanks> ranks,
                                                           cudaStream_t stream) {
  const NcclShape shape = nccl_shape(config, grid, limits);
  DeviceBuffer memory =
      SPARROW_TRY(DeviceBuffer::allocate(static_cast<size_t>(exchanged_bytes(shape) + nccl_bytes(shape))));
  return std::unique_ptr<RankExchange>(
      std::make_unique<NcclExchange>(config, shape, std::move(memory), std::move(ranks), stream));
}

}  // namespace sparrow
