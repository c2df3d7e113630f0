// SPDX-License-Identifier: Apache-2.0
// Media in files of the server: only below one folder, only regular files, wherever links point and whoever
// moves them meanwhile.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/files/fd.h"
#include "base/result.h"
#include "media/media_bytes.h"

namespace sparrow {

bool is_file_url(std::string_view url);
// The path of file:///PATH or file://localhost/PATH, unescaped.
Result<std::string> path_of_file_url(std::string_view url);

class LocalMedia {
 public:
  // `folder`: an absolute path. It is opened once: what is put in its place later has no say.
  static Result<LocalMedia> open(const std::string& folder);

  // A path below the folder. What is outside, no regular file or not there gets the same error: nobody learns
  // which files exist.
  Result<MediaBytes> read(const std::string& path, size_t max_bytes) const;

 private:
  std::string folder_;  // without a slash at its end
  Fd fd_;
};

}  // namespace sparrow
