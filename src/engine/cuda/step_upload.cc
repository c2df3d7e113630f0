// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/step_upload.h"

#include <algorithm>
#include <cstring>

#include "device/cuda/check.h"
#include "ops/cuda/rows.h"

namespace sparrow {

Result<StepUpload> StepUpload::create(int max_step_tokens, int max_step_sequences, int max_columns,
                                      int groups) {
  const StepUploadBytes bytes(max_step_tokens, max_step_sequences, max_columns, groups);
  StepUpload upload;
  upload.host_ = SPARROW_TRY(PinnedBuffer::allocate(bytes.metadata));
  upload.device_ = SPARROW_TRY(DeviceBuffer::allocate(bytes.metadata));
  upload.host_table_ = SPARROW_TRY(PinnedBuffer::allocate(bytes.table));
  upload.table_ = SPARROW_TRY(DeviceBuffer::allocate(bytes.table));
  SPARROW_CUDA(cudaMemset(upload.table_.data(), 0, bytes.table));
  return upload;
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
  for (const GroupShape& group : shape.groups) {
    batch.group_rows.push_back(group.rows);
    batch.group_logits.push_back(group.logits);
  }
  batch.step.positions = at(o.positions);
  batch.step.shares_index = shape.shares_index;
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

DeviceBatch StepUpload::upload(const Batch& batch, const StepShape& shape,
                               std::span<const RankStep::Group> groups, const int32_t* drawn,
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
  if (!batch.feature_rows.empty())
    fill(o.feature_rows, batch.feature_rows, shape.tokens(), ops::cuda::kNoFeature);
  fill(o.positions, batch.positions, shape.tokens(), 0);
  fill(o.slots, batch.slots, shape.tokens(), int64_t{-1});
  fill(o.seq_lens, batch.seq_lens, shape.sequences(), 0);
  SPARROW_CHECK_EQ(static_cast<int>(groups.size()), shape.num_groups());
  size_t logits_at = o.logit_rows;
  for (int g = 0; g < shape.num_groups(); ++g) {
    const RankStep::Group& group = groups[static_cast<size_t>(g)];
    fill(logits_at, group.logit_rows, shape.group(g).logits, 0);
    logits_at += sizeof(int32_t) * static_cast<size_t>(shape.group(g).logits);
    reinterpret_cast<int32_t*>(host + o.num_rows)[g] = group.rows;
  }
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
  DeviceBatch step = describe(shape);
  if (!batch.feature_rows.empty())
    step.feature_rows = reinterpret_cast<const int32_t*>(device_.data() + o.feature_rows);
  if (!batch.drawn_by.empty())
    ops::cuda::feed_ids({.sampled = drawn,
                         .source = reinterpret_cast<const int32_t*>(device_.data() + o.drawn_by),
                         .ids = reinterpret_cast<int32_t*>(device_.data() + o.ids),
                         .rows = shape.tokens()},
                        stream);
  return step;
}

}  // namespace sparrow
