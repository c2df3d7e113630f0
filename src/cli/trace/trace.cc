// SPDX-License-Identifier: Apache-2.0
// `sparrow trace`: runs a prompt and some greedy steps and writes what an oracle can be compared with.
#include <algorithm>
#include <array>
#include <cstring>

#include "checkpoint/safetensors.h"
#include "cli/args/token_ids.h"
#include "cli/commands.h"
#include "cli/load_model.h"
#include "cli/trace/media_chat.h"
#include "engine/cpu/sampler.h"
#include "model/vision/segments.h"
#include "model/vision/tower.h"

namespace sparrow::cli {
namespace {

// Everything that goes into the file, in its order of arrival.
struct Trace {
  std::vector<int32_t> input_ids, positions, greedy_ids;
  std::vector<float> logits, greedy_logits;
  Capture capture;
  std::vector<RequestMedium> media;
  struct Encoded {
    std::array<int32_t, 3> grid;
    std::vector<float> tower, features;
  };
  std::vector<Encoded> encoded;  // by medium
};

// Negative positions count from the end; the result is ascending and unique.
Result<std::vector<int32_t>> wanted_positions(const std::string& list, int num_tokens) {
  std::vector<int32_t> positions{-1};
  if (!list.empty()) positions = SPARROW_TRY(parse_int_list(list, "--positions"));
  for (int32_t& position : positions) {
    if (position < -num_tokens || position >= num_tokens)
      return Error{Errc::kInvalidArgument,
                   strf("--positions {} is not in a prompt of {} tokens", position, num_tokens)};
    if (position < 0) position += num_tokens;
  }
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  return positions;
}

// Takes the row of the last position out again.
void drop_last_row(Trace& trace) {
  const auto drop = [rows = trace.positions.size()](auto& values) {
    values.resize(values.size() / rows * (rows - 1));
  };
  drop(trace.logits);
  for (auto& hidden : trace.capture.hidden) drop(hidden);
  for (auto& selected : trace.capture.selected_blocks) drop(selected);
  trace.positions.pop_back();
}

// Runs the prompt chunk by chunk, keeps what is wanted, and returns the greedy id after its last token.
Result<int32_t> run_prompt(SequenceRunner& runner, Sequence& sequence, int chunk, Trace& trace) {
  const int total = static_cast<int>(trace.input_ids.size());
  const bool last_wanted = trace.positions.back() == total - 1;
  if (!last_wanted) trace.positions.push_back(total - 1);
  for (int begin = 0; begin < total; begin += chunk) {
    const int end = std::min(begin + chunk, total);
    std::vector<int32_t> rows;
    for (const int32_t position : trace.positions)
      if (position >= begin && position < end) rows.push_back(position - begin);
    SPARROW_TRY(runner.run(sequence, end - begin, rows, &trace.capture));
    const Tensor logits = runner.logits();
    trace.logits.insert(trace.logits.end(), logits.as<float>(), logits.as<float>() + logits.numel());
  }
  const int64_t vocab = static_cast<int64_t>(trace.logits.size() / trace.positions.size());
  const auto id = argmax({trace.logits.data() + trace.logits.size() - vocab, static_cast<size_t>(vocab)});
  if (!id) return Error{Errc::kCorrupt, "the logits after the prompt are not finite numbers"};
  if (!last_wanted) drop_last_row(trace);
  return *id;
}

Status run_greedy(SequenceRunner& runner, Sequence& sequence, int steps, Trace& trace) {
  for (int step = 0; step < steps; ++step) {
    sequence.ids.push_back(trace.greedy_ids.back());
    constexpr int32_t kOnlyRow = 0;
    SPARROW_TRY(runner.run(sequence, 1, {&kOnlyRow, 1}));
    const Tensor logits = runner.logits();
    const std::span<const float> row(logits.as<float>(), logits.numel());
    trace.greedy_logits.insert(trace.greedy_logits.end(), row.begin(), row.end());
    const auto id = argmax(row);
    if (!id) return Error{Errc::kCorrupt, strf("the logits of greedy step {} are not finite numbers", step)};
    trace.greedy_ids.push_back(*id);
  }
  return Ok{};
}

void append(std::vector<float>& to, const Tensor& rows) {
  for (int64_t r = 0; r < rows.rows(); ++r)
    for (int64_t c = 0; c < rows.cols(); ++c)
      to.push_back(rows.dtype == DType::kF32 ? rows.row<float>(r)[c] : to_float(rows.row<BFloat16>(r)[c]));
}

// Each medium once more, by itself: the numbers that its placeholders had, and those on the way.
void encode_media(const ModelConfig& config, const VisionWeights& weights, int threads, Trace& trace) {
  const VisionConfig& vision = *config.vision;
  const VisionTower tower(config, weights);
  ThreadPool pool(threads > 0 ? threads : ThreadPool::default_size());
  Scratch scratch;
  Exec exec{pool, scratch, ops::detect_cpu_isa()};
  for (const RequestMedium& medium : trace.media) {
    const PatchGrid& grid = medium.grid;
    Trace::Encoded& encoded = trace.encoded.emplace_back();
    encoded.grid = {grid.t, grid.h, grid.w};
    const int64_t tokens = tokens_of(vision, grid);
    std::vector<std::byte> memory(static_cast<size_t>(tokens * config.hidden_size) * size_of(config.dtype));
    const Tensor features(memory.data(), config.dtype, {tokens, config.hidden_size});
    const Tensor patches(const_cast<float*>(medium.patches->data()), DType::kF32,
                         {grid.patches(), patch_numbers(vision)});
    tower.encode(exec, patches, {&grid, 1}, features, [&](TowerStage stage, int layer, const Tensor& rows) {
      if (stage == TowerStage::kLayer && layer == vision.num_layers - 1) append(encoded.tower, rows);
    });
    append(encoded.features, features);
  }
}

// The names and shapes of tests/golden/README.md. Selections are stored [index heads, positions, top-k].
class TraceFile {
 public:
  void add(const std::string& name, DType dtype, std::vector<int64_t> shape, const void* data) {
    specs_.push_back({name, dtype, std::move(shape)});
    data_.push_back(static_cast<const std::byte*>(data));
  }
  Status write(const std::filesystem::path& path) {
    SafetensorsWriter writer = SPARROW_TRY(SafetensorsWriter::create(path, specs_));
    for (size_t i = 0; i < specs_.size(); ++i) SPARROW_TRY(writer.write(i, {data_[i], specs_[i].bytes()}));
    return writer.finish();
  }

