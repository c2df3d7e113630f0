// SPDX-License-Identifier: Apache-2.0
// tokenizer.json and tokenizer_config.json as plain data. What they ask for and we do not support is an
// error.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/pretokenize.h"
#include "text/unicode.h"

namespace sparrow {

struct TokenizerFile {
  struct Token {
    std::string bytes;
    bool in_vocab = false;  // BPE may produce it
  };
  std::vector<Token> tokens;  // by id; ids that nobody uses are empty
  std::array<int32_t, 256> byte_ids{};
  std::vector<Bpe::Merge> merges;
  bool ignore_merges = false;  // a word that is a token is that token, whatever the merges would make of it
  std::vector<AddedToken> added;
  std::vector<NormalForm> normal_forms;
  std::vector<SplitRule> split_rules;
  std::optional<int32_t> bos, eos, unk;
};

// `config_json` is the text of tokenizer_config.json, empty if there is none.
Result<TokenizerFile> parse_tokenizer_file(std::string_view tokenizer_json, std::string_view config_json);

// GPT-2's way to write any byte as a printable character: the code point of each byte.
std::array<uint32_t, 256> byte_level_alphabet();

}  // namespace sparrow
