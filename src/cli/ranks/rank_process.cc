// SPDX-License-Identifier: Apache-2.0
#include "cli/ranks/rank_process.h"

#include <openssl/sha.h>
#include <signal.h>
#include <sys/random.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/threads/thread_pool.h"
#include "cli/ranks/supervisor.h"
#include "engine/ranks/follow.h"
#include "engine/ranks/leader_runner.h"
#include "engine/ranks/rank_failure.h"
#include "engine/ranks/wire.h"
#include "ops/ops.h"

namespace sparrow::cli {
namespace {

// How long a process that lost a rank still lives: rank 0 answers clients and probes meanwhile, the others
// only say why. A silent rank is noticed within 3.25 s, so all are gone within 5 s of its last sign of life.
constexpr std::chrono::milliseconds kLeaderGrace{1250}, kFollowerGrace{300};
// Steps between two comparisons of what ranks hold alike.
constexpr int kCompareEvery = 1000;

GetEnv environment() {
  return [](const char* name) { return std::getenv(name); };
}

std::string hex(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) text += strf("{:02x}", byte);
  return text;
}

// Ranks of one node that nobody gave a secret have one of their own.
void make_token(const RankFlags& flags) {
  uint8_t bytes[32];
  if (!flags.token_file.empty() || std::getenv("SPARROW_TOKEN")) return;
  if (::getrandom(bytes, sizeof bytes, 0) == sizeof bytes) ::setenv("SPARROW_TOKEN", hex(bytes).c_str(), 1);
}

// What the ranks of this node call their sockets: like nobody else's, whatever else runs here.
void name_job() {
  uint8_t bytes[8];
  if (::getrandom(bytes, sizeof bytes, 0) == sizeof bytes) ::setenv("SPARROW_JOB", hex(bytes).c_str(), 1);
}

// Two programs of one version may still differ.
std::string build_name() {
  std::error_code ec;
  return strf("{}-{}", SPARROW_VERSION, std::filesystem::file_size("/proc/self/exe", ec));
}

void add_file(std::string& text, const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  text += path.filename().string();
  text.append(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

Result<std::optional<RankPlace>> own_place(const RankFlags& flags) {
  // Kernels that are loaded when they are first launched seem to wait until the GPU is idle. If it is shared,
  // that is never: other ranks' kernels wait there for this one's.
  if (flags.share_gpu) {
    ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    // NCCL wants to be told, too; and its CTAs, which wait for those of other ranks, must find room there.
    ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
    ::setenv("NCCL_MAX_CTAS", "8", 0);
  }
  return place_of(flags.place(), environment());
}

Result<int> start_ranks(const RankFlags& flags, const std::string& command) {
  const auto places = SPARROW_TRY(local_places(flags.place(), environment(), ""));
  SPARROW_TRY(check_token(places.front(), SPARROW_TRY(read_token(flags, environment()))));
  if (places.front().rendezvous.empty()) make_token(flags);
  name_job();
  return supervise(places, own_arguments(), command);
}

void leave_signals_to_rank_0() {
  sigset_t taken;
  sigemptyset(&taken);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&taken, signal);
  pthread_sigmask(SIG_BLOCK, &taken, nullptr);
}

int lost_rank(const Error& failure) {
  std::fputs(strf("sparrow: {}\n", failure.message).c_str(), stderr);
  return kExitLostRank;
}

std::string config_digest(const std::filesystem::path& model, const LoadOptions& load,
                          const EngineOptions& options) {
  std::string text;
  add_file(text, model / "config.json");
  // Names and sizes stand for the weights, which nobody reads twice.
  std::vector<std::string> files;
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator(model, ec))
    if (entry.path().extension() == ".safetensors")
      files.push_back(strf("{} {}\n", entry.path().filename().string(), entry.file_size(ec)));
  std::ranges::sort(files);
  for (const std::string& file : files) text += file;
  text += strf("{} {} {} {} {} {} {} {} {}\n", load.hf_overrides, load.load_format, load.kv_cache_dtype,
               load.index_cache_dtype, load.activation_dtype.starts_with("fp8"), load.device,
               load.batch_invariant, load.isa, load.vision);
  if (load.device == "cpu") text += ops::name_of(ops::detect_cpu_isa());
  text += strf("{} {} {}", options.max_model_tokens, options.max_step_tokens, options.max_step_sequences);
  text += strf(" {} {}", options.gpu.exchange.nccl, options.gpu.exchange.num_nodes);
  uint8_t digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const uint8_t*>(text.data()), text.size(), digest);
  return hex(digest);
}

