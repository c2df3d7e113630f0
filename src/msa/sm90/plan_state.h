// SPDX-License-Identifier: Apache-2.0
// What a plan holds, and the checks that its operations share.
#pragma once

#include <vector>

#include "msa/sm90/attend/attend_decode.h"
#include "msa/sm90/index/index.h"
#include "msa/sm90/plan.h"
#include "msa/sm90/store/store.h"
#include "sm90/tensor_map.h"

namespace msa::gpu {

inline hopper::Element element_of(CacheType type) {
  return type == CacheType::kBF16 ? hopper::Element::kBF16 : hopper::Element::kE4M3;
}

inline Status cuda_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  const Code code = error == cudaErrorMemoryAllocation ? Code::kMemory : Code::kCuda;
  return {code, std::string(what) + ": " + cudaGetErrorString(error)};
}

// The copy engine reads whole 16-byte lines.
inline Status check_pointer(const char* field, const void* pointer) {
  if (pointer == nullptr) return {Code::kInvalid, std::string(field) + " must not be null"};
  if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0)
    return {Code::kInvalid, std::string(field) + " must be aligned to 16 bytes"};
  return {};
}

// The copy engine counts the 128-byte lines or rows of all pages in 32 bits; a block has `tiles` times 128.
inline Status check_blocks(int64_t num_blocks, int tiles) {
  const int64_t most = INT32_MAX / (int64_t{tiles} * kBlock);
  if (num_blocks >= 1 && num_blocks <= most) return {};
  return {Code::kInvalid,
          "num_blocks must be in [1, " + std::to_string(most) + "], got " + std::to_string(num_blocks)};
}

struct Plan::State {
  PlanConfig config;
  std::vector<float> inv_freq;
  sm90::PlanLayout layout;
  Step step;
  char* workspace = nullptr;
  void* owned = nullptr;  // the same, where the plan allocated it
  int num_sms = 0;

  ~State() { cudaFree(owned); }

  int rows() const { return step.decode.total_queries + step.prefill.total_queries; }
  int group() const { return config.heads.query_heads / config.heads.kv_heads; }
  // Elements of one row.
  int64_t query_row() const { return int64_t{config.heads.query_heads} * kHeadDim; }
  int64_t index_row() const { return int64_t{index_heads()} * kHeadDim; }
  int index_heads() const { return step.shares_index ? config.index_heads : config.heads.kv_heads; }
  int64_t selected_row() const { return int64_t{config.heads.kv_heads} * config.selection.top_k; }

  sm90::IndexLaunch index_launch(const Part& part, bool is_prefill) const;
  Status check_index(const IndexArgs& args) const;
  Status check_store(const StoreArgs& args) const;
  Status check_attend(const AttendArgs& args) const;
  sm90::StoreParams store_params(const StoreArgs& args) const;
  sm90::AttendDecodeParams decode_params(const Part& part, const AttendArgs& args) const;
  sm90::KvType decode_type() const {
    return config.kv_type == CacheType::kBF16 ? sm90::KvType::kBF16 : sm90::KvType::kE4M3;
  }
  cudaError_t attend_prefill(const Part& part, const AttendArgs& args, cudaStream_t stream) const;
  cudaError_t attend_dense(const Part& part, const AttendArgs& args, cudaStream_t stream) const;
  // The rows of one part, the first of which is `row`.
  AttendArgs args_of_part(const AttendArgs& args, int64_t row) const;
};

}  // namespace msa::gpu
