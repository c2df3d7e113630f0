// SPDX-License-Identifier: Apache-2.0
// `sparrow tokenize`: text to ids, ids to text, or a table of both.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <iterator>

#include "base/files/mapped_file.h"
#include "base/json/json_writer.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "config/config.h"
#include "text/tokenizer/tokenizer.h"

namespace sparrow::cli {
namespace {

std::string read_input(const TokenizeOptions& options) {
  if (options.input) return *options.input;
  return std::string(std::istreambuf_iterator<char>(std::cin), {});
}

// Numbers with anything of ", \t\r\n[]" between them: a list of ours, a JSON array, a column.
Result<std::vector<int32_t>> parse_ids(std::string_view text) {
  constexpr std::string_view kSeparators = ", \t\r\n[]";
  std::vector<int32_t> ids;
  for (size_t i = text.find_first_not_of(kSeparators); i != std::string_view::npos;
       i = text.find_first_not_of(kSeparators, i)) {
    const std::string_view item = text.substr(i, text.find_first_of(kSeparators, i) - i);
    int32_t id = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), id);
    if (error != std::errc() || end != item.data() + item.size()) {
      std::string quoted;
      append_json_string(quoted, item.substr(0, 40));
      return Error{Errc::kInvalidArgument,
                   strf("--decode takes token ids separated by commas or blanks, got {}", quoted)};
    }
    ids.push_back(id);
    i += item.size();
  }
  return ids;
}

// The bytes of a token on one line: control characters and bytes of half characters as escapes.
std::string visible(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const Utf8Char c = decode_utf8(bytes);
    const std::string_view piece = bytes.substr(0, c.length);
    if (c.valid && c.code_point >= 0x20 && c.code_point != 0x7F &&
        (c.code_point < 0x80 || c.code_point >= 0xA0)) {
      if (piece == "\\" || piece == "\"") out += '\\';
      out += piece;
    } else if (piece == "\n" || piece == "\t" || piece == "\r") {
      out += piece == "\n" ? "\\n" : piece == "\t" ? "\\t" : "\\r";
    } else {
      for (const char byte : piece)
        out += strf("\\x{:02x}", static_cast<unsigned>(static_cast<unsigned char>(byte)));
    }
    bytes.remove_prefix(c.length);
  }
  return out;
}

Status print_table(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  const auto kind = [&tokenizer](int32_t id) {
    const auto added = tokenizer.added_tokens();
    const bool is_added =
        std::any_of(added.begin(), added.end(), [id](const AddedToken& t) { return t.id == id; });
    return tokenizer.is_special(id) ? "  special" : is_added ? "  added" : "";
  };
  std::printf("%8s  %8s  token\n", "position", "id");
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string_view bytes = SPARROW_TRY(tokenizer.bytes_of(ids[i]));
    std::fputs(strf("{:8}  {:8}  \"{}\"{}\n", i, ids[i], visible(bytes), kind(ids[i])).c_str(), stdout);
  }
  return Ok{};
}

Result<Tokenizer> load_tokenizer(const std::filesystem::path& folder) {
  Tokenizer tokenizer = SPARROW_TRY(Tokenizer::load(folder));
  // A model may produce ids of rows that no token has. A folder with a tokenizer and nothing else is fine
  // too.
  const auto text = read_text_file(folder / "config.json", size_t{64} << 20);
  if (!text.ok()) return tokenizer;
  const auto config = parse_config(text.value(), "");
  if (config.ok()) tokenizer.reserve_ids(config.value().vocab_size);
  return tokenizer;
}

}  // namespace

Status run_tokenize(const TokenizeOptions& options) {
  const Tokenizer tokenizer = SPARROW_TRY(load_tokenizer(options.model));
  const std::string input = read_input(options);
  if (options.decode) {
    const std::vector<int32_t> ids = SPARROW_TRY(parse_ids(input));
    if (options.table) return print_table(tokenizer, ids);
    const std::string text = SPARROW_TRY(tokenizer.decode(ids, options.skip_special));
    std::fwrite(text.data(), 1, text.size(), stdout);
    return Ok{};
  }
  const auto ids =
      SPARROW_TRY(tokenizer.encode(input, options.plain ? Recognise::kNotSpecial : Recognise::kAll));
  if (options.table) return print_table(tokenizer, ids);
  std::string line;
  for (size_t i = 0; i < ids.size(); ++i) line += strf("{}{}", i == 0 ? "" : ",", ids[i]);
  std::puts(line.c_str());
  return Ok{};
}

}  // namespace sparrow::cli
