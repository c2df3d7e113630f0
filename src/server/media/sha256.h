// SPDX-License-Identifier: Apache-2.0
// SHA-256 of bytes in pieces: what a picture is known by.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace sparrow {

using Sha256Digest = std::array<uint8_t, 32>;

Sha256Digest sha256(std::initializer_list<std::span<const std::byte>> pieces);

}  // namespace sparrow
