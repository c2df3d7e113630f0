// SPDX-License-Identifier: Apache-2.0
#include "model/synthetic.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/json.h"
#include "base/mapped_file.h"
#include "base/thread_pool.h"
#include "model/census.h"
#include "model/config.h"
#include "model/safetensors.h"

namespace sparrow {
namespace {

constexpr size_t kTargetShardBytes = 5'000'000'000;
constexpr int64_t kChunkElements = 1 << 20;
// Elements that share one draw of 64 bits.
constexpr int64_t kPerDraw = 4;

uint64_t mix(uint64_t x) {  // splitmix64's finaliser
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t draw(uint64_t key, int64_t counter) {
  return mix(key + static_cast<uint64_t>(counter) * 0x9e3779b97f4a7c15u);
}

uint64_t key_of(std::string_view name, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return mix(hash ^ mix(seed + 1));
}

// Uniform in mean +- amplitude. A narrow spread of simple shape keeps generation as fast as the disk.
struct Distribution {
  float mean, amplitude;
};

Distribution with_std(double std) {
  return {0.0f, static_cast<float>(std * std::sqrt(3.0))};
}

// Chosen so that activations stay of order 1 and the logits spread by about 2.5.
Distribution distribution_of(const TensorSpec& spec, const ModelConfig& config) {
  const auto has = [&](std::string_view part) { return spec.name.find(part) != std::string::npos; };
  if (has("e_score_correction_bias")) return {0.0f, 0.05f};
  if (has(".bias")) return {0.0f, 0.02f};
  if (has("layer_norm") || has("pre_layrnorm")) return {1.0f, 0.1f};
  // Sharper attention than at random: which keys a query sees has to matter to the output.
  if (has(".q_norm") || has(".k_norm")) return {0.5f, 0.2f};
  if (has("norm.weight")) return {0.0f, 0.1f};  // text norms scale by 1 + weight
  if (has("embed_tokens")) return with_std(0.5);
  int64_t inputs = 1;
  for (size_t d = 1; d < spec.shape.size(); ++d) inputs *= spec.shape[d];
  const double unit = 1.0 / std::sqrt(static_cast<double>(inputs));
  if (has("lm_head")) return with_std(2.5 * unit);
  // What is added to the residual stream, twice in each layer.
  if (has("o_proj") || has("down_proj") || has(".w2."))
    return with_std(unit / std::sqrt(2.0 * config.num_layers));
  return with_std(unit);
}

BFloat16 convert(float x, BFloat16) {
  return to_bf16(x);
}
float convert(float x, float) {
  return x;
}

// Elements [first, first + count) of a tensor; `first` is a multiple of kPerDraw.
template <typename T>
void fill_floats(uint64_t key, const Distribution& of, int64_t first, int64_t count, T* out) {
  const float step = of.amplitude * 0x1p-15f;
  const auto value = [&](uint64_t bits) {
    return convert(of.mean + step * static_cast<float>(static_cast<int16_t>(bits)), T{});
  };
  int64_t i = 0;
  for (; i + kPerDraw <= count; i += kPerDraw) {
    const uint64_t bits = draw(key, (first + i) / kPerDraw);
    for (int64_t k = 0; k < kPerDraw; ++k) out[i + k] = value(bits >> (16 * k));
  }
  if (i == count) return;
  const uint64_t bits = draw(key, (first + i) / kPerDraw);
  for (int64_t k = 0; i + k < count; ++k) out[i + k] = value(bits >> (16 * k));
}

constexpr float kE4M3Max = 448.0f;

// The power of two that brings the amplitude just below the largest e4m3 value.
int scale_exponent(const Distribution& of) {
  return static_cast<int>(std::ceil(std::log2(of.amplitude / kE4M3Max)));
}

// 256 codes of evenly spaced values: a random byte picks one.
std::array<uint8_t, 256> code_table(const Distribution& of) {
  const float top = of.amplitude / std::ldexp(1.0f, scale_exponent(of));
  std::array<uint8_t, 256> table{};
  for (size_t i = 0; i < table.size(); ++i) {
    const float wanted = top * (static_cast<float>(i) - 127.5f) / 128.0f;
    float best = INFINITY;
    for (int code = 0; code < 256; ++code) {
      const float distance = std::fabs(e4m3_to_float(static_cast<uint8_t>(code)) - wanted);
      if (!(distance < best)) continue;
      best = distance;
      table[i] = static_cast<uint8_t>(code);
    }
  }
  return table;
}

void fill_bytes(uint64_t key, int64_t first, int64_t count, const std::array<uint8_t, 256>& table,
                uint8_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = first + i;
    out[i] = table[(draw(key, at / 8) >> (8 * (at % 8))) & 0xff];
  }
}

// What turns random bits into the bytes of one tensor.
struct Generator {
  DType dtype;
  uint64_t key;
  Distribution distribution;
  std::array<uint8_t, 256> table{};  // of one-byte types

  Generator(const TensorSpec& spec, const ModelConfig& config, uint64_t seed)
      : dtype(spec.dtype), key(key_of(spec.name, seed)), distribution(distribution_of(spec, config)) {
    if (dtype == DType::kF8E4M3) table = code_table(distribution);
    if (dtype != DType::kU8) return;
    // The weight's distribution, not the scale's: same name up to the suffix, but 32 times the inputs.
    TensorSpec weight = spec;
    weight.shape[1] *= 32;
    const int biased = 127 + scale_exponent(distribution_of(weight, config));
    // Two neighbouring exponents, so that a scale used for the wrong group shows.
    for (size_t i = 0; i < table.size(); ++i)
      table[i] = static_cast<uint8_t>(biased - static_cast<int>(i % 2));
  }

