// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/step_upload.h"

#include <algorithm>
#include <cstring>

#include "device/cuda/check.h"
#include "ops/cuda/rows.h"

namespace sparrow {

Result<StepUpload> StepUpload::create(int max_step_tokens, int max_step_sequences, int max_columns) {
  const StepUploadBytes bytes(max_step_tokens, max_step_sequences, max_columns);
  StepUpload upload;
  upload.host_ = SPARROW_TRY(PinnedBuffer::allocate(bytes.metadata));
  upload.device_ = SPARROW_TRY(DeviceBuffer::allocate(bytes.metadata));
  upload.host_table_ = SPARROW_TRY(PinnedBuffer::allocate(bytes.table));
  upload.table_ = SPARROW_TRY(DeviceBuffer::allocate(bytes.table));
  SPARROW_CUDA(cudaMemset(upload.table_.data(), 0, bytes.table));
  return upload;
}

StepShape StepUpload::shape_of(const Batch& batch) {
  StepShape shape{.table_columns = std::max(batch.max_blocks, 1),
                  .logits = static_cast<int>(batch.logit_rows.size())};
  const int sequences = batch.num_sequences();
  const auto length = [&](int s) { return batch.cu_seqlens_q[s + 1] - batch.cu_seqlens_q[s]; };
  while (shape.decodes < sequences && length(shape.decodes) == 1) ++shape.decodes;
  shape.prefills = sequences - shape.decodes;
  shape.prefill_tokens = batch.num_tokens() - shape.decodes;
  for (int s = shape.decodes; s < sequences; ++s)
    shape.longest_prefill = std::max(shape.longest_prefill, length(s));
  return shape;
}

DeviceBatch StepUpload::describe(const StepShape& shape) const {
  const StepLayout o(shape);
  const auto at = [&](size_t offset) { return reinterpret_cast<int32_t*>(device_.data() + offset); };
  DeviceBatch batch{.num_tokens = shape.tokens(),
                    .num_rows = at(o.num_rows),
                    .ids = at(o.ids),
                    .slots = reinterpret_cast<int64_t*>(device_.data() + o.slots),
                    .logit_rows = at(o.logit_rows),
                    .num_logits = shape.logits};
  batch.step.positions = at(o.positions);
  if (shape.decodes > 0)
    batch.step.decode = {.num_requests = shape.decodes,
                         .total_queries = shape.decodes,
                         .max_queries = 1,
                         .seq_lens = at(o.seq_lens),
                         .block_table = table_.as<int32_t>(),
                         .max_blocks = shape.table_columns};
  if (shape.prefills > 0)
    batch.step.prefill = {.num_requests = shape.prefills,
                          .total_queries = shape.prefill_tokens,
                          .max_queries = shape.longest_prefill,
                          .cu_seqlens_q = at(o.cu_seqlens),
                          .seq_lens = at(o.seq_lens) + shape.decodes,
                          .block_table = table_.as<int32_t>() + int64_t{shape.decodes} * shape.table_columns,
                          .max_blocks = shape.table_columns};
  return batch;
}

DeviceBatch StepUpload::upload(const Batch& batch, const StepShape& shape, const int32_t* drawn,
                               cudaStream_t stream) {
  SPARROW_CHECK(shape.prefills == 0 || shape.decodes + shape.prefills == batch.num_sequences());
  copied_.wait();  // the last step's copies read the same host memory
  const StepLayout o(shape);
  SPARROW_CHECK_LE(o.bytes, host_.bytes());
  std::byte* host = host_.data();
  const auto fill = [&]<typename T>(size_t offset, const std::vector<T>& values, int count, T padding) {
    T* to = reinterpret_cast<T*>(host + offset);
    std::copy(values.begin(), values.end(), to);
    std::fill(to + values.size(), to + count, padding);
  };
  fill(o.ids, batch.ids, shape.tokens(), 0);
  fill(o.drawn_by, batch.drawn_by, shape.tokens(), -1);
  fill(o.positions, batch.positions, shape.tokens(), 0);
  fill(o.slots, batch.slots, shape.tokens(), int64_t{-1});
  fill(o.seq_lens, batch.seq_lens, shape.sequences(), 0);
  fill(o.logit_rows, batch.logit_rows, shape.logits, 0);
  *reinterpret_cast<int32_t*>(host + o.num_rows) = batch.num_tokens();
  auto* cu_seqlens = reinterpret_cast<int32_t*>(host + o.cu_seqlens);
  for (int s = 0; s <= shape.prefills && shape.prefills > 0; ++s)
    cu_seqlens[s] = batch.cu_seqlens_q[shape.decodes + s] - shape.decodes;
  SPARROW_CUDA(cudaMemcpyAsync(device_.data(), host, o.bytes, cudaMemcpyHostToDevice, stream));

  const size_t row = sizeof(int32_t) * batch.max_blocks;
  if (row > 0) {
    std::memcpy(host_table_.data(), batch.block_table.data(), row * batch.num_sequences());
    SPARROW_CUDA(cudaMemcpy2DAsync(table_.data(), sizeof(int32_t) * shape.table_columns, host_table_.data(),
                                   row, row, batch.num_sequences(), cudaMemcpyHostToDevice, stream));
  }
  copied_.record(stream);
  const DeviceBatch step = describe(shape);
  if (!batch.drawn_by.empty())
    ops::cuda::feed_ids({.sampled = drawn,
                         .source = reinterpret_cast<const int32_t*>(device_.data() + o.drawn_by),
                         .ids = reinterpret_cast<int32_t*>(device_.data() + o.ids),
                         .rows = shape.tokens()},
                        stream);
  return step;
}

}  // namespace sparrow
