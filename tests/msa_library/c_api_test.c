/* SPDX-License-Identifier: Apache-2.0 */
/* A C program that loads libsparrow_msa.so as another serving stack would. It needs no GPU: what it checks is
 * refused before a device is asked for, or because there is none. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "msa/sparrow_msa.h"

static int failures = 0;

static void expect(int ok, const char* what) {
  if (ok) return;
  ++failures;
  fprintf(stderr, "failed: %s\n", what);
}

static void* symbol(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (found) return found;
  fprintf(stderr, "failed: no symbol %s\n", name);
  exit(1);
}

typedef int (*version_function)(void);
typedef const char* (*error_function)(void);
typedef int (*bytes_function)(const sparrow_msa_config*, int64_t*);
typedef int (*create_function)(const sparrow_msa_config*, sparrow_msa_plan**);
typedef int (*destroy_function)(sparrow_msa_plan*);
typedef int (*prepare_function)(sparrow_msa_plan*, const sparrow_msa_step*, void*);

static sparrow_msa_config good_config(void) {
  sparrow_msa_config c;
  memset(&c, 0, sizeof(c));
  c.struct_bytes = sizeof(c);
  c.query_heads = 16;
  c.kv_heads = 1;
  c.top_k = 16;
  c.local_blocks = 1;
  c.max_requests = 8;
  c.max_queries = 1024;
  c.max_blocks = 64;
  return c;
}

/* A config of a later library: this one's fields, and more. */
typedef struct {
  sparrow_msa_config known;
  int64_t later;
} longer_config;

int main(int argc, char** argv) {
  if (argc != 2) return fprintf(stderr, "usage: c_api_test LIBRARY\n"), 2;
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
  version_function version = (version_function)symbol(library, "sparrow_msa_abi_version");
  error_function last_error = (error_function)symbol(library, "sparrow_msa_last_error");
  bytes_function bytes = (bytes_function)symbol(library, "sparrow_msa_workspace_bytes");
  create_function create = (create_function)symbol(library, "sparrow_msa_plan_create");
  destroy_function destroy = (destroy_function)symbol(library, "sparrow_msa_plan_destroy");
  prepare_function prepare = (prepare_function)symbol(library, "sparrow_msa_prepare");

  expect(version() == SPARROW_MSA_ABI_VERSION, "the library has the header's version");
  expect(strcmp(last_error(), "") == 0, "no message before the first failure");
  expect(destroy(NULL) == SPARROW_MSA_OK, "NULL can be destroyed");

  sparrow_msa_plan* plan = NULL;
  sparrow_msa_config c = good_config();
  c.query_heads = 12;
  expect(create(&c, &plan) == SPARROW_MSA_UNSUPPORTED, "12 query heads are refused");
  expect(strcmp(last_error(), "heads.query_heads must be 4, 8 or 16 times kv_heads (1), got 12") == 0,
         "the message names field and value");
  c = good_config();
  c.kv_type = 2;
  expect(create(&c, &plan) == SPARROW_MSA_UNSUPPORTED, "type 2 is refused");
  expect(strcmp(last_error(), "kv_type must be 0 (bf16) or 1 (e4m3), got 2") == 0, "kv_type is named");
  c = good_config();
  c.struct_bytes = 8;
  expect(create(&c, &plan) == SPARROW_MSA_INVALID, "a short struct is refused");
  expect(strstr(last_error(), "config.struct_bytes") != NULL, "struct_bytes is named");
  c = good_config();
  c.rotary_dim = 64;
  expect(create(&c, &plan) == SPARROW_MSA_INVALID, "rotary without frequencies is refused");
  expect(strcmp(last_error(), "inv_freq must not be null") == 0, "inv_freq is named");
  expect(create(NULL, &plan) == SPARROW_MSA_INVALID, "no config");
  expect(prepare(NULL, NULL, NULL) == SPARROW_MSA_INVALID, "no plan");
  expect(strcmp(last_error(), "plan must not be null") == 0, "plan is named");

  longer_config longer;
  memset(&longer, 0, sizeof(longer));
  longer.known = good_config();
  longer.known.struct_bytes = sizeof(longer);
  longer.later = 1;
  int64_t needed = 0;
  expect(bytes(&longer.known, &needed) == SPARROW_MSA_UNSUPPORTED, "an unknown field that is set is refused");
  longer.later = 0;
  const int status = bytes(&longer.known, &needed);
  expect(status == SPARROW_MSA_OK || status == SPARROW_MSA_CUDA, "an unknown field of zeros is fine");
  if (status == SPARROW_MSA_OK) expect(needed > 0, "a plan needs a workspace");
  if (status == SPARROW_MSA_CUDA) expect(strlen(last_error()) > 0, "without a device there is a message");
  expect(plan == NULL, "a refused plan is not made");

  if (failures == 0)
    printf("c_api_test: all fine (%s)\n", status == SPARROW_MSA_OK ? "with a GPU" : last_error());
  return failures != 0;
}
