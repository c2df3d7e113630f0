// SPDX-License-Identifier: Apache-2.0
#include <string_view>

#include "cli/commands.h"
#include "media/picture/picture_work.h"
#include "media/sandbox/worker.h"

namespace sparrow::cli {

bool is_media_worker(int argc, const char* const* argv) {
  return argc == 2 && std::string_view(argv[1]) == kMediaWorkerCommand;
}

int run_as_media_worker() {
  return run_media_worker(decode_picture);
}

}  // namespace sparrow::cli
