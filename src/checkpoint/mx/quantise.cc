// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/mx/quantise.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "base/files/created_files.h"
#include "base/files/mapped_file.h"
#include "base/json/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/mx/quantised_config.h"
#include "checkpoint/mx/tensor_moves.h"
#include "checkpoint/tensor_table.h"

namespace sparrow {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxConfigBytes = size_t{4} << 20;
constexpr uintmax_t kMaxCopiedBytes = uintmax_t{256} << 20;  // tokenizers, templates, licences
constexpr std::string_view kConfig = "config.json", kIndex = "model.safetensors.index.json";

Error refused(std::string message) {
  return {Errc::kInvalidArgument, std::move(message)};
}

Status check_folders(const QuantiseOptions& options) {
  std::error_code ec;
  if (!fs::is_directory(options.from, ec))
    return Error{Errc::kNotFound, strf("{} is no folder: name that of a checkpoint", quoted(options.from))};
  if (!fs::exists(options.to, ec)) return Ok{};
  if (fs::equivalent(options.from, options.to, ec))
    return refused(strf("{} is the source itself: name another folder to write to", quoted(options.to)));
  if (!fs::is_directory(options.to, ec)) return refused(strf("{} is no folder", quoted(options.to)));
  const fs::directory_iterator first(options.to, ec);
  if (ec) return Error{Errc::kIo, strf("cannot read {}: {}", quoted(options.to), ec.message())};
  if (first != fs::directory_iterator())
    return refused(
        strf("{} holds files already, such as {}: name a new folder, or remove what an "
             "interrupted run has left there",
             quoted(options.to), first->path().filename().string()));
  return Ok{};
}

// Tokenizer, template and whatever else lies beside the weights, but for files that are written anew. Returns
// what is left out: large files, other weights, folders, and links to nothing.
Result<std::vector<std::string>> copy_small_files(const fs::path& from, const std::set<std::string>& written,
                                                  CreatedFiles& to) {
  std::error_code ec;
  std::vector<std::string> names, left_out;
  for (fs::directory_iterator file(from, ec); !ec && file != fs::directory_iterator(); file.increment(ec)) {
    const std::string name = file->path().filename();
    if (written.contains(name) || name.starts_with('.')) continue;
    std::error_code no_file;
    const bool is_small = file->is_regular_file(no_file) && file->file_size(no_file) <= kMaxCopiedBytes &&
                          file->path().extension() != ".safetensors";
    (is_small ? names : left_out).push_back(name + (file->is_directory(no_file) ? "/" : ""));
  }
  if (ec) return Error{Errc::kIo, strf("cannot read the folder {}: {}", quoted(from), ec.message())};
  for (const std::string& name : names) {
    const fs::path copy = SPARROW_TRY(to.add(name));
    if (!fs::copy_file(from / name, copy, fs::copy_options::overwrite_existing, ec))
      return Error{Errc::kIo,
                   strf("cannot copy {} to {}: {}", quoted(from / name), quoted(copy), ec.message())};
  }
  std::ranges::sort(left_out);
  return left_out;
}

std::string index_text(const std::map<std::string, std::string>& files_by_tensor, uint64_t total_bytes) {
  std::string weight_map;
  for (const auto& [tensor, file] : files_by_tensor)
    weight_map +=
        strf("{}\n    {}: {}", weight_map.empty() ? "" : ",", json_quoted(tensor), json_quoted(file));
  return strf("{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{{}\n  }}\n}}\n", total_bytes,
              weight_map);
}

void add_to(QuantisedPart& part, const TensorMove& move) {
  part.bytes_before += move.bytes_before();
  part.bytes_after += move.bytes_after;
  if (!move.rounds()) return;
  ++part.matrices;
  part.error.add(move.error);
  if (move.error.relative() < part.worst) return;
  part.worst = move.error.relative();
  part.worst_matrix = move.name;
}

}  // namespace

Result<QuantiseReport> quantise_checkpoint(const QuantiseOptions& options, const ProgressFn& progress) {
  SPARROW_TRY(check_folders(options));
  const Checkpoint source = SPARROW_TRY(Checkpoint::open(options.from, {.prefault = false}));
  const ModelConfig& config = source.config();
  std::string config_json = SPARROW_TRY(read_text_file(options.from / kConfig, kMaxConfigBytes));
  MovePlan plan = plan_moves(source, options.format);
  uint64_t total_bytes = 0;
  for (const ShardMoves& shard : plan.shards) total_bytes += shard.bytes_after();
  CreatedFiles target = SPARROW_TRY(CreatedFiles::create(options.to, total_bytes));

  TensorMover mover(plan.shards, progress);
  std::map<std::string, std::string> files_by_tensor;
  std::set<std::string> written = {std::string(kConfig), std::string(kIndex)};
  std::array<QuantisedPart, kNumLedgerParts> parts;
  for (ShardMoves& shard : plan.shards) {
    const std::string file = shard.file->path().filename();
    SPARROW_TRY(mover.run(shard, SPARROW_TRY(target.add(file))));
    written.insert(file);
    for (const TensorSpec& spec : shard.specs) files_by_tensor.emplace(spec.name, file);
    for (const TensorMove& move : shard.moves)
      if (move.part) add_to(parts[static_cast<size_t>(*move.part)], move);
  }
  mover.finish();

  QuantiseReport report{.from = config.quant};
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].part = static_cast<LedgerPart>(i);
    if (parts[i].bytes_after > 0) report.parts.push_back(std::move(parts[i]));
  }
  report.left_out = SPARROW_TRY(copy_small_files(options.from, written, target));
  for (const ShardMoves& shard : plan.shards)
    report.left_out.insert(report.left_out.end(), shard.left_out.begin(), shard.left_out.end());
  SPARROW_TRY(write_text_file(SPARROW_TRY(target.add(kIndex)), index_text(files_by_tensor, total_bytes)));
  if (config.quant != options.format)
    config_json = SPARROW_TRY(quantised_config_json(config_json, plan.config));
  SPARROW_TRY(write_text_file(SPARROW_TRY(target.add(kConfig)), config_json));
  target.keep();
  return report;
}

}  // namespace sparrow