 private:
  std::vector<TensorSpec> specs_;
  std::vector<const std::byte*> data_;
};

std::vector<int32_t> heads_first(const std::vector<int32_t>& rows, int64_t num_rows, int64_t heads,
                                 int64_t top_k) {
  std::vector<int32_t> result(rows.size());
  for (int64_t row = 0; row < num_rows; ++row)
    for (int64_t head = 0; head < heads; ++head)
      std::memcpy(&result[(head * num_rows + row) * top_k], &rows[(row * heads + head) * top_k],
                  top_k * sizeof(int32_t));
  return result;
}

Status write_trace(const Trace& trace, const ModelConfig& config, const std::filesystem::path& path) {
  const auto count = [](const auto& values) { return static_cast<int64_t>(values.size()); };
  const int64_t rows = count(trace.positions), vocab = config.vocab_size;
  TraceFile file;
  file.add("input_ids", DType::kI32, {count(trace.input_ids)}, trace.input_ids.data());
  file.add("logit_positions", DType::kI32, {rows}, trace.positions.data());
  file.add("logits", DType::kF32, {rows, vocab}, trace.logits.data());
  file.add("greedy_ids", DType::kI32, {count(trace.greedy_ids)}, trace.greedy_ids.data());
  if (!trace.greedy_logits.empty())
    file.add("greedy_logits", DType::kF32, {count(trace.greedy_logits) / vocab, vocab},
             trace.greedy_logits.data());
  for (size_t layer = 0; layer < trace.capture.hidden.size(); ++layer)
    file.add(strf("hidden.{}", layer), DType::kF32, {rows, config.hidden_size},
             trace.capture.hidden[layer].data());
  std::vector<std::vector<int32_t>> selections;
  selections.reserve(config.num_layers);
  for (size_t layer = 0; layer < trace.capture.selected_blocks.size(); ++layer) {
    if (!config.layer_is_sparse[layer]) continue;
    selections.push_back(
        heads_first(trace.capture.selected_blocks[layer], rows, config.num_kv_heads, config.top_k_blocks));
    file.add(strf("selected_blocks.{}", layer), DType::kI32, {config.num_kv_heads, rows, config.top_k_blocks},
             selections.back().data());
  }
  for (size_t i = 0; i < trace.encoded.size(); ++i) {
    const Trace::Encoded& encoded = trace.encoded[i];
    const int64_t patches = trace.media[i].grid.patches();
    const auto add = [&](const char* name, std::vector<int64_t> shape, const std::vector<float>& values) {
      file.add(strf("media.{}.{}", i, name), DType::kF32, std::move(shape), values.data());
    };
    file.add(strf("media.{}.grid_thw", i), DType::kI32, {3}, encoded.grid.data());
    add("pixel_values", {patches, patch_numbers(*config.vision)}, *trace.media[i].patches);
    add("tower", {patches, config.vision->hidden_size}, encoded.tower);
    add("features", {count(encoded.features) / config.hidden_size, config.hidden_size}, encoded.features);
  }
  return file.write(path);
}

}  // namespace

Status run_trace(const TraceOptions& options) {
  Trace trace;
  const bool is_chat = !options.messages.empty();
  const auto& prompt = is_chat ? options.messages : options.ids;
  if (std::error_code ec; std::filesystem::equivalent(prompt, options.out, ec))
    return Error{Errc::kInvalidArgument,
                 strf("--out {} is the file of the prompt, which it would overwrite: name another",
                      options.out.string())};
  if (!is_chat) trace.input_ids = SPARROW_TRY(read_id_file(options.ids));
  const Checkpoint checkpoint = SPARROW_TRY(load_checkpoint(options.model, {.vision = is_chat}));
  ModelConfig config = checkpoint.config();
  if (is_chat) {
    MediaChat chat = SPARROW_TRY(read_media_chat(options.messages, options.model, config));
    trace.input_ids = std::move(chat.ids);
    trace.media = std::move(chat.media);
    encode_media(config, *checkpoint.weights().vision, options.threads, trace);
  }
  config.rope.round_frequencies = options.round_frequencies;
  SPARROW_TRY(check_prompt(trace.input_ids, config.vocab_size, options.decode, config.max_positions));
  const int num_tokens = static_cast<int>(trace.input_ids.size());
  trace.positions = SPARROW_TRY(wanted_positions(options.positions, num_tokens));

  const auto runner = SPARROW_TRY(start_runner(config, checkpoint, int64_t{num_tokens} + options.decode,
                                               options.threads, options.shuffle_blocks));
  Sequence sequence = runner->new_sequence();
  sequence.ids = trace.input_ids;
  sequence.segments = media_of(trace.media, 0, config.vision, "").segments;
  const int chunk = options.chunk > 0 ? options.chunk : num_tokens;
  trace.greedy_ids = {SPARROW_TRY(run_prompt(*runner, sequence, chunk, trace))};
  SPARROW_TRY(run_greedy(*runner, sequence, options.decode, trace));
  return write_trace(trace, config, options.out);
}

}  // namespace sparrow::cli
