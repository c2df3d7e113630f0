// SPDX-License-Identifier: Apache-2.0
// A quantised checkpoint as the bf16 one it stands for.
#pragma once

#include <filesystem>

namespace sparrow::test {

// Writes the folder `to`: every matrix of `from` that has scales in bf16, by the definition of its format,
// and everything else as it is.
void write_expanded(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace sparrow::test
