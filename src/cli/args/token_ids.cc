// SPDX-License-Identifier: Apache-2.0
#include "cli/args/token_ids.h"

#include <charconv>
#include <limits>

#include "base/files/mapped_file.h"
#include "base/json/json.h"

namespace sparrow::cli {

Result<std::vector<int32_t>> parse_int_list(std::string_view text, std::string_view what) {
  std::vector<int32_t> values;
  for (size_t start = 0; start <= text.size();) {
    const size_t comma = std::min(text.find(',', start), text.size());
    std::string_view item = text.substr(start, comma - start);
    while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
    while (!item.empty() && item.back() == ' ') item.remove_suffix(1);
    int32_t value = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), value);
    if (error != std::errc() || end != item.data() + item.size())
      return Error{Errc::kInvalidArgument,
                   strf("{} takes integers separated by commas, got \"{}\"", what, item)};
    values.push_back(value);
    start = comma + 1;
  }
  return values;
}

namespace {

Result<std::vector<int32_t>> parse_id_array(std::string_view text) {
  const JsonDocument document = SPARROW_TRY(JsonDocument::parse(text, "ids"));
  const Json root = document.root();
  SPARROW_TRY(root.expect_array());
  std::vector<int32_t> ids(root.size());
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] =
        static_cast<int32_t>(SPARROW_TRY(root.element(i).as_int(0, std::numeric_limits<int32_t>::max())));
  return ids;
}

}  // namespace

Result<std::vector<int32_t>> read_id_file(const std::filesystem::path& path) {
  const std::string text = SPARROW_TRY(read_text_file(path, size_t{64} << 20));
  Result<std::vector<int32_t>> ids = parse_id_array(text);
  if (!ids.ok()) return Error{ids.error().code, strf("{}: {}", quoted(path), ids.error().message)};
  return ids;
}

Result<std::vector<int32_t>> read_prompt_ids(std::string_view list_or_file) {
  if (list_or_file.find_first_not_of("0123456789, -") == std::string_view::npos)
    return parse_int_list(list_or_file, "--prompt-ids");
  return read_id_file(std::filesystem::path(list_or_file));
}

Status check_prompt(std::span<const int32_t> ids, int vocab_size, int64_t max_new_tokens,
                    int64_t max_positions) {
  if (ids.empty()) return Error{Errc::kInvalidArgument, "the prompt is empty: give at least one token id"};
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocab_size)
      return Error{Errc::kInvalidArgument,
                   strf("prompt id {} at index {} is not in the vocabulary [0, {})", ids[i], i, vocab_size)};
  const int64_t tokens = static_cast<int64_t>(ids.size()) + max_new_tokens;
  if (tokens > max_positions)
    return Error{Errc::kInvalidArgument,
                 strf("{} prompt tokens and {} new ones exceed the model's {} positions", ids.size(),
                      max_new_tokens, max_positions)};
  return Ok{};
}

}  // namespace sparrow::cli
