// SPDX-License-Identifier: Apache-2.0
#include "server/events/zmtp.h"

#include <gtest/gtest.h>

namespace sparrow::zmtp {
namespace {

TEST(Zmtp, GreetingIsTheSpecifications) {
  const std::string bytes = greeting();
  ASSERT_EQ(bytes.size(), 64u);
  EXPECT_EQ(bytes.substr(0, 12), std::string("\xff\0\0\0\0\0\0\0\0\x7f\x03\x01", 12));
  EXPECT_EQ(bytes.substr(12, 20), "NULL" + std::string(16, '\0'));
  EXPECT_TRUE(check_greeting(bytes).ok());
  for (const auto& [at, value] : {std::pair{0, 'G'}, {9, 'x'}, {10, '\x01'}, {12, 'C'}}) {
    std::string wrong = bytes;
    wrong[at] = value;
    EXPECT_FALSE(check_greeting(wrong).ok()) << at;
  }
}

TEST(Zmtp, FramesComeBackWhateverPiecesTheyComeIn) {
  const std::string large(300, 'l');
  std::string bytes;
  append_frame(bytes, "topic", /*more=*/true);
  append_frame(bytes, "", /*more=*/true);
  append_frame(bytes, large, /*more=*/false);
  bytes += ready("SUB");
  for (const size_t piece : {size_t{1}, size_t{7}, bytes.size()}) {
    FrameReader reader;
    std::vector<Frame> frames;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      reader.add(std::string_view(bytes).substr(at, piece));
      while (auto frame = reader.next().value()) frames.push_back(*frame);
    }
    ASSERT_EQ(frames.size(), 4u);
    EXPECT_EQ(frames[0].body, "topic");
    EXPECT_TRUE(frames[0].more && frames[1].more && !frames[2].more && !frames[2].command);
    EXPECT_EQ(frames[1].body, "");
    EXPECT_EQ(frames[2].body, large);
    EXPECT_TRUE(frames[3].command);
    EXPECT_EQ(socket_type_of(*read_command(frames[3].body)).value(), "SUB");
  }
}

TEST(Zmtp, RefusesFramesThatNobodySends) {
  const auto refuses = [](std::string bytes) {
    FrameReader reader;
    reader.add(bytes);
    return !reader.next().ok();
  };
  EXPECT_TRUE(refuses("\x08"));                                                  // a flag that does not exist
  EXPECT_TRUE(refuses("\x05"));                                                  // a command in parts
  EXPECT_TRUE(refuses(std::string("\x02\x7f\xff\xff\xff\xff\xff\xff\xff", 9)));  // too large
}

TEST(Zmtp, ReadyNeedsASocketType) {
  EXPECT_FALSE(read_command("").has_value());
  EXPECT_FALSE(read_command("\x05READ").has_value());
  EXPECT_FALSE(socket_type_of({.name = "ERROR", .body = ""}).ok());
  EXPECT_FALSE(socket_type_of({.name = "READY", .body = ""}).ok());
  EXPECT_FALSE(socket_type_of({.name = "READY", .body = "\x0bSocket-Type"}).ok());
  EXPECT_FALSE(
      socket_type_of({.name = "READY", .body = std::string_view("\x0bSocket-Type\xff\0\0\x03SUB", 19)}).ok());
  const std::string mixed("\x01x\0\0\0\0\x0bsocket-TYPE\0\0\0\x03SUB", 25);
  EXPECT_EQ(socket_type_of({.name = "READY", .body = mixed}).value(), "SUB");
}

TEST(Zmtp, APingIsAnswered) {
  EXPECT_EQ(pong(std::string_view("\0\x0ahello", 7)), std::string("\x04\x0a\x04PONGhello", 12));
}

}  // namespace
}  // namespace sparrow::zmtp
