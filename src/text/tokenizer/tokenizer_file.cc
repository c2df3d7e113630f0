// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/tokenizer_file.h"

#include <charconv>
#include <unordered_map>

#include "base/json/json.h"
#include "base/utf8.h"

namespace sparrow {
namespace {

// Far above any vocabulary, far below what would make a table of ids a burden.
constexpr int64_t kMaxId = 16'000'000;

using VocabIds = std::unordered_map<std::string_view, int32_t>;

class ByteLevelDecoder {
 public:
  ByteLevelDecoder() {
    const auto alphabet = byte_level_alphabet();
    for (int byte = 0; byte < 256; ++byte) byte_of_.emplace(alphabet[byte], static_cast<char>(byte));
  }
  // The bytes that a token's text stands for; nullopt where a character is none of the alphabet.
  std::optional<std::string> bytes(std::string_view text) const {
    std::string out;
    for (size_t i = 0; i < text.size();) {
      const Utf8Char c = decode_utf8(text.substr(i));
      const auto found = byte_of_.find(c.code_point);
      if (found == byte_of_.end()) return std::nullopt;
      out += found->second;
      i += c.length;
    }
    return out;
  }

 private:
  std::unordered_map<uint32_t, char> byte_of_;
};

Error unsupported(const Json& where, std::string_view what) {
  return {Errc::kUnsupported, strf("{} {}, got {}", where.path(), what, where.brief())};
}

// Absent, null and the listed harmless values pass.
Status expect_absent(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  if (!found) return Ok{};
  if (found->is_string() && SPARROW_TRY(found->as_string()).empty()) return Ok{};
  if (const auto flag = found->as_bool(); flag.ok() && !flag.value()) return Ok{};
  return unsupported(*found, "is not supported");
}

Result<VocabIds> read_vocab(const Json& vocab, TokenizerFile& file) {
  SPARROW_TRY(vocab.expect_object());
  const ByteLevelDecoder decoder;
  VocabIds ids;
  ids.reserve(vocab.size());
  for (size_t i = 0; i < vocab.size(); ++i) {
    const auto id = static_cast<size_t>(SPARROW_TRY(vocab.member(i).as_int(0, kMaxId)));
    if (id >= file.tokens.size()) file.tokens.resize(id + 1);
    TokenizerFile::Token& token = file.tokens[id];
    if (token.in_vocab) return Error{Errc::kCorrupt, strf("{}: two tokens have the id {}", vocab.path(), id)};
    const auto bytes = decoder.bytes(vocab.key(i));
    token = {bytes.value_or(std::string(vocab.key(i))), true};
    ids.emplace(vocab.key(i), static_cast<int32_t>(id));
  }
  const auto alphabet = byte_level_alphabet();
  for (int byte = 0; byte < 256; ++byte) {
    std::string text;
    append_utf8(text, alphabet[byte]);
    const auto found = ids.find(text);
    if (found == ids.end())
      return Error{Errc::kUnsupported,
                   strf("{} has no token for the byte {}: not a byte-level vocabulary", vocab.path(), byte)};
    file.byte_ids[byte] = found->second;
  }
  return ids;
}

// "left right" in one string, or a list of the two.
Result<std::pair<std::string, std::string>> read_merge(const Json& merge) {
  if (merge.is_array() && merge.size() == 2) {
    std::string left = SPARROW_TRY(merge.element(0).as_string());
    std::string right = SPARROW_TRY(merge.element(1).as_string());
    return std::pair{std::move(left), std::move(right)};
  }
  const std::string text = SPARROW_TRY(merge.as_string());
  const size_t blank = text.find(' ');
  if (blank == std::string::npos || text.find(' ', blank + 1) != std::string::npos)
    return merge.error("must be two tokens with one blank between them");
  return std::pair{text.substr(0, blank), text.substr(blank + 1)};
}

Status read_merges(const Json& merges, const VocabIds& ids, TokenizerFile& file) {
  SPARROW_TRY(merges.expect_array());
  if (merges.size() > Bpe::kMaxMerges)
    return Error{Errc::kUnsupported, strf("{} may have at most {} entries, got {}", merges.path(),
                                          Bpe::kMaxMerges, merges.size())};
  file.merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const Json merge = merges.element(i);
    const auto [left, right] = SPARROW_TRY(read_merge(merge));
    const auto l = ids.find(left), r = ids.find(right), merged = ids.find(left + right);
    if (l == ids.end() || r == ids.end() || merged == ids.end())
      return Error{Errc::kCorrupt, strf("{} joins tokens that are not all in the vocabulary: {}",
                                        merge.path(), merge.brief())};
    file.merges.push_back({l->second, r->second, merged->second});
  }
  return Ok{};
}

Status read_model(const Json& model, TokenizerFile& file) {
  const std::string type = SPARROW_TRY(model.string_or("type", "BPE"));
  if (type != "BPE")
    return Error{Errc::kUnsupported, strf("{}.type must be BPE, got {}", model.path(), json_quoted(type))};
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"})
    SPARROW_TRY(expect_absent(model, key));
  file.ignore_merges = SPARROW_TRY(model.bool_or("ignore_merges", false));
  const Json vocab = SPARROW_TRY(model.at("vocab"));
  const VocabIds ids = SPARROW_TRY(read_vocab(vocab, file));
  return read_merges(SPARROW_TRY(model.at("merges")), ids, file);
}

Status read_normalizer(const Json& normalizer, TokenizerFile& file) {
  const std::string type = SPARROW_TRY(SPARROW_TRY(normalizer.at("type")).as_string());
  if (type == "Sequence") {
    const Json list = SPARROW_TRY(normalizer.at("normalizers"));
    SPARROW_TRY(list.expect_array());
    for (size_t i = 0; i < list.size(); ++i) SPARROW_TRY(read_normalizer(list.element(i), file));
    return Ok{};
  }
  if (type == "NFC") return file.normal_forms.push_back(NormalForm::kNfc), Ok{};
  if (type == "NFD") return file.normal_forms.push_back(NormalForm::kNfd), Ok{};
  if (type == "NFKC") return file.normal_forms.push_back(NormalForm::kNfkc), Ok{};
  if (type == "NFKD") return file.normal_forms.push_back(NormalForm::kNfkd), Ok{};
  return unsupported(normalizer, "must be NFC, NFD, NFKC, NFKD or a Sequence of them");
}

Status read_split(const Json& split, TokenizerFile& file) {
  const Json pattern = SPARROW_TRY(split.at("pattern"));
  SplitRule rule;
  if (const auto regex = pattern.find("Regex")) {
    rule.pattern = SPARROW_TRY(regex->as_string());
  } else {
    rule.pattern = SPARROW_TRY(SPARROW_TRY(pattern.at("String")).as_string());
    rule.syntax = RegexSplitter::Syntax::kLiteral;
  }
  const std::string behavior = SPARROW_TRY(SPARROW_TRY(split.at("behavior")).as_string());
  const bool invert = SPARROW_TRY(split.bool_or("invert", false));
  if (behavior == "Removed") {
    rule.keep_matches = invert;
    rule.keep_gaps = !invert;
  } else if (behavior != "Isolated") {
    return unsupported(split, "must have the behavior Isolated or Removed");
  }
  file.split_rules.push_back(std::move(rule));
  return Ok{};
}

Status read_pretokenizer(const Json& pretokenizer, TokenizerFile& file) {
  const std::string type = SPARROW_TRY(SPARROW_TRY(pretokenizer.at("type")).as_string());
  if (type == "Sequence") {
    const Json list = SPARROW_TRY(pretokenizer.at("pretokenizers"));
    SPARROW_TRY(list.expect_array());
    for (size_t i = 0; i < list.size(); ++i) SPARROW_TRY(read_pretokenizer(list.element(i), file));
    return Ok{};
  }
  if (type == "Split") return read_split(pretokenizer, file);
  if (type == "Digits") {
    const bool each = SPARROW_TRY(pretokenizer.bool_or("individual_digits", false));
    file.split_rules.push_back({.pattern = each ? "\\p{N}" : "\\p{N}+"});
    return Ok{};
  }
  if (type == "ByteLevel") {
    SPARROW_TRY(expect_absent(pretokenizer, "add_prefix_space"));
    if (SPARROW_TRY(pretokenizer.bool_or("use_regex", true)))
      file.split_rules.push_back({.pattern = std::string(kGpt2Pattern)});
    return Ok{};
  }
  return unsupported(pretokenizer, "must be Split, Digits, ByteLevel or a Sequence of them");
}

// A token of the file that is there already gets the new flags; its id must be the same.
Status add_token(AddedToken token, const Json& where, TokenizerFile& file) {
  for (AddedToken& known : file.added) {
    if (known.content == token.content) {
      if (known.id != token.id) return where.error(strf("has the id {} elsewhere", known.id));
      known = std::move(token);
      return Ok{};
    }
    if (known.id == token.id) return where.error(strf("has the id of {}", json_quoted(known.content)));
  }
  const auto id = static_cast<size_t>(token.id);
  if (id >= file.tokens.size()) file.tokens.resize(id + 1);
  file.tokens[id].bytes = token.content;
  file.added.push_back(std::move(token));
  return Ok{};
}

Result<AddedToken> read_added_token(const Json& entry, int64_t id) {
  AddedToken token;
  token.content = SPARROW_TRY(SPARROW_TRY(entry.at("content")).as_string());
  token.id = static_cast<int32_t>(id);
  token.special = SPARROW_TRY(entry.bool_or("special", false));
  token.normalized = SPARROW_TRY(entry.bool_or("normalized", !token.special));
  token.single_word = SPARROW_TRY(entry.bool_or("single_word", false));
  token.lstrip = SPARROW_TRY(entry.bool_or("lstrip", false));
  token.rstrip = SPARROW_TRY(entry.bool_or("rstrip", false));
  return token;
}

Status read_added_tokens(const Json& list, TokenizerFile& file) {
  SPARROW_TRY(list.expect_array());
  for (size_t i = 0; i < list.size(); ++i) {
    const Json entry = list.element(i);
    const int64_t id = SPARROW_TRY(SPARROW_TRY(entry.at("id")).as_int(0, kMaxId));
    SPARROW_TRY(add_token(SPARROW_TRY(read_added_token(entry, id)), entry, file));
  }
  return Ok{};
}

// {"200000": {"content": ..}, ..}: what transformers adds to tokenizer.json when it loads one.
Status read_added_tokens_decoder(const Json& entries, TokenizerFile& file) {
  SPARROW_TRY(entries.expect_object());
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::string_view key = entries.key(i);
    const Json entry = entries.member(i);
    int64_t id = -1;
    const auto [end, code] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (code != std::errc() || end != key.data() + key.size() || id < 0 || id > kMaxId)
      return entry.error(strf("must have a token id from 0 to {} for its key", kMaxId));
    SPARROW_TRY(add_token(SPARROW_TRY(read_added_token(entry, id)), entry, file));
  }
  return Ok{};
}

