// SPDX-License-Identifier: Apache-2.0
// History: what was typed before, kept in a file that only its owner can read. One entry a line, with \n and
// \\ for newlines and backslashes.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sparrow::cli {

class History {
 public:
  static constexpr size_t kMaxEntries = 1000;

  // In memory only, until load().
  History() = default;

  // Reads the file and keeps it up to date from now on. It need not exist; its folders are created.
  Status load(const std::filesystem::path& file);

  // Newest last. Neither empty nor what was there just before.
  void add(std::string_view entry);
  size_t size() const { return entries_.size(); }
  // `age` 0 is the newest.
  const std::string& entry(size_t age) const { return entries_[entries_.size() - 1 - age]; }

 private:
  std::vector<std::string> entries_;
  std::filesystem::path file_;
};

// $XDG_STATE_HOME/sparrow/NAME or ~/.local/state/sparrow/NAME; empty where there is no home.
std::filesystem::path state_file(std::string_view name);

}  // namespace sparrow::cli
