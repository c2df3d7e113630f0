// SPDX-License-Identifier: Apache-2.0
// A step's metadata on the device: a shape larger than the batch says which of its rows are padding.
#include "engine/cuda/step_upload.h"

#include <gtest/gtest.h>

#include <vector>

#include "device/cuda/check.h"

namespace sparrow {
namespace {

template <typename T>
std::vector<T> download(const T* data, int count) {
  std::vector<T> host(count);
  SPARROW_CUDA(cudaDeviceSynchronize());
  SPARROW_CUDA(cudaMemcpy(host.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
  return host;
}

Batch decodes(int count) {
  Batch batch;
  batch.cu_seqlens_q = {0};
  for (int i = 0; i < count; ++i) {
    batch.ids.push_back(100 + i), batch.positions.push_back(i), batch.slots.push_back(128 * i);
    batch.cu_seqlens_q.push_back(i + 1), batch.seq_lens.push_back(i + 1);
    batch.block_table.push_back(i), batch.logit_rows.push_back(i);
  }
  batch.max_blocks = 1;
  return batch;
}

TEST(StepUploadTest, SaysHowManyRowsAreThere) {
  const Stream stream;
  StepUpload upload = StepUpload::create(16, 8, 4).value();
  for (const int count : {3, 5, 1}) {
    const Batch batch = decodes(count);
    StepShape shape = shape_of(batch);
    EXPECT_EQ(shape.decodes, count);
    shape.decodes = shape.logits = 5;
    // A graph is captured with what describe() says and must find every later step there.
    const DeviceBatch described = upload.describe(shape);
    const std::vector<RankStep::Group> groups = {{count, batch.logit_rows}};
    const DeviceBatch step = upload.upload(batch, shape, groups, nullptr, stream.get());
    EXPECT_EQ(step.num_tokens, 5);
    EXPECT_EQ(described.num_rows, step.num_rows);
    EXPECT_EQ(download(step.num_rows, 1), (std::vector<int32_t>{count}));
    const std::vector<int64_t> slots = download(step.slots, 5);
    const std::vector<int32_t> ids = download(step.ids, 5);
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(slots[i], i < count ? 128 * i : -1);
      EXPECT_EQ(ids[i], i < count ? 100 + i : 0);
    }
  }
}

}  // namespace
}  // namespace sparrow
