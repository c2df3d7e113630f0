// SPDX-License-Identifier: Apache-2.0
// The released checkpoint's own template, where there is one: prompts of known SHA-256.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "base/files/mapped_file.h"
#include "base/strf.h"
#include "text/chat_template.h"

namespace sparrow {
namespace {

struct Anchor {
  const char* name;
  const char* messages;
  const char* tools;
  const char* kwargs;
  size_t bytes;
  const char* sha256;
};

constexpr const char* kPing = R"([{"role": "user", "content": "Ping"}])";

constexpr Anchor kAnchors[] = {
    {"one question", kPing, "null", "{}", 868,
     "d5de191445e8b21c99339a27ced4c0018d56a0a9cb165c0ff50eecf92c1487fd"},
    {"system message, enabled",
     R"([{"role": "system", "content": "Be terse."}, {"role": "user", "content": "Ping"}])", "null",
     R"({"thinking_mode": "enabled"})", 838,
     "8e8f99ab3922215ff7b61cf8065f6d670d97c148bce9349b58a0d382aaa11f48"},
    {"disabled", kPing, "null", R"({"thinking_mode": "disabled"})", 795,
     "043bdae1f84ddd5056285831becbd5f738e4216422ca4916a0de4a3e92780b89"},
    {"enabled", kPing, "null", R"({"thinking_mode": "enabled"})", 857,
     "1f389e1aff494e4ad974fe510cc8e5c38e2baca7d2e8c760a0ed9838536417d7"},
    {"an unknown mode", kPing, "null", R"({"thinking_mode": "unheard-of"})", 715,
     "bfb531634b95639e1b46ce7fbc1a30931d2841eed7427745f5a10583f4981085"},
    {"root and developer",
     R"([{"role": "root", "content": "ROOT"}, {"role": "developer", "content": "DEV"},
         {"role": "user", "content": "Ping"}])",
     "null", R"({"thinking_mode": "adaptive"})", 633,
     "ecb255fb4b07b79cbfced279dcdbf5b726036d6ce5a6b0022eee5341b7b4e30c"},
    {"a tool", R"([{"role": "user", "content": "Route?"}])",
     R"([{"type": "function", "function": {"name": "find_route", "description": "Plan a trip", "parameters":
         {"type": "object", "properties": {"stops": {"type": "array", "items": {"type": "string"}}},
          "required": ["stops"]}}}])",
     R"({"thinking_mode": "adaptive"})", 1876,
     "3bd616e13bb371d742babb9fa095b22cf8f2905008399dbb746d2d2a9b66e7d6"},
    {"calls and results",
     R"([{"role": "user", "content": "Route?"}, {"role": "assistant", "content": "Sure.", "reasoning_content":
         "Need tool", "tool_calls": [{"function": {"name": "find_route", "arguments":
         "{\"stops\": [\"A\", \"B\"], \"opts\": {\"fast\": true, \"n\": 3, \"x\": null}, \"nil\": null, \"e\": []}"}},
         {"function": {"name": "ping", "arguments": "{}"}}]}, {"role": "tool", "content": "r1"}, {"role": "tool",
         "content": [{"type": "text", "text": "r2"}, {"type": "image_url"}]}, {"role": "assistant", "content": "Done"},
         {"role": "user", "content": "Thanks"}])",
     "null", R"({"thinking_mode": "enabled"})", 1463,
     "8a7e7598ecac7b69f498d40343761fef9d679e892be68520798697f5b6013e8f"},
    {"image and video",
     R"([{"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": "What?"},
         {"type": "video_url"}]}])",
     "null", "{}", 891, "b53f563b68685d5ebd04ce1bcaee6c1bce9da26d0b592f07cfe6dd7b4e4cfea6"},
    {"reasoning inside the content",
     R"([{"role": "user", "content": "Q"}, {"role": "assistant", "content":
         "<mm:think>\nabc\n</mm:think>\n\nAns"}, {"role": "user", "content": "Q2"}])",
     "null", R"({"thinking_mode": "disabled"})", 847,
     "e982c9c4816bd18433d335cda5c413f2c64dc7e0720db11cc337af4a64b2e739"},
};

