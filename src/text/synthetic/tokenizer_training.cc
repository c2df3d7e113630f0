// SPDX-License-Identifier: Apache-2.0
#include "text/synthetic/tokenizer_training.h"

#include <algorithm>
#include <array>
#include <map>
#include <queue>
#include <set>
#include <vector>

#include "base/json/json_writer.h"
#include "base/utf8.h"
#include "text/m3_tokens.h"
#include "text/tokenizer/pretokenize.h"
#include "text/tokenizer/tokenizer_file.h"

namespace sparrow {
namespace {

using Pair = std::pair<int32_t, int32_t>;

struct Word {
  std::vector<int32_t> symbols;
  int64_t count;
};

// Words of the corpus in the order of their text, so that nothing depends on how a hash table is laid out.
Result<std::vector<Word>> count_words(std::string_view corpus) {
  const Pretokenizer pretokenizer = SPARROW_TRY(Pretokenizer::make({{.pattern = std::string(kM3Pattern)}}));
  const std::vector<std::string_view> cut = SPARROW_TRY(pretokenizer.split(corpus));
  std::map<std::string_view, int64_t> counts;
  for (const std::string_view word : cut) ++counts[word];
  std::vector<Word> words;
  words.reserve(counts.size());
  for (const auto& [text, count] : counts) {
    Word word{{}, count};
    for (const char c : text) word.symbols.push_back(static_cast<unsigned char>(c));
    words.push_back(std::move(word));
  }
  return words;
}

// A blank and letters: what may stand behind another word.
bool is_inner_word(std::string_view text) {
  return text.size() > 1 && text[0] == ' ' && std::all_of(text.begin() + 1, text.end(), [](char c) {
           return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
         });
}

// Pairs of neighbours with their counts and the words they occur in, kept up to date while pairs are merged.
class PairCounts {
 public:
  explicit PairCounts(std::vector<Word> words) : words_(std::move(words)) {
    for (size_t w = 0; w < words_.size(); ++w) add(w, +1);
    for (const auto& [pair, info] : pairs_) queue_.push({info.count, pair});
  }

  // The most frequent pair of those that occur often enough, of equals the one with the lower ids.
  bool most_frequent(int64_t at_least, Pair& pair) {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      const auto found = pairs_.find(top.pair);
      if (found == pairs_.end() || found->second.count < at_least) continue;
      if (found->second.count == top.count) {
        pair = top.pair;
        return true;
      }
      queue_.push({found->second.count, top.pair});  // out of date
    }
    return false;
  }

  // The tokens that are whole words and go on a line, the most frequent first.
  std::vector<int32_t> whole_words(const std::vector<std::string>& texts) const {
    std::vector<Word> found;
    for (const Word& word : words_)
      if (word.symbols.size() == 1 && is_inner_word(texts[static_cast<size_t>(word.symbols[0])]))
        found.push_back(word);
    std::stable_sort(found.begin(), found.end(),
                     [](const Word& a, const Word& b) { return a.count > b.count; });
    std::vector<int32_t> ids;
    for (const Word& word : found) ids.push_back(word.symbols[0]);
    return ids;
  }

  void merge(Pair pair, int32_t merged) {
    const std::set<size_t> where = std::move(pairs_[pair].words);
    touched_.clear();
    for (const size_t w : where) {
      add(w, -1);
      std::vector<int32_t>& symbols = words_[w].symbols;
      size_t out = 0;
      for (size_t i = 0; i < symbols.size(); ++out) {
        const bool here = i + 1 < symbols.size() && symbols[i] == pair.first && symbols[i + 1] == pair.second;
        symbols[out] = here ? merged : symbols[i];
        i += here ? 2 : 1;
      }
      symbols.resize(out);
      add(w, +1);
    }
    pairs_.erase(pair);
    for (const Pair& p : touched_)
      if (const auto found = pairs_.find(p); found != pairs_.end()) queue_.push({found->second.count, p});
  }

 private:
  struct Info {
    int64_t count = 0;
    std::set<size_t> words;
  };
  struct Candidate {
    int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void add(size_t w, int sign) {
    const Word& word = words_[w];
    for (size_t i = 0; i + 1 < word.symbols.size(); ++i) {
      const Pair pair{word.symbols[i], word.symbols[i + 1]};
      Info& info = pairs_[pair];
      info.count += sign * word.count;
      if (sign < 0) {
        info.words.erase(w);
      } else {
        info.words.insert(w);
        touched_.insert(pair);
      }
    }
  }

