// SPDX-License-Identifier: Apache-2.0
#include "server/describe/wrong_path.h"

#include <algorithm>

#include "base/strf.h"

namespace sparrow {
namespace {

// What other servers have and this one cannot: the last part of the path, or where it begins.
struct Absent {
  std::string_view part, reason;
};
constexpr std::string_view kNoEmbedding = "M3 is no embedding model: it generates text";
constexpr std::string_view kOnlyText = "M3 answers with text";
constexpr std::string_view kOtherApi = "this server speaks OpenAI's and Anthropic's APIs, below /v1";
constexpr Absent kAbsent[] = {
    {"/embeddings", kNoEmbedding},
    {"/embed", kNoEmbedding},
    {"/rerank", kNoEmbedding},
    {"/score", kNoEmbedding},
    {"/pooling", kNoEmbedding},
    {"/classify", kNoEmbedding},
    {"/moderations", "M3 is no classifier: it generates text"},
    {"/audio/", kOnlyText},
    {"/images/", kOnlyText},
    {"/videos", kOnlyText},
    {"/realtime", kOnlyText},
    {"/files", "files are not kept here"},
    {"/batches", "there are no batches: send requests side by side"},
    {"/assistants", "there are no assistants: use /v1/chat/completions or /v1/responses"},
    {"/threads", "there are no threads: use /v1/chat/completions or /v1/responses"},
    {"/fine_tuning", "models are not trained here"},
    {"/lora", "there are no adapters"},
    {"/api/", kOtherApi},
    {"/generate", kOtherApi},
    {"/invocations", kOtherApi},
};

// "//v1/models/" -> "/v1/models"
std::string without_doubled_slashes(std::string_view path) {
  std::string out;
  for (const char c : path)
    if (c != '/' || !out.ends_with('/')) out += c;
  if (out.size() > 1 && out.ends_with('/')) out.pop_back();
  return out;
}

}  // namespace

std::string help_with_path(std::string_view path, std::span<const std::string_view> known) {
  const std::string plain = without_doubled_slashes(path);
  const auto is_known = [&](std::string_view wanted) {
    return std::find(known.begin(), known.end(), wanted) != known.end();
  };
  // Whole, with the version, without what stands before it, or without one of two versions.
  for (size_t at = 0; at != plain.npos; at = plain.find('/', at + 1)) {
    const std::string rest = plain.substr(at);
    for (const std::string& wanted : {rest, "/v1" + rest})
      if (is_known(wanted)) return strf("; did you mean {}?", wanted);
  }
  for (const Absent& absent : kAbsent)
    if (plain.find(absent.part) != plain.npos) return strf("; {}", absent.reason);
  return "";
}

}  // namespace sparrow
