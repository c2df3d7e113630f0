// SPDX-License-Identifier: Apache-2.0
// The C interface over gpu::Plan: reads versioned structs, keeps each thread's last message, lets no
// exception out.
#include <algorithm>
#include <cstring>
#include <exception>
#include <new>

#include "msa/gpu.h"
#include "msa/sparrow_msa.h"

struct sparrow_msa_plan {
  std::unique_ptr<msa::gpu::Plan> plan;
};

namespace {

using namespace msa::gpu;

// The interface promises the message to the thread that made the call.
thread_local std::string last_error;

int finish(Status status) {
  if (!status.ok()) last_error = std::move(status.message);
  return static_cast<int>(status.code);
}

template <typename Call>
int guarded(const Call& call) {
  try {
    return finish(call());
  } catch (const std::bad_alloc&) {
    return SPARROW_MSA_MEMORY;
  } catch (const std::exception& e) {
    return finish({Code::kInvalid, e.what()});
  }
}

Status null_argument(const char* what) {
  return {Code::kInvalid, std::string(what) + " must not be null"};
}

// A caller built with a later header may pass more fields; they must be zero, for this library would ignore
// them.
template <typename T>
Status check_struct(const char* name, const T* given) {
  if (given == nullptr) return null_argument(name);
  const size_t bytes = given->struct_bytes;
  if (bytes < sizeof(T))
    return {Code::kInvalid, std::string(name) + ".struct_bytes must be at least " +
                                std::to_string(sizeof(T)) + ", got " + std::to_string(bytes)};
  const char* tail = reinterpret_cast<const char*>(given);
  if (std::any_of(tail + sizeof(T), tail + bytes, [](char c) { return c != 0; }))
    return {Code::kUnsupported, std::string(name) + " has fields that this library does not know"};
  return {};
}

Status read_type(const char* field, int32_t value, CacheType* type) {
  if (value != SPARROW_MSA_BF16 && value != SPARROW_MSA_E4M3)
    return {Code::kUnsupported,
            std::string(field) + " must be 0 (bf16) or 1 (e4m3), got " + std::to_string(value)};
  *type = value == SPARROW_MSA_BF16 ? CacheType::kBF16 : CacheType::kE4M3;
  return {};
}

Status read_config(const sparrow_msa_config* from, PlanConfig* to) {
  if (Status s = check_struct("config", from); !s.ok()) return s;
  const sparrow_msa_config& c = *from;
  if (Status s = read_type("kv_type", c.kv_type, &to->kv_type); !s.ok()) return s;
  if (Status s = read_type("index_type", c.index_type, &to->index_type); !s.ok()) return s;
  if (c.rotary_dim > 0 && c.inv_freq == nullptr) return null_argument("inv_freq");
  to->heads = {c.query_heads, c.kv_heads};
  to->selection = {c.top_k, c.local_blocks, c.init_blocks};
  to->max_requests = c.max_requests;
  to->max_queries = c.max_queries;
  to->max_blocks = c.max_blocks;
  to->rotary_dim = c.rotary_dim;
  if (c.rotary_dim > 0) to->inv_freq = {c.inv_freq, static_cast<size_t>(c.rotary_dim / 2)};
  to->attention_factor = c.attention_factor == 0 ? 1.0f : c.attention_factor;
  to->batch_invariant = c.batch_invariant != 0;
  return {};
}

Part read_part(const sparrow_msa_part& p) {
  return {.num_requests = p.num_requests,
          .total_queries = p.total_queries,
          .max_queries = p.max_queries,
          .cu_seqlens_q = p.cu_seqlens_q,
          .seq_lens = p.seq_lens,
          .block_table = p.block_table,
          .max_blocks = p.max_blocks};
}

Status read_store(const sparrow_msa_store_args* from, StoreArgs* to) {
  if (Status s = check_struct("args", from); !s.ok()) return s;
  const sparrow_msa_store_args& a = *from;
  const auto rows = [](const sparrow_msa_rows& r) { return StoreArgs::Rows{r.data, r.stride}; };
  *to = {.q = rows(a.q),
         .k = rows(a.k),
         .v = rows(a.v),
         .index_q = rows(a.index_q),
         .index_k = rows(a.index_k),
         .q_norm = a.q_norm,
         .k_norm = a.k_norm,
         .index_q_norm = a.index_q_norm,
         .index_k_norm = a.index_k_norm,
         .eps = a.eps,
         .slots = a.slots,
         .kv_scales = a.kv_scales,
         .q_out = a.q_out,
         .index_q_out = a.index_q_out,
         .kv_pages = a.kv_pages,
         .index_pages = a.index_pages};
  return {};
}

Status read_attend(const sparrow_msa_attend_args* from, AttendArgs* to) {
  if (Status s = check_struct("args", from); !s.ok()) return s;
  const sparrow_msa_attend_args& a = *from;
  *to = {.q = a.q,
         .kv_pages = a.kv_pages,
         .num_blocks = a.num_blocks,
         .kv_scales = a.kv_scales,
         .selected = a.selected,
         .out = a.out};
  if (a.scale != 0) to->scale = a.scale;
  return {};
}

cudaStream_t stream_of(void* stream) {
  return static_cast<cudaStream_t>(stream);
}

}  // namespace

