// SPDX-License-Identifier: Apache-2.0
#include "cli/run/generate_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <deque>
#include <fstream>
#include <system_error>

#include "base/progress.h"
#include "cli/run/prompts_file.h"
#include "cli/run/stream_set.h"

namespace sparrow::cli {
namespace {

constexpr std::chrono::milliseconds kProgressInterval{100};
constexpr int kExitSomeFailed = 1;

class FileJob {
 public:
  FileJob(Engine& engine, const GenerateOptions& options, const Request& defaults, const Tokenizer* tokenizer)
      : engine_(engine), options_(options), defaults_(defaults), tokenizer_(tokenizer) {}

  Result<int> run() {
    SPARROW_TRY(open());
    ProgressBar bar("generating", ProgressBar::Unit::kItems);
    for (;;) {
      while (!in_done_ && static_cast<int>(streams_.size()) < options_.concurrency) start_next_line();
      if (streams_.size() == 0 && in_done_) break;
      streams_.take(kProgressInterval,
                    [this](size_t tag, TokenEvent event) { apply(tag, std::move(event)); });
      SPARROW_TRY(write_complete_lines());
      bar.update(num_written_, std::max<uint64_t>(num_lines_, 1));
    }
    SPARROW_TRY(write_complete_lines());
    bar.update(num_written_, std::max<uint64_t>(num_lines_, 1));
    bar.finish();
    if (num_errors_ == 0) return 0;
    std::fputs(strf("{} of {} prompts failed: their lines in {} say why\n", num_errors_, num_written_,
                    options_.out.string())
                   .c_str(),
               stderr);
    return kExitSomeFailed;
  }

 private:
  Status open() {
    in_.open(*options_.prompts);
    if (!in_) return Error{Errc::kNotFound, strf("--prompts {} cannot be read", options_.prompts->string())};
    // Counted first, so that the bar knows its end.
    for (std::string text; std::getline(in_, text);) num_lines_ += !blank(text);
    in_.clear();
    in_.seekg(0);
    out_.open(options_.out, std::ios::trunc);
    if (!out_) return Error{Errc::kIo, strf("--out {} cannot be written", options_.out.string())};
    return Ok{};
  }

  static bool blank(const std::string& text) { return text.find_first_not_of(" \t\r") == std::string::npos; }

  void start_next_line() {
    std::string text;
    do {
      ++line_number_;
      if (!std::getline(in_, text)) {
        in_done_ = true;
        return;
      }
    } while (blank(text));
    PromptLine line{.id = "null", .request = defaults_};
    Status parsed = parse_prompt_line(text, tokenizer_, line);
    lines_.push_back({.id = line.id, .number = line_number_});
    if (!parsed.ok()) return fail(lines_.back(), parsed.error().message);
    auto stream = engine_.submit(std::move(line.request));
    if (!stream.ok()) return fail(lines_.back(), stream.error().message);
    streams_.add(num_written_ + lines_.size() - 1, std::move(stream).value());
  }

  static void fail(OutputLine& line, const std::string& message) {
    line.error = message;
    line.complete = true;
  }

  void apply(size_t tag, TokenEvent event) {
    OutputLine& line = lines_[tag - num_written_];
    if (event.id) line.output_ids.push_back(*event.id);
    line.cached_tokens = event.cached_tokens;
    if (!event.finish) return;
    line.finish = *event.finish;
    line.complete = true;
    line.error = std::move(event.error);
  }

  // In the order of the input, as far as there is no gap.
  Status write_complete_lines() {
    for (; !lines_.empty() && lines_.front().complete; lines_.pop_front()) {
      out_ << format_output_line(lines_.front(), tokenizer_) << '\n';
      num_errors_ += !lines_.front().error.empty();
      ++num_written_;
    }
    out_.flush();
    if (!out_)
      return Error{Errc::kIo, strf("--out {} cannot be written: {}", options_.out.string(),
                                   std::generic_category().message(errno))};
    return Ok{};
  }

  Engine& engine_;
  const GenerateOptions& options_;
  const Request& defaults_;
  const Tokenizer* tokenizer_;
  std::ifstream in_;
  std::ofstream out_;
  bool in_done_ = false;
  int64_t line_number_ = 0;
  uint64_t num_lines_ = 0, num_written_ = 0, num_errors_ = 0;
  std::deque<OutputLine> lines_;  // not written yet
  StreamSet streams_;
};

}  // namespace

Status check_files(const GenerateOptions& options) {
  std::error_code ignored;
  // It is read twice, which a pipe would not survive.
  if (!std::filesystem::is_regular_file(*options.prompts, ignored) ||
      ::access(options.prompts->c_str(), R_OK) != 0)
    return Error{Errc::kNotFound,
                 strf("--prompts {} cannot be read: it must be a regular file", options.prompts->string())};
  const std::filesystem::path& out = options.out;
  const auto folder = out.has_parent_path() ? out.parent_path() : std::filesystem::path(".");
  const bool exists = std::filesystem::exists(out, ignored);
  if (std::filesystem::is_directory(out, ignored) || ::access((exists ? out : folder).c_str(), W_OK) != 0)
    return Error{Errc::kIo, strf("--out {} cannot be written", out.string())};
  if (exists && std::filesystem::equivalent(*options.prompts, out, ignored))
    return Error{
        Errc::kInvalidArgument,
        strf("--out {} is the file of --prompts, which it would overwrite: name another", out.string())};
  return Ok{};
}

Result<int> generate_file(Engine& engine, const GenerateOptions& options, const Request& defaults,
                          const Tokenizer* tokenizer) {
  return FileJob(engine, options, defaults, tokenizer).run();
}

}  // namespace sparrow::cli
