// SPDX-License-Identifier: Apache-2.0
// Any bytes as what a subscriber sends: its greeting, frames in whatever pieces they come, commands in them.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "server/events/zmtp.h"

namespace {

using namespace sparrow;

// The frames of a stream; how it ended is in the last place.
std::vector<std::string> frames(std::string_view stream, size_t piece) {
  std::vector<std::string> found;
  zmtp::FrameReader reader;
  while (!stream.empty()) {
    reader.add(stream.substr(0, piece));
    stream.remove_prefix(std::min(piece, stream.size()));
    for (;;) {
      auto frame = reader.next();
      if (!frame.ok()) {
        found.push_back("error");
        return found;
      }
      if (!frame->has_value()) break;
      const zmtp::Frame& read = **frame;
      SPARROW_CHECK_LE(read.body.size(), zmtp::FrameReader::kMaxBody);
      found.push_back((read.command ? "command " : read.more ? "more " : "last ") + read.body);
      if (const auto command = zmtp::read_command(read.body)) {
        (void)zmtp::socket_type_of(*command);
        (void)zmtp::pong(command->body);
      }
    }
  }
  return found;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view stream(reinterpret_cast<const char*>(data), size);
  (void)zmtp::check_greeting(stream.substr(0, zmtp::kGreetingBytes));
  SPARROW_CHECK(frames(stream, size + 1) == frames(stream, 1 + size % 7));
  return 0;
}
