// SPDX-License-Identifier: Apache-2.0
// A whole step for the tests of plans: the attend kernels' random inputs with index queries and keys of small
// integers beside them, whose scores are exact, so that selections must be identical, ties included.
#pragma once

#include "msa/gpu.h"
#include "msa_gpu/attend_case.h"

#define ASSERT_OK(expression)                     \
  do {                                            \
    const msa::gpu::Status status = (expression); \
    ASSERT_TRUE(status.ok()) << status.message;   \
  } while (0)

namespace msa::sm90 {

struct PlanShape {
  int kv_heads = 1, group = 16, top_k = 16;
  bool kv_e4m3 = false, index_e4m3 = false, scaled = false;
  std::vector<int> decode_lens = {1, 127, 128, 0, 129, 2047, 2048, 2049, 5000};  // 0: a padding request
  int decode_queries = 1;
  std::vector<int> prefill_lens = {700, 2300, 129}, prefill_queries = {300, 40, 129};
  uint32_t seed = 1;
};

struct PlanCase {
  PlanShape shape;
  Case attend;                    // of decode's requests and then prefill's; its selection is the reference's
  std::vector<uint16_t> index_q;  // [rows, kv_heads, 128]
  std::vector<uint16_t> index_pages;  // [blocks, 128, 128]
  std::vector<uint8_t> index_pages8;  // the same as e4m3
  std::vector<int32_t> prefill_cu;    // from 0

  explicit PlanCase(const PlanShape& s);
  int decode_requests() const { return static_cast<int>(shape.decode_lens.size()); }
  int decode_rows() const { return decode_requests() * shape.decode_queries; }
  gpu::PlanConfig config() const;

 private:
  void select();
};

// A case on the device, and the arguments of its operations.
struct PlanRun : CaseOnDevice {
  const PlanCase& c;
  Device<uint16_t> index_q, index_pages;
  Device<uint8_t> index_pages8;
  Device<int32_t> prefill_cu, chosen;

  explicit PlanRun(const PlanCase& made);
  gpu::Step step() const;
  gpu::IndexArgs index_args() const;
  // Over what index() chose.
  gpu::AttendArgs attend_args() const;
  gpu::AttendArgs dense_args() const;
};

}  // namespace msa::sm90
