// SPDX-License-Identifier: Apache-2.0
// One line for each request: when, what, for whom, how long. Never bodies, queries or keys.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>

#include "server/http/http.h"

namespace sparrow {

enum class LogFormat { kHuman, kJson };

// The line with its line end. Whatever a peer sent, it stays one line.
std::string access_line(const AccessRecord& record, LogFormat format,
                        std::chrono::system_clock::time_point now);

// Any thread; each line is one write.
class AccessLog {
 public:
  AccessLog(std::FILE* file, LogFormat format) : file_(file), format_(format) {}
  void write(const AccessRecord& record) const;

 private:
  std::FILE* file_;
  LogFormat format_;
};

}  // namespace sparrow
