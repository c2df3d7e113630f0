// SPDX-License-Identifier: Apache-2.0
// Any text as config.json, and after a zero byte as generation_config.json. Whatever parses must keep its
// promises.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "config/config.h"

namespace {

void check_promises(const sparrow::ModelConfig& config) {
  SPARROW_CHECK_LT(0, config.vocab_size);
  SPARROW_CHECK_LT(0, config.num_layers);
  SPARROW_CHECK_EQ(config.layer_is_sparse.size(), static_cast<size_t>(config.num_layers));
  SPARROW_CHECK_EQ(config.layer_is_moe.size(), static_cast<size_t>(config.num_layers));
  SPARROW_CHECK_EQ(config.hidden_size % 32, 0);
  SPARROW_CHECK_EQ(config.num_query_heads % config.num_kv_heads, 0);
  SPARROW_CHECK_LE(config.num_query_heads / config.num_kv_heads, 16);
  SPARROW_CHECK_LE(config.experts_per_token, config.num_experts);
  SPARROW_CHECK_LE(config.local_blocks + config.init_blocks, config.top_k_blocks);
  SPARROW_CHECK_LE(config.top_k_blocks, 16);
  SPARROW_CHECK_LE(1, config.local_blocks);
  SPARROW_CHECK_EQ(config.rope.rotary_dim % 2, 0);
  SPARROW_CHECK_LE(config.rope.rotary_dim, config.head_dim);
  for (const int32_t id : config.eos_token_ids) SPARROW_CHECK(id >= 0 && id < config.vocab_size);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t end = text.find('\0');
  const std::string_view generation = end == std::string_view::npos ? "" : text.substr(end + 1);
  const auto config = sparrow::parse_config(text.substr(0, end), generation);
  if (config.ok())
    check_promises(config.value());
  else
    SPARROW_CHECK(!config.error().message.empty());
  return 0;
}
