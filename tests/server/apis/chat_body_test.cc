// SPDX-License-Identifier: Apache-2.0
#include "server/api/chat_body.h"

#include <gtest/gtest.h>

namespace sparrow {
namespace {

// A result that is an error has a part more than its client wrote, and a detail stands elsewhere.
TEST(ChatBody, ImagesAreCalledAsTheClientSentThem) {
  const JsonDocument document = JsonDocument::parse(R"({"content":[{"image_url":"u"}]})", "body").value();
  const Json part = document.root("input[2]").find("content")->element(0);
  ChatMessage message{.role = "user", .origin = "input[2]", .content_origin = "input[2].content"};
  message.add_text("Error: ");
  message.add_image(part, "u", part.path() + ".image_url", "huge");
  ChatBody chat;
  chat.add_messages({message});
  const auto name = [&](const char* path) { return chat.origin_of(path); };
  EXPECT_EQ(name("messages[0].content[1]"), "input[2].content[0]");
  EXPECT_EQ(name("messages[0].content[1].type"), "input[2].content[0].type");
  EXPECT_EQ(name("messages[0].content[1].image_url.url"), "input[2].content[0].image_url");
  EXPECT_EQ(name("messages[0].content[1].image_url.detail"), "input[2].content[0].detail");
}

}  // namespace
}  // namespace sparrow