  void fill(int64_t first, int64_t count, std::byte* out) const {
    if (dtype == DType::kF32)
      return fill_floats(key, distribution, first, count, reinterpret_cast<float*>(out));
    if (dtype == DType::kBF16)
      return fill_floats(key, distribution, first, count, reinterpret_cast<BFloat16*>(out));
    fill_bytes(key, first, count, table, reinterpret_cast<uint8_t*>(out));
  }
};

// Splits the tensors, in order, into at least two shards of about the same size.
std::vector<std::vector<TensorSpec>> plan_shards(std::vector<TensorSpec> specs, size_t total_bytes) {
  const size_t num_shards = std::max<size_t>(2, (total_bytes + kTargetShardBytes - 1) / kTargetShardBytes);
  std::vector<std::vector<TensorSpec>> shards(num_shards);
  size_t before = 0;
  for (TensorSpec& spec : specs) {
    // A tensor goes where its middle lies.
    const double middle = static_cast<double>(before) + static_cast<double>(spec.bytes()) / 2;
    before += spec.bytes();
    const auto shard =
        static_cast<size_t>(middle * static_cast<double>(num_shards) / static_cast<double>(total_bytes));
    shards[std::min(shard, num_shards - 1)].push_back(std::move(spec));
  }
  return shards;
}

// Writes shards one after the other, each with all threads.
class ShardWriter {
 public:
  ShardWriter(const ModelConfig& config, uint64_t seed, const ProgressFn& progress, size_t total_bytes)
      : config_(config),
        seed_(seed),
        progress_(progress),
        total_bytes_(total_bytes),
        pool_(ThreadPool::default_size()) {
    for (int i = 0; i < pool_.size(); ++i)
      buffers_.push_back(std::make_unique<std::byte[]>(kChunkElements * sizeof(float)));
  }

  Status write(const std::filesystem::path& path, const std::vector<TensorSpec>& specs) {
    SafetensorsWriter writer = SPARROW_TRY(SafetensorsWriter::create(path, specs, {{"format", "pt"}}));
    std::vector<Generator> generators;
    std::vector<Chunk> chunks;
    for (size_t i = 0; i < specs.size(); ++i) {
      generators.emplace_back(specs[i], config_, seed_);
      for (int64_t first = 0; first < specs[i].numel(); first += kChunkElements)
        chunks.push_back({i, first, std::min(kChunkElements, specs[i].numel() - first)});
    }
    std::mutex mutex;
    std::optional<Error> failure;
    std::atomic<bool> failed{false};
    pool_.parallel_for(static_cast<int64_t>(chunks.size()), [&](int64_t i, int worker) {
      if (failed) return;
      const Chunk& chunk = chunks[static_cast<size_t>(i)];
      const size_t element = size_of(specs[chunk.tensor].dtype);
      std::byte* const buffer = buffers_[static_cast<size_t>(worker)].get();
      generators[chunk.tensor].fill(chunk.first, chunk.count, buffer);
      const size_t bytes = static_cast<size_t>(chunk.count) * element;
      const Status status =
          writer.write(chunk.tensor, std::span(buffer, bytes), static_cast<size_t>(chunk.first) * element);
      if (!status.ok() && !failed.exchange(true)) {
        const std::lock_guard lock(mutex);
        failure = status.error();
      }
      const size_t done = done_bytes_.fetch_add(bytes) + bytes;
      if (worker == 0 && progress_) progress_(done, total_bytes_);
    });
    if (failure) return *failure;
    return writer.finish();
  }

 private:
  struct Chunk {
    size_t tensor;
    int64_t first, count;
  };

  const ModelConfig& config_;
  uint64_t seed_;
  const ProgressFn& progress_;
  size_t total_bytes_;
  std::atomic<size_t> done_bytes_{0};
  ThreadPool pool_;
  std::vector<std::unique_ptr<std::byte[]>> buffers_;  // one for each worker
};

}  // namespace

Status write_synthetic_checkpoint(const SyntheticOptions& options, const ProgressFn& progress) {
  const SyntheticConfig texts = SPARROW_TRY(synthetic_config(options.preset, options.dtype));
  const std::filesystem::path config_path = options.dir / "config.json";
  std::error_code ec;
  if (std::filesystem::exists(config_path, ec))
    return Error{Errc::kInvalidArgument, strf("{} exists already; name a new folder", quoted(config_path))};
  std::filesystem::create_directories(options.dir, ec);
  if (ec) return Error{Errc::kIo, strf("cannot create {}: {}", quoted(options.dir), ec.message())};

  const ModelConfig config = SPARROW_TRY(parse_config(texts.config_json, texts.generation_config_json));
  std::vector<TensorSpec> specs = expected_tensors(config);
  size_t total_bytes = 0;
  for (const TensorSpec& spec : specs) total_bytes += spec.bytes();
  const auto shards = plan_shards(std::move(specs), total_bytes);

  ShardWriter writer(config, options.seed, progress, total_bytes);
  std::string weight_map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = strf("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    SPARROW_TRY(writer.write(options.dir / file, shards[i]));
    for (const TensorSpec& spec : shards[i])
      weight_map += strf("{}\n    {}: \"{}\"", weight_map.empty() ? "" : ",", json_quoted(spec.name), file);
  }
  if (progress) progress(total_bytes, total_bytes);
  SPARROW_TRY(
      write_text_file(options.dir / "model.safetensors.index.json",
                      strf("{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{{}\n  }}\n}}\n",
                           total_bytes, weight_map)));
  SPARROW_TRY(write_text_file(options.dir / "generation_config.json", texts.generation_config_json));
  // Last: a folder without it is not a checkpoint, so an interrupted run leaves nothing that looks like one.
  return write_text_file(config_path, texts.config_json);
}

}  // namespace sparrow