// The id of a token that the configuration names, as a string or as an object with `content`.
Result<std::optional<int32_t>> named_token(const Json& config, std::string_view key,
                                           const TokenizerFile& file) {
  const auto value = config.find(key);
  if (!value) return std::optional<int32_t>();
  const Json content = value->is_object() ? SPARROW_TRY(value->at("content")) : *value;
  const std::string text = SPARROW_TRY(content.as_string());
  for (const AddedToken& token : file.added)
    if (token.content == text) return std::optional<int32_t>(token.id);
  for (size_t id = 0; id < file.tokens.size(); ++id)
    if (file.tokens[id].in_vocab && file.tokens[id].bytes == text)
      return std::optional<int32_t>(static_cast<int32_t>(id));
  return content.error("must be a token of the vocabulary");
}

Status read_config(const Json& config, TokenizerFile& file) {
  if (const auto entries = config.find("added_tokens_decoder"))
    SPARROW_TRY(read_added_tokens_decoder(*entries, file));
  file.bos = SPARROW_TRY(named_token(config, "bos_token", file));
  file.eos = SPARROW_TRY(named_token(config, "eos_token", file));
  file.unk = SPARROW_TRY(named_token(config, "unk_token", file));
  return Ok{};
}

}  // namespace

std::array<uint32_t, 256> byte_level_alphabet() {
  std::array<uint32_t, 256> alphabet{};
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    alphabet[byte] = printable ? byte : next++;
  }
  return alphabet;
}

Result<TokenizerFile> parse_tokenizer_file(std::string_view tokenizer_json, std::string_view config_json) {
  TokenizerFile file;
  const JsonDocument document = SPARROW_TRY(JsonDocument::parse(tokenizer_json, "tokenizer.json"));
  const Json root = document.root("tokenizer.json");
  SPARROW_TRY(root.expect_object());
  SPARROW_TRY(read_model(SPARROW_TRY(root.at("model")), file));
  if (const auto normalizer = root.find("normalizer")) SPARROW_TRY(read_normalizer(*normalizer, file));
  // Without one, whole texts would be single words, which no byte-level vocabulary is made for.
  SPARROW_TRY(read_pretokenizer(SPARROW_TRY(root.at("pre_tokenizer")), file));
  if (const auto added = root.find("added_tokens")) SPARROW_TRY(read_added_tokens(*added, file));
  if (config_json.empty()) return file;
  const JsonDocument config = SPARROW_TRY(JsonDocument::parse(config_json, "tokenizer_config.json"));
  SPARROW_TRY(config.root("tokenizer_config.json").expect_object());
  SPARROW_TRY(read_config(config.root("tokenizer_config.json"), file));
  return file;
}

}  // namespace sparrow
