// SPDX-License-Identifier: Apache-2.0
// index() and attend(): the only place where an instruction set is chosen.
#include "msa/cpu/kernels.h"
#include "msa/cpu/parallel.h"
#include "msa/msa.h"
#include "msa/reference.h"

namespace msa {
namespace {

const Kernels* kernels_of(Isa isa, Type type) {
  switch (isa) {
    case Isa::kScalar:
      return nullptr;
    case Isa::kAvx2:
      return &avx2_kernels(type);
    case Isa::kAvx512:
      return &avx512_kernels(type);
    case Isa::kAvx512Bf16:
      return type == Type::kBF16 ? &avx512bf16_kernels() : &avx512_kernels(type);
    case Isa::kAmx:
      return type == Type::kBF16 ? &amx_kernels() : &avx512_kernels(type);
  }
  return nullptr;
}

// Runs body(request, row) for every query.
template <typename F>
void each_query(const Plan& plan, const Workers& workers, F&& body) {
  parallel_for(workers, plan.total_queries(), [&](int64_t row, int) {
    int request = 0;
    while (row >= plan.cu_seqlens_q[request + 1]) ++request;
    body(request, static_cast<int>(row));
  });
}

}  // namespace

int64_t index_workspace_bytes(const Plan& plan, const IndexParams& params, Isa isa, const Workers& workers) {
  return isa == Isa::kScalar ? 0 : index_bytes(plan, params, workers);
}

int64_t attend_workspace_bytes(const Plan& plan, const AttendParams& params, Isa isa,
                               const Workers& workers) {
  return isa == Isa::kScalar ? 0 : attend_bytes(plan, params, workers);
}

void index(const Plan& plan, const IndexParams& params, Isa isa, const Workers& workers, void* workspace) {
  if (const Kernels* kernels = kernels_of(isa, params.type))
    return run_index(plan, params, *kernels, workers, workspace);
  each_query(plan, workers,
             [&](int request, int row) { reference::index_query(plan, params, request, row); });
}

void attend(const Plan& plan, const AttendParams& params, Isa isa, const Workers& workers, void* workspace) {
  if (const Kernels* kernels = kernels_of(isa, params.type))
    return run_attend(plan, params, *kernels, workers, workspace);
  each_query(plan, workers,
             [&](int request, int row) { reference::attend_query(plan, params, request, row); });
}

}  // namespace msa
