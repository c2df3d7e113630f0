/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface of libsparrow_msa: MiniMax-M3's block-sparse attention on Hopper GPUs, for any serving
 * stack. Plain C, no dependency; gpu.h is the same in C++ and docs/msa-library.md shows both in use.
 *
 * A plan owns a workspace for stated maxima. prepare() takes the metadata of a step, the operations then run
 * for each layer; none of them allocates, synchronises or reads back, and all can be captured in CUDA graphs.
 * Pointers are device memory of the caller unless a comment says "host"; tensors are contiguous unless they
 * have a stride and are aligned to 16 bytes. `stream` is a cudaStream_t. One plan serves one stream at a
 * time, on the device that was current when it was made. Metadata and the pages of earlier steps must not be
 * written by a kernel that lets its successor start early.
 *
 * Every function returns a status. The message of the last one that was not 0 is kept for each thread.
 * Every struct begins with its size: fill the struct with zeros, set struct_bytes = sizeof, then the fields.
 */
#ifndef SPARROW_MSA_H_
#define SPARROW_MSA_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPARROW_MSA_ABI_VERSION 1
#define SPARROW_MSA_BLOCK 128    /* tokens of a block: the unit of selection and of paging */
#define SPARROW_MSA_HEAD_DIM 128 /* channels of every head */

enum {
  SPARROW_MSA_OK = 0,
  SPARROW_MSA_INVALID = 1,     /* an argument contradicts itself or the plan */
  SPARROW_MSA_UNSUPPORTED = 2, /* a shape or type that no kernel computes */
  SPARROW_MSA_CAPACITY = 3,    /* a step larger than the plan's maxima */
  SPARROW_MSA_MEMORY = 4,
  SPARROW_MSA_CUDA = 5
};

enum { SPARROW_MSA_BF16 = 0, SPARROW_MSA_E4M3 = 1 };

typedef struct sparrow_msa_plan sparrow_msa_plan;

typedef struct {
  size_t struct_bytes;
  int32_t query_heads, kv_heads;     /* of this rank: 1, 2 or 4 KV heads, 4, 8 or 16 query heads for each */
  int32_t top_k;                     /* 1 to 16 blocks, the forced ones included */
  int32_t local_blocks;              /* forced, ending at the query's own */
  int32_t init_blocks;               /* forced, at the start of the sequence */
  int32_t kv_type, index_type;       /* SPARROW_MSA_BF16 or SPARROW_MSA_E4M3 */
  int32_t max_requests, max_queries; /* of a step, both parts together */
  int32_t max_blocks;                /* columns of a block table: the longest context */
  int32_t rotary_dim;                /* 16, 32, 64 or 128; 0: no store() */
  float attention_factor;            /* multiplies cos and sin; 0 counts as 1 */
  const float* inv_freq;             /* host: [rotary_dim / 2], copied */
  int32_t batch_invariant;           /* not 0: a query's bits do not depend on the rest of the step; slower */
} sparrow_msa_config;

/* Requests that are computed alike. Query i of request r stands at seq_lens[r] - (queries of r) + i. */
typedef struct {
  int32_t num_requests;
  int32_t total_queries;       /* rows; those past cu_seqlens_q[num_requests] are padding */
  int32_t max_queries;         /* of one request */
  int32_t max_blocks;          /* columns of block_table */
  const int32_t* cu_seqlens_q; /* [num_requests + 1] first row of each request */
  const int32_t* seq_lens;     /* [num_requests] keys, this step's included; 0: a padding request */
  const int32_t* block_table;  /* [num_requests, max_blocks] physical block of each logical block */
} sparrow_msa_part;

/* Rows of tensors: those of `decode` first. A part of zeros is empty. */
typedef struct {
  size_t struct_bytes;
  sparrow_msa_part decode;  /* max_queries (1 to 16) for every request; cu_seqlens_q is NULL */
  sparrow_msa_part prefill; /* ragged: cu_seqlens_q is given */
  const int32_t* positions; /* [rows] of each token; store() needs them */
} sparrow_msa_step;

typedef struct {
  const void* data; /* bf16 */
  int64_t stride;   /* elements from row to row, a multiple of 8 */
} sparrow_msa_rows;