EngineOptions rank_options(EngineOptions options, const RankFlags& flags, const RankPlace& place) {
  options.grid = flags.grid;
  options.grid.rank = place.rank;
  options.gpu.ordinal = flags.share_gpu ? 0 : place.local_rank;
  options.gpu.share = flags.share_gpu;
  options.gpu.exchange =
      exchange_way(flags.grid, place.world / place.local_world, /*peer_memory=*/!flags.no_peer_memory);
  if (options.cpu.threads == 0)
    options.cpu.threads = std::max(1, ThreadPool::default_size() / place.local_world);
  return options;
}

Result<std::unique_ptr<RankProcess>> RankProcess::join(const RankFlags& flags, const RankPlace& place,
                                                       const std::string& digest) {
  WorldOptions options{.grid = flags.grid,
                       .place = place,
                       .token = SPARROW_TRY(read_token(flags, environment())),
                       .build = build_name(),
                       .config_digest = digest,
                       .share_gpu = flags.share_gpu};
  options.grid.rank = place.rank;
  if (flags.join_timeout_seconds) options.join_timeout = std::chrono::seconds(*flags.join_timeout_seconds);
  auto world = SPARROW_TRY(World::join(options));
  return std::unique_ptr<RankProcess>(new RankProcess(place, std::move(world)));
}

LoadOrder RankProcess::load_order(std::span<const SafetensorsFile> files) {
  if (files.empty()) return {};
  return {.files = files,
          .make_pacer = [this](std::vector<char> reads) { return world_->load_pacer(std::move(reads)); }};
}

Result<int> RankProcess::agree_on_blocks(int mine) {
  WireWriter out;
  out.number(static_cast<uint64_t>(mine));
  int fewest = mine;
  for (const Bytes& bytes : SPARROW_TRY(world_->exchange(out.bytes()))) {
    WireReader in(bytes);
    const int theirs = in.below(std::numeric_limits<int32_t>::max());
    if (!in.complete() || theirs < 1) return Error{Errc::kCorrupt, "a rank has told no number of blocks"};
    // Groups number their blocks one after the other.
    if (grid().dp > 1 && theirs != mine)
      return Error{Errc::kUnsupported,
                   strf("one rank has room for {} blocks of the cache, another for {}: give "
                        "--kv-cache-memory, the same for all",
                        mine, theirs)};
    fewest = std::min(fewest, theirs);
  }
  return fewest;
}

Result<std::unique_ptr<ModelRunner>> RankProcess::create_runner(const ModelConfig& config,
                                                                const Weights& weights,
                                                                const EngineOptions& options) {
  const RankPeers peers{
      .comms = world_->comms(),
      .exchange = [this](std::span<const std::byte> mine) { return world_->exchange(mine); },
      .lost = [this](const Error& error) { world_->link().fail(grid().rank, error.message); }};
  auto runner = SPARROW_TRY(sparrow::create_runner(config, weights, options, peers));
  const int num_blocks = SPARROW_TRY(agree_on_blocks(runner->info().num_blocks));
  if (grid().rank != 0) return runner;
  return std::unique_ptr<ModelRunner>(std::make_unique<LeaderRunner>(
      std::move(runner), world_->link(), grid(),
      LeaderOptions{
          .vocab_size = config.vocab_size, .num_blocks = num_blocks, .compare_every = kCompareEvery}));
}

Result<int> RankProcess::ended(Result<int> code) {
  if (code.ok()) return code;
  const bool told = watch_.silence(kLeaderGrace);
  const auto lost = world_->link().failure();
  // Where all ranks find the same fault, each says so itself.
  if (lost && code.error().code == Errc::kStopped)
    return told ? kExitLostRank : lost_rank(rank_failure(*lost));
  world_->link().fail(grid().rank, code.error().message);
  return code;
}

int RankProcess::follow(ModelRunner& runner, const ModelConfig& config, const EngineOptions& options) {
  watch_.on_failure(nullptr, kFollowerGrace);
  const CallLimits limits = call_limits(config, runner.info(), options);
  const Status ended = sparrow::follow(runner, world_->link(), grid(), limits);
  return ended.ok() ? 0 : lost_rank(ended.error());
}

EngineWatch::EngineWatch(RankProcess* ranks, Engine& engine, std::function<void(const Error&)> also)
    : ranks_(ranks) {
  if (!ranks_) return;
  ranks_->watch().on_failure(
      [&engine, also = std::move(also)](const Error& failure) {
        engine.fail(failure);
        if (also) also(failure);
      },
      kLeaderGrace);
}

EngineWatch::~EngineWatch() {
  if (ranks_) ranks_->watch().on_failure(nullptr, kLeaderGrace);
}

}  // namespace sparrow::cli
