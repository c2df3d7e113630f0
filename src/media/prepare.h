// SPDX-License-Identifier: Apache-2.0
// A file's whole way: bytes -> pixels -> resized -> patch rows.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"
#include "media/image.h"
#include "media/patches.h"
#include "media/resize.h"

namespace sparrow {

// The size an image will have, from its header alone: its tokens are known before anybody decodes it.
Result<ImageSize> planned_size(std::span<const std::byte> file, const SizeRule& rule,
                               const DecodeLimits& limits);

Result<MediaPatches> prepare_image(std::span<const std::byte> file, const SizeRule& rule,
                                   const DecodeLimits& limits);

}  // namespace sparrow
