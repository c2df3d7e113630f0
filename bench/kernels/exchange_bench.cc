// SPDX-License-Identifier: Apache-2.0
// Sum over ranks + residual + norm, on one GPU: all ranks in one launch, each on CTAs of its own (what the
// protocol costs where memory is near), and ranks as processes, which share the GPU by time slices or, under
// MPS, at once, with NCCL beside (libnccl.so.2, if it lets ranks share a GPU). Usage: exchange_bench [ranks
// ...]
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "comm/cuda/peer_memory.h"
#include "comm/nccl/nccl_comm.h"
#include "cuda/comm/together.h"
#include "device/arena.h"
#include "device/cuda/check.h"
#include "device/cuda/stream.h"
#include "ops/cuda/comm/exchange.h"
#include "ops/cuda/rows.h"

namespace sparrow {
namespace {

using namespace ops::cuda;
using Bf16 = __nv_bfloat16;

constexpr int kHidden = 6144, kMaxRows = 1024;

// Where things lie in a rank's memory; residual and weight are shared for nothing.
struct Layout {
  PeerWords* words;
  std::byte* mailbox;
  Bf16 *partial, *out, *residual, *weight;

  explicit Layout(Arena& arena) {
    words = arena.take<PeerWords>(1);
    mailbox = arena.take<std::byte>(mailbox_bytes(kHidden, sizeof(Bf16)));
    for (Bf16** rows : {&partial, &out, &residual}) *rows = arena.take<Bf16>(int64_t{kMaxRows} * kHidden);
    weight = arena.take<Bf16>(kHidden);
  }
};

std::unique_ptr<PeerMemory> take_memory(int rank, int size) {
  Arena counted;
  Layout{counted};
  auto memory = PeerMemory::create(rank, size, round_up(counted.used(), PeerMemory::kPage)).value();
  Arena arena(memory->of(rank));
  const Layout at(arena);
  SPARROW_CUDA(cudaMemset(at.mailbox, 0xff, mailbox_bytes(kHidden, sizeof(Bf16))));
  // Partial rows are 2^rank: the sum tells who is missing.
  const std::vector<Bf16> ones(size_t{kMaxRows} * kHidden, __float2bfloat16(float(1 << rank)));
  SPARROW_CUDA(cudaMemcpy(at.partial, ones.data(), ones.size() * 2, cudaMemcpyHostToDevice));
  SPARROW_CUDA(cudaDeviceSynchronize());
  return memory;
}

ExchangeArgs args_of(const PeerMemory& memory, int rows, bool many) {
  Arena arena(memory.of(memory.rank()));
  const Layout at(arena);
  Peers peers{.memory = {},
              .mailbox = at.mailbox,
              .rank = memory.rank(),
              .size = memory.size(),
              .report = memory.report(),
              .shared_gpu = true};
  for (int r = 0; r < memory.size(); ++r) peers.memory[r] = memory.of(r);
  return {.peers = peers,
          .groups = one_group(memory.size(), rows),
          .partial = at.partial,
          .residual_out = at.residual,
          .weight = at.weight,
          .out = at.out,
          .rows = rows,
          .hidden = kHidden,
          .eps = 1e-6f,
          .many = many};
}

// The sum of 2^rank everywhere.
bool is_right(const ExchangeArgs& args) {
  std::vector<Bf16> sums(size_t(args.rows) * kHidden);
  SPARROW_CUDA(cudaDeviceSynchronize());
  SPARROW_CUDA(cudaMemcpy(sums.data(), args.residual_out, sums.size() * 2, cudaMemcpyDeviceToHost));
  for (int row = 0; row < args.rows; ++row)
    for (int c = 0; c < kHidden; ++c)
      if ((!args.many || row % args.peers.size == args.peers.rank) &&
          __bfloat162float(sums[size_t(row) * kHidden + c]) != float((1 << args.peers.size) - 1))
        return false;
  return true;
}

// ---- all ranks in one launch ----

double us_of(const Graph& graph, int launches_in_graph, const Stream& stream) {
  Event begin(Event::Timing::kOn), end(Event::Timing::kOn);
  std::vector<double> times;
  for (int i = 0; i < 12; ++i) {
    begin.record(stream.get());
    graph.launch(stream.get());
    end.record(stream.get());
    end.wait();
    if (i >= 2) times.push_back(Event::milliseconds_between(begin, end) * 1e3 / launches_in_graph);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void bench_together(int size, int rows, bool many) {
  std::vector<std::unique_ptr<PeerMemory>> memory;
  for (int r = 0; r < size; ++r) memory.push_back(take_memory(r, size));
  std::vector<Bytes> handles;
  for (const auto& m : memory) handles.push_back(m->handle().value());
  for (const auto& m : memory) m->open(handles).value();
  std::vector<ExchangeArgs> args;
  for (const auto& m : memory) args.push_back(args_of(*m, rows, many));
  ExchangeArgs* on_device = nullptr;
  SPARROW_CUDA(cudaMalloc(reinterpret_cast<void**>(&on_device), size * sizeof(ExchangeArgs)));
  SPARROW_CUDA(cudaMemcpy(on_device, args.data(), size * sizeof(ExchangeArgs), cudaMemcpyHostToDevice));
  Stream stream;
  constexpr int kLaunches = 100;
  const Graph graph = Graph::capture(stream, [&] {
    for (int i = 0; i < kLaunches; ++i) test::exchange_together(on_device, args[0], stream.get());
  });
  const double us = us_of(graph, kLaunches, stream);
  bool right = true;
  for (const ExchangeArgs& a : args) right &= is_right(a) && !memory[a.peers.rank]->missed_rank();
  std::printf("%d ranks in one launch, %4d rows, %s: %7.2f us%s\n", size, rows, many ? "many" : "few ", us,
              right ? "" : "  WRONG");
  SPARROW_CUDA(cudaFree(on_device));
}

// ---- ranks as processes ----

// Everybody's bytes, by way of the parent.
struct Pipes {
  int up[kMaxPeers][2], down[kMaxPeers][2];
};

void read_all(int fd, void* to, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = read(fd, static_cast<char*>(to) + done, bytes - done);
    if (got <= 0) std::exit(3);
    done += static_cast<size_t>(got);
  }
}

// Everybody's bytes, by rank; all have as many. None: this one asks for no more.
std::vector<Bytes> share(const Pipes& pipes, int rank, int size, const Bytes& mine) {
  const size_t bytes = mine.size();
  if (write(pipes.up[rank][1], &bytes, sizeof(bytes)) != sizeof(bytes) ||
      write(pipes.up[rank][1], mine.data(), bytes) != ssize_t(bytes))
    std::exit(3);
  std::vector<Bytes> all(bytes > 0 ? size : 0, Bytes(bytes));
  for (Bytes& of_rank : all) read_all(pipes.down[rank][0], of_rank.data(), bytes);
  return all;
}

// The parent's part.
void hand_round(const Pipes& pipes, int size) {
  for (;;) {
    Bytes all;
    for (int r = 0; r < size; ++r) {
      size_t bytes = 0;
      read_all(pipes.up[r][0], &bytes, sizeof(bytes));
      all.resize(all.size() + bytes);
      read_all(pipes.up[r][0], all.data() + all.size() - bytes, bytes);
    }
    if (all.empty()) return;
    for (int r = 0; r < size; ++r)
      if (write(pipes.down[r][1], all.data(), all.size()) != ssize_t(all.size())) std::exit(3);
  }
}

// us of each of what `launch` launches, dependent, while all ranks do.
template <typename Launch>
double us_of_all(const Pipes& pipes, int rank, int size, const Stream& stream, const Launch& launch) {
  // Under MPS; by time slices an exchange takes milliseconds.
  const bool shared_at_once = std::getenv("CUDA_MPS_PIPE_DIRECTORY") != nullptr;
  const int launches = 20, replays = shared_at_once ? 50 : 1;  // many: processes do not start at once
  const Graph graph = Graph::capture(stream, [&] {
    for (int i = 0; i < launches; ++i) launch();
  });
  graph.launch(stream.get());
  stream.synchronize();
  share(pipes, rank, size, Bytes(1));
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < replays; ++i) graph.launch(stream.get());
  stream.synchronize();
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  return took.count() / launches / replays;
}

// NCCL's sum, then our norm. Error: why there is none.
Result<std::unique_ptr<NcclComm>> open_nccl(const Pipes& pipes, int rank, int size, const Stream& stream) {
  auto library = NcclLibrary::open({.shared_gpu = size > 1});
  nccl::UniqueId id{};
  if (library.ok() && rank == 0) library.value().GetUniqueId(&id);
  Bytes mine(sizeof(id));
  std::memcpy(mine.data(), id.bytes, sizeof(id));
  std::memcpy(id.bytes, share(pipes, rank, size, mine)[0].data(), sizeof(id));
  if (!library.ok()) return library.error();
  if (rank == 0) std::printf("NCCL %s\n", library.value().version().c_str());
  return NcclComm::create(std::make_shared<const NcclLibrary>(std::move(library.value())), id, rank, size,
                          stream.get(), std::chrono::seconds(10));
}

void bench_nccl(const Pipes& pipes, const PeerMemory& memory, const Stream& stream) {
  const int rank = memory.rank(), size = memory.size();
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  const auto made = open_nccl(pipes, rank, size, stream);
  bool all = true;
  for (const Bytes& ok : share(pipes, rank, size, Bytes(1, std::byte{made.ok()})))
    all &= ok[0] != std::byte{0};
  if (!made.ok() && rank == 0) std::printf("no NCCL: %s\n", made.error().message.c_str());
  if (!all) return;
  for (const int rows : {1, 64}) {
    const ExchangeArgs at = args_of(memory, rows, false);
    Bf16* const partial = static_cast<Bf16*>(const_cast<void*>(at.partial));
    const double us = us_of_all(pipes, rank, size, stream, [&] {
      made.value()->all_reduce(Tensor(partial, DType::kBF16, {rows, kHidden}));
      add_rms_norm({.residual = at.residual_out,
                    .delta = partial,
                    .weight = at.weight,
                    .out = at.out,
                    .rows = rows,
                    .hidden = kHidden,
                    .eps = at.eps},
                   stream.get());
    });
    if (rank == 0)
      std::printf("%d processes, %4d rows, NCCL and a norm: %8.1f us%s\n", size, rows, us,
                  made.value()->failed() ? "  FAILED" : "");
  }
}

int child(const Pipes& pipes, int rank, int size) {
  const auto memory = take_memory(rank, size);
  const std::vector<Bytes> all = share(pipes, rank, size, memory->handle().value());
  if (const Status status = memory->open(all); !status.ok()) {
    std::printf("rank %d: %s\n", rank, status.error().message.c_str());
    return 1;
  }
  Stream stream;
  bool right = true;
  for (const auto& [rows, many] : std::vector<std::pair<int, bool>>{{1, false}, {8, false}, {64, true}}) {
    const ExchangeArgs args = args_of(*memory, rows, many);
    const double us = us_of_all(pipes, rank, size, stream, [&] { exchange_norm(args, stream.get()); });
    right &= is_right(args) && !memory->missed_rank();
    if (rank == 0)
      std::printf("%d processes, %4d rows, %s: %8.1f us%s\n", size, rows, many ? "many" : "few ", us,
                  right ? "" : "  WRONG");
  }
  bench_nccl(pipes, *memory, stream);
  std::fflush(stdout);
  share(pipes, rank, size, Bytes(1));
  share(pipes, rank, size, {});
  return right ? 0 : 1;
}

int bench_processes(int size) {
  Pipes pipes;
  std::vector<pid_t> children;
  for (int r = 0; r < size; ++r)
    if (pipe(pipes.up[r]) != 0 || pipe(pipes.down[r]) != 0) return 3;
  for (int r = 0; r < size; ++r) {
    const pid_t pid = fork();
    if (pid == 0) _exit(child(pipes, r, size));
    children.push_back(pid);
  }
  hand_round(pipes, size);
  int failed = 0;
  for (const pid_t pid : children) {
    int status = 0;
    waitpid(pid, &status, 0);
    failed |= status != 0;
  }
  return failed;
}

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) {
  using namespace sparrow;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int failed = 0;
  for (int i = 1; i < argc; ++i) failed |= bench_processes(std::atoi(argv[i]));  // before CUDA is touched
  if (argc > 1) return failed;
  for (const int rows : {1, 2, 4}) {
    bench_together(2, rows, false);
    bench_together(4, rows, false);
    bench_together(8, rows, false);
  }
  for (const int rows : {8, 16, 32, 64, 128, 256, 1024}) {
    bench_together(2, rows, true);
    bench_together(4, rows, true);
    bench_together(8, rows, true);
  }
  return 0;
}