// FIPS 180-4. The constants are the first 32 bits of the fractional parts of the cube roots of the first 64
// primes, and of the square roots of the first eight.
class Sha256 {
 public:
  static std::string hex(std::string text) {
    Sha256 hash;
    const uint64_t bits = text.size() * 8;
    text += '\x80';
    while (text.size() % 64 != 56) text += '\0';
    for (int shift = 56; shift >= 0; shift -= 8) text += static_cast<char>(bits >> shift);
    for (size_t at = 0; at < text.size(); at += 64) hash.block(text.data() + at);
    std::string out;
    for (const uint32_t word : hash.state_) out += strf("{:08x}", word);
    return out;
  }

 private:
  static constexpr std::array<int, 64> kPrimes{
      2,   3,   5,   7,   11,  13,  17,  19,  23,  29,  31,  37,  41,  43,  47,  53,
      59,  61,  67,  71,  73,  79,  83,  89,  97,  101, 103, 107, 109, 113, 127, 131,
      137, 139, 149, 151, 157, 163, 167, 173, 179, 181, 191, 193, 197, 199, 211, 223,
      227, 229, 233, 239, 241, 251, 257, 263, 269, 271, 277, 281, 283, 293, 307, 311};

  static uint32_t fraction(long double root) {
    return static_cast<uint32_t>((root - std::floor(root)) * 0x1p32L);
  }

  Sha256() {
    for (size_t i = 0; i < 64; ++i) constants_[i] = fraction(std::cbrt(static_cast<long double>(kPrimes[i])));
    for (size_t i = 0; i < 8; ++i) state_[i] = fraction(std::sqrt(static_cast<long double>(kPrimes[i])));
  }

  void block(const char* bytes) {
    std::array<uint32_t, 64> w{};
    for (size_t i = 0; i < 64; ++i) w[i / 4] = (w[i / 4] << 8) | static_cast<unsigned char>(bytes[i]);
    for (size_t i = 16; i < 64; ++i) {
      const uint32_t a = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
      const uint32_t b = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    std::array<uint32_t, 8> s = state_;
    for (size_t i = 0; i < 64; ++i) {
      const uint32_t e = std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25);
      const uint32_t first = s[7] + e + ((s[4] & s[5]) ^ (~s[4] & s[6])) + constants_[i] + w[i];
      const uint32_t a = std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22);
      const uint32_t second = a + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      s = {first + second, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
    }
    for (size_t i = 0; i < 8; ++i) state_[i] += s[i];
  }

  std::array<uint32_t, 64> constants_;
  std::array<uint32_t, 8> state_;
};

TEST(Sha256, HashesTheStandardsExample) {
  EXPECT_EQ(Sha256::hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(ChatTemplateAnchors, TheReleasedTemplateGivesPromptsOfKnownHash) {
  const char* const path = std::getenv("SPARROW_M3_CHAT_TEMPLATE");
  if (path == nullptr || *path == '\0')
    GTEST_SKIP() << "SPARROW_M3_CHAT_TEMPLATE does not name the checkpoint's chat_template.jinja";
  const auto source = read_text_file(path, 1 << 20);
  ASSERT_TRUE(source.ok()) << source.error().message;
  const auto parsed = ChatTemplate::parse(source.value());
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  for (const Anchor& anchor : kAnchors) {
    SCOPED_TRACE(anchor.name);
    const JsonDocument messages = JsonDocument::parse(anchor.messages, "messages").value();
    const JsonDocument tools = JsonDocument::parse(anchor.tools, "tools").value();
    const JsonDocument kwargs = JsonDocument::parse(anchor.kwargs, "kwargs").value();
    ChatInput input{.messages = messages.root("messages")};
    input.tools = tools.root("tools");
    input.kwargs = kwargs.root("kwargs");
    const Result<PromptText> prompt = parsed->render(input);
    ASSERT_TRUE(prompt.ok()) << prompt.error().message;
    EXPECT_EQ(prompt->text.size(), anchor.bytes);
    EXPECT_EQ(Sha256::hex(prompt->text), anchor.sha256);
  }
}

}  // namespace
}  // namespace sparrow