  std::vector<Word> words_;
  std::map<Pair, Info> pairs_;
  std::priority_queue<Candidate> queue_;
  std::set<Pair> touched_;  // by the merge under way
};

// The bytes of the tokens that the merges make.
std::vector<std::string> token_texts(const std::vector<Pair>& merges) {
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  for (const auto& [left, right] : merges)
    texts.push_back(texts[static_cast<size_t>(left)] + texts[static_cast<size_t>(right)]);
  return texts;
}

// Pairs of words, those of frequent words first.
void add_phrases(const std::vector<int32_t>& words, size_t max_merges, std::vector<Pair>& merges) {
  for (size_t sum = 1; sum < 2 * words.size(); ++sum)
    for (size_t left = sum < words.size() ? 0 : sum - words.size() + 1; left < words.size() && left <= sum;
         ++left) {
      if (merges.size() == max_merges) return;
      if (2 * left != sum) merges.emplace_back(words[left], words[sum - left]);
    }
}

std::vector<Pair> learn_merges(std::vector<Word> words, size_t max_merges, SpareIds spare) {
  PairCounts counts(std::move(words));
  std::vector<Pair> merges;
  Pair pair;
  const int64_t at_least = spare == SpareIds::kPhrases ? 1 : 2;
  while (merges.size() < max_merges && counts.most_frequent(at_least, pair)) {
    counts.merge(pair, static_cast<int32_t>(256 + merges.size()));
    merges.push_back(pair);
  }
  if (spare == SpareIds::kPhrases) add_phrases(counts.whole_words(token_texts(merges)), max_merges, merges);
  return merges;
}

void write_added_tokens(JsonWriter& json, int first_id) {
  json.key("added_tokens").begin_array();
  for (size_t i = 0; i < kM3AddedTokens.size(); ++i) {
    json.begin_object()
        .key("id")
        .integer(first_id + static_cast<int>(i))
        .key("content")
        .string(kM3AddedTokens[i]);
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) json.key(flag).boolean(false);
    json.key("special").boolean(!is_markup_token(kM3AddedTokens[i])).end_object();
  }
  json.end_array();
}

void write_pretokenizer(JsonWriter& json) {
  const auto byte_level = [&json] {
    json.begin_object().key("type").string("ByteLevel").key("add_prefix_space").boolean(false);
    json.key("trim_offsets").boolean(true).key("use_regex").boolean(false).end_object();
  };
  json.key("pre_tokenizer").begin_object().key("type").string("Sequence").key("pretokenizers").begin_array();
  json.begin_object().key("type").string("Split").key("pattern");
  json.begin_object().key("Regex").string(kM3Pattern).end_object();
  json.key("behavior").string("Isolated").key("invert").boolean(false).end_object();
  byte_level();
  json.end_array().end_object();
  json.key("post_processor").null().key("decoder");
  byte_level();
}

void write_model(JsonWriter& json, const std::vector<Pair>& merges, int first_added_id) {
  const auto alphabet = byte_level_alphabet();
  std::vector<std::string> tokens(256);
  for (size_t byte = 0; byte < 256; ++byte) append_utf8(tokens[byte], alphabet[byte]);
  const auto text = [&tokens](int32_t id) -> const std::string& { return tokens[static_cast<size_t>(id)]; };
  for (const auto& [left, right] : merges) tokens.push_back(text(left) + text(right));
  json.key("model").begin_object().key("type").string("BPE");
  for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"})
    json.key(key).null();
  for (const char* key : {"fuse_unk", "byte_fallback", "ignore_merges"}) json.key(key).boolean(false);
  json.key("vocab").begin_object();
  for (size_t id = 0; id < tokens.size(); ++id) json.key(tokens[id]).integer(id);
  // Readers number added tokens on from the vocabulary unless they find them in it.
  if (static_cast<int>(tokens.size()) < first_added_id)
    for (size_t i = 0; i < kM3AddedTokens.size(); ++i)
      json.key(kM3AddedTokens[i]).integer(first_added_id + static_cast<int>(i));
  json.end_object().key("merges").begin_array();
  for (const auto& [left, right] : merges) json.string(text(left) + " " + text(right));
  json.end_array().end_object();
}

}  // namespace

Result<std::string> train_tokenizer(std::string_view corpus, int vocab_size, SpareIds spare) {
  const int first_added_id = vocab_size - kM3ReservedRows;
  if (first_added_id < 256)
    return Error{Errc::kInvalidArgument,
                 strf("vocab_size must be at least {}, got {}", 256 + kM3ReservedRows, vocab_size)};
  const std::string text = replace_invalid_utf8(corpus);
  const auto merges =
      learn_merges(SPARROW_TRY(count_words(text)), static_cast<size_t>(first_added_id - 256), spare);
  JsonWriter json;
  json.begin_object().key("version").string("1.0").key("truncation").null().key("padding").null();
  write_added_tokens(json, first_added_id);
  json.key("normalizer").null();
  write_pretokenizer(json);
  write_model(json, merges, first_added_id);
  json.end_object();
  return json.take();
}

std::string trained_tokenizer_config() {
  JsonWriter json;
  json.begin_object()
      .key("tokenizer_class")
      .string("GPT2TokenizerFast")
      .key("add_prefix_space")
      .boolean(false);
  json.key("bos_token").string(kM3Bos).key("eos_token").string(kM3Eos).key("unk_token").string(kM3Unk);
  json.key("clean_up_tokenization_spaces").boolean(false).end_object();
  return json.take();
}

}  // namespace sparrow
