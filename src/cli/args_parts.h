// SPDX-License-Identifier: Apache-2.0
// Parts of the command line that have a file of their own. Only args*.cc include this.
#pragma once

#include "cli/chat.h"
#include "cli/serve.h"

namespace CLI {
class App;
}

namespace sparrow::cli {

CLI::App* add_serve(CLI::App& app, ServeOptions& options);
CLI::App* add_chat(CLI::App& app, ChatOptions& options);

}  // namespace sparrow::cli
