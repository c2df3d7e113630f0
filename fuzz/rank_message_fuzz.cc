// SPDX-License-Identifier: Apache-2.0
// Any bytes as what ranks tell each other: a list of calls, each a kind, two bytes of length and a body, and
// a reply. Whatever is read must be within the model's bounds.
#include <cstdint>
#include <span>

#include "base/check.h"
#include "engine/ranks/messages.h"

namespace {

using namespace sparrow;

constexpr CallLimits kLimits = {.vocab_size = 1000,
                                .num_blocks = 64,
                                .num_groups = 2,
                                .max_step_tokens = 512,
                                .max_step_sequences = 16,
                                .feature_tokens = 32,
                                .patch_numbers = 3,
                                .merge_side = 2};

bool within(int64_t value, int64_t end) {
  return 0 <= value && value < end;
}

void check(const Batch& batch) {
  SPARROW_CHECK_LE(batch.num_tokens(), kLimits.max_step_tokens);
  SPARROW_CHECK_LE(batch.num_sequences(), kLimits.max_step_sequences);
  for (int row = 0; row < batch.num_tokens(); ++row) {
    SPARROW_CHECK(within(batch.ids[row], kLimits.vocab_size));
    SPARROW_CHECK(within(batch.slots[row], int64_t{kLimits.num_blocks} * kBlockTokens));
  }
  for (const int32_t row : batch.logit_rows) SPARROW_CHECK(within(row, batch.num_tokens()));
  for (const int32_t row : batch.feature_rows) SPARROW_CHECK(within(row + 1, kLimits.feature_tokens + 1));
  for (int group = 0; group < kLimits.num_groups; ++group)
    (void)group_part(batch, group, kLimits.num_blocks / kLimits.num_groups);
}

void check(const ReceivedCall& call) {
  if (call.call == Call::kRun) check(call.batch);
  if (call.call == Call::kStartDraws)
    for (const DrawRequest& draw : call.draws) SPARROW_CHECK(validate(draw.sample.params, 1000).ok());
  if (call.call == Call::kEncode)
    for (const EncodeJob& job : call.jobs) {
      for (const int32_t row : job.rows) SPARROW_CHECK(within(row, kLimits.feature_tokens));
      SPARROW_CHECK_EQ(job.grid.patches() * kLimits.patch_numbers, static_cast<int64_t>(job.patches.size()));
    }
  if (call.call == Call::kCopyBlocks)
    for (const BlockCopy& copy : call.copies)
      SPARROW_CHECK(within(copy.from, kLimits.num_blocks) && within(copy.to, kLimits.num_blocks));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::span<const std::byte> input = std::as_bytes(std::span(data, size));
  if (const auto reply = read_reply(input, kLimits.vocab_size); reply.ok())
    SPARROW_CHECK(read_reply(write_reply(reply.value()), kLimits.vocab_size).ok());
  CallReader reader(kLimits);
  while (input.size() >= 3) {
    const auto call = static_cast<Call>(input[0]);
    const size_t length = static_cast<size_t>(input[1]) | static_cast<size_t>(input[2]) << 8;
    input = input.subspan(3);
    const auto body = input.first(std::min(length, input.size()));
    input = input.subspan(body.size());
    const auto read = reader.read_body(call, body);
    if (!read.ok()) return 0;  // a rank ends there
    check(*read.value());
  }
  return 0;
}
