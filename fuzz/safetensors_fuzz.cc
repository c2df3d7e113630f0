// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors file. Whatever parses must describe data that can be read.
#include <cstdint>
#include <span>

#include "base/check.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  const auto header = sparrow::parse_safetensors_header(file);
  if (!header.ok()) {
    SPARROW_CHECK(!header.error().message.empty());
    return 0;
  }
  unsigned sum = 0;
  for (const auto& [name, entry] : header->entries) {
    SPARROW_CHECK_LE(entry.begin, entry.end);
    SPARROW_CHECK_LE(entry.end, size);
    for (const std::byte b : file.subspan(entry.begin, entry.end - entry.begin))
      sum += static_cast<unsigned>(b);
  }
  return sum == 0xffffffffu ? 1 : 0;  // keeps the reads
}