typedef struct {
  size_t struct_bytes;
  sparrow_msa_rows q;    /* [rows, query_heads, 128] as projected */
  sparrow_msa_rows k, v; /* [rows, kv_heads, 128] */
  sparrow_msa_rows
      index_q; /* [rows, kv_heads, 128]; data NULL: a dense layer, as are the other index fields */
  sparrow_msa_rows index_k; /* [rows, 128] */
  const void *q_norm, *k_norm, *index_q_norm,
      *index_k_norm;      /* [128] bf16: x * rsqrt(mean(x^2) + eps) * (1 + w) */
  const int64_t* slots;   /* [rows] block * 128 + offset; -1: a padding row, nothing is written */
  const float* kv_scales; /* [kv_heads, 2 (K, V)]: e4m3 pages hold x / scale; NULL: 1 */
  void* q_out;            /* [rows, query_heads, 128] bf16; may be q.data where its rows are contiguous */
  void* index_q_out;      /* [rows, kv_heads, 128] bf16 */
  void* kv_pages;         /* [blocks, kv_heads, 2 (K, V), 128, 128] kv_type */
  void* index_pages;      /* [blocks, 128, 128] index_type */
  float eps;
} sparrow_msa_store_args;

typedef struct {
  size_t struct_bytes;
  const void* q;       /* [rows, kv_heads, 128] bf16 */
  const void* k_pages; /* [num_blocks, 128, 128] index_type */
  int64_t num_blocks;
  int32_t* selected; /* [rows, kv_heads, top_k] out: logical blocks, ascending, -1 at the tail */
} sparrow_msa_index_args;

typedef struct {
  size_t struct_bytes;
  const void* q;        /* [rows, query_heads, 128] bf16 */
  const void* kv_pages; /* [num_blocks, kv_heads, 2 (K, V), 128, 128] kv_type */
  int64_t num_blocks;
  const float* kv_scales;  /* [kv_heads, 2 (K, V)]; NULL: 1 */
  const int32_t* selected; /* [rows, kv_heads, top_k]; NULL for dense() */
  void* out;               /* [rows, query_heads, 128] bf16; zeros for padding rows */
  float scale;             /* of the softmax; 0: 128^-0.5 */
} sparrow_msa_attend_args;

/* store(), index() and attend() of a layer, over what `store` writes; fewer launches in small steps. */
typedef struct {
  size_t struct_bytes;
  const sparrow_msa_store_args* store; /* host */
  int64_t num_blocks;
  int32_t* selected; /* [rows, kv_heads, top_k] out, as index() leaves it */
  void* out;         /* [rows, query_heads, 128] bf16, as attend() leaves it */
  float scale;       /* of the softmax; 0: 128^-0.5 */
} sparrow_msa_sparse_args;

int sparrow_msa_abi_version(void);
const char* sparrow_msa_last_error(void); /* of this thread; never NULL */

int sparrow_msa_workspace_bytes(const sparrow_msa_config* config, int64_t* bytes);
int sparrow_msa_plan_create(const sparrow_msa_config* config, sparrow_msa_plan** plan);
int sparrow_msa_plan_destroy(
    sparrow_msa_plan* plan); /* NULL is fine; the stream must be done with the plan */

int sparrow_msa_prepare(sparrow_msa_plan* plan, const sparrow_msa_step* step, void* stream);
int sparrow_msa_store(sparrow_msa_plan* plan, const sparrow_msa_store_args* args, void* stream);
int sparrow_msa_index(sparrow_msa_plan* plan, const sparrow_msa_index_args* args, void* stream);
int sparrow_msa_attend(sparrow_msa_plan* plan, const sparrow_msa_attend_args* args, void* stream);
int sparrow_msa_dense(sparrow_msa_plan* plan, const sparrow_msa_attend_args* args, void* stream);
int sparrow_msa_sparse(sparrow_msa_plan* plan, const sparrow_msa_sparse_args* args, void* stream);

/* Which kernels serve the step that was prepared last, in words, cut to `bytes` with the final zero. */
int sparrow_msa_describe(const sparrow_msa_plan* plan, char* text, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif /* SPARROW_MSA_H_ */
