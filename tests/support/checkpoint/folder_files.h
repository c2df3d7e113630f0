// SPDX-License-Identifier: Apache-2.0
// What is in a folder.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "base/files/mapped_file.h"

namespace sparrow::test {

// Its files, by name.
inline std::map<std::string, std::string> files_of(const std::filesystem::path& dir) {
  std::map<std::string, std::string> files;
  for (const auto& item : std::filesystem::directory_iterator(dir))
    files[item.path().filename()] = read_text_file(item.path(), 1 << 24).value();
  return files;
}

}  // namespace sparrow::test