extern "C" {

int sparrow_msa_abi_version(void) {
  return SPARROW_MSA_ABI_VERSION;
}

const char* sparrow_msa_last_error(void) {
  return last_error.c_str();
}

int sparrow_msa_workspace_bytes(const sparrow_msa_config* config, int64_t* bytes) {
  return guarded([&]() -> Status {
    PlanConfig c;
    if (Status s = read_config(config, &c); !s.ok()) return s;
    if (bytes == nullptr) return null_argument("bytes");
    return Plan::workspace_bytes(c, bytes);
  });
}

int sparrow_msa_plan_create(const sparrow_msa_config* config, sparrow_msa_plan** plan) {
  return guarded([&]() -> Status {
    PlanConfig c;
    if (Status s = read_config(config, &c); !s.ok()) return s;
    if (plan == nullptr) return null_argument("plan");
    auto made = std::make_unique<sparrow_msa_plan>();
    if (Status s = Plan::create(c, &made->plan); !s.ok()) return s;
    *plan = made.release();
    return {};
  });
}

int sparrow_msa_plan_destroy(sparrow_msa_plan* plan) {
  delete plan;
  return SPARROW_MSA_OK;
}

int sparrow_msa_prepare(sparrow_msa_plan* plan, const sparrow_msa_step* step, void* stream) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    if (Status s = check_struct("step", step); !s.ok()) return s;
    return plan->plan->prepare({read_part(step->decode), read_part(step->prefill), step->positions},
                               stream_of(stream));
  });
}

int sparrow_msa_store(sparrow_msa_plan* plan, const sparrow_msa_store_args* args, void* stream) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    StoreArgs a;
    if (Status s = read_store(args, &a); !s.ok()) return s;
    return plan->plan->store(a, stream_of(stream));
  });
}

int sparrow_msa_index(sparrow_msa_plan* plan, const sparrow_msa_index_args* args, void* stream) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    if (Status s = check_struct("args", args); !s.ok()) return s;
    const sparrow_msa_index_args& a = *args;
    return plan->plan->index({a.q, a.k_pages, a.num_blocks, a.selected}, stream_of(stream));
  });
}

int sparrow_msa_attend(sparrow_msa_plan* plan, const sparrow_msa_attend_args* args, void* stream) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    AttendArgs a;
    if (Status s = read_attend(args, &a); !s.ok()) return s;
    return plan->plan->attend(a, stream_of(stream));
  });
}

int sparrow_msa_dense(sparrow_msa_plan* plan, const sparrow_msa_attend_args* args, void* stream) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    AttendArgs a;
    if (Status s = read_attend(args, &a); !s.ok()) return s;
    return plan->plan->dense(a, stream_of(stream));
  });
}

int sparrow_msa_sparse(sparrow_msa_plan* plan, const sparrow_msa_sparse_args* args, void* stream) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    if (Status s = check_struct("args", args); !s.ok()) return s;
    SparseArgs a{.num_blocks = args->num_blocks, .selected = args->selected, .out = args->out};
    if (Status s = read_store(args->store, &a.store); !s.ok()) return s;
    if (args->scale != 0) a.scale = args->scale;
    return plan->plan->sparse(a, stream_of(stream));
  });
}

int sparrow_msa_describe(const sparrow_msa_plan* plan, char* text, size_t bytes) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    if (text == nullptr || bytes == 0) return null_argument("text");
    const std::string words = plan->plan->describe();
    const size_t length = std::min(bytes - 1, words.size());
    std::memcpy(text, words.data(), length);
    text[length] = 0;
    return {};
  });
}

}  // extern "C"
