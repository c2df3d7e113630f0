// SPDX-License-Identifier: Apache-2.0
// The random bits of synthetic weights, counted and not drawn in turn, so that any element can be made
// anywhere, on a GPU as well. Free of fmt, for kernels' files.
#pragma once

#include <cstdint>

namespace sparrow {

// Elements that share one draw of 64 bits, 16 bits each, lowest first.
inline constexpr int64_t kElementsPerDraw = 4;

constexpr uint64_t mix_bits(uint64_t x) {  // splitmix64's finaliser
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr uint64_t draw_bits(uint64_t key, int64_t counter) {
  return mix_bits(key + static_cast<uint64_t>(counter) * 0x9e3779b97f4a7c15u);
}

// Uniform in mean +- amplitude. A narrow spread of simple shape keeps generation as fast as the disk.
struct UniformSpread {
  float mean, amplitude;

  // What one unit of an element's 16 bits, taken as a signed number, is worth.
  constexpr float step() const { return amplitude * 0x1p-15f; }
};

// What the bytes of one-byte types are made from: eight to a draw, lowest first, and each picks an entry.
struct RandomBytes {
  uint64_t key;
  uint8_t table[256];

  constexpr uint8_t at(int64_t i) const { return table[draw_bits(key, i / 8) >> (8 * (i % 8)) & 0xff]; }
};

}  // namespace sparrow
