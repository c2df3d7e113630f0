// SPDX-License-Identifier: Apache-2.0
// Sum over ranks + residual + norm, on one GPU: all ranks in one launch, each on CTAs of its own (what the
// protocol costs where memory is near), and ranks as processes, which share the GPU by time slices or, under
// MPS, at once. Usage: exchange_bench [ranks ...]
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "comm/cuda/peer_memory.h"
#include "cuda/comm/together.h"
#include "device/arena.h"
#include "device/cuda/check.h"
#include "device/cuda/stream.h"
#include "ops/cuda/comm/exchange.h"

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

void meet(const Pipes& pipes, int rank) {
  char byte = 0;
  if (write(pipes.up[rank][1], &byte, 1) != 1) std::exit(3);
  read_all(pipes.down[rank][0], &byte, 1);
}

int child(const Pipes& pipes, int rank, int size) {
  // Under MPS; by time slices an exchange takes milliseconds.
  const bool shared_at_once = std::getenv("CUDA_MPS_PIPE_DIRECTORY") != nullptr;
  const auto memory = take_memory(rank, size);
  const Bytes mine = memory->handle().value();
  if (write(pipes.up[rank][1], mine.data(), mine.size()) != ssize_t(mine.size())) return 3;
  std::vector<Bytes> all(size, Bytes(mine.size()));
  for (Bytes& handle : all) read_all(pipes.down[rank][0], handle.data(), handle.size());
  if (const Status status = memory->open(all); !status.ok()) {
    std::printf("rank %d: %s\n", rank, status.error().message.c_str());
    return 1;
  }
  Stream stream;
  bool right = true;
  for (const auto& [rows, many] : std::vector<std::pair<int, bool>>{{1, false}, {8, false}, {64, true}}) {
    const ExchangeArgs args = args_of(*memory, rows, many);
    constexpr int kLaunches = 20, kReplays = 50;  // many: processes do not start at once
    const Graph graph = Graph::capture(stream, [&] {
      for (int i = 0; i < kLaunches; ++i) exchange_norm(args, stream.get());
    });
    graph.launch(stream.get());
    stream.synchronize();
    meet(pipes, rank);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < (shared_at_once ? kReplays : 1); ++i) graph.launch(stream.get());
    stream.synchronize();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    right &= is_right(args) && !memory->missed_rank();
    if (rank == 0)
      std::printf("%d processes, %4d rows, %s: %8.1f us%s\n", size, rows, many ? "many" : "few ",
                  took.count() / kLaunches / (shared_at_once ? kReplays : 1), right ? "" : "  WRONG");
  }
  std::fflush(stdout);
  meet(pipes, rank);
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
  constexpr size_t kHandleBytes = 112;
  std::vector<char> handles(kHandleBytes * size);
  for (int r = 0; r < size; ++r) read_all(pipes.up[r][0], handles.data() + kHandleBytes * r, kHandleBytes);
  for (int r = 0; r < size; ++r)
    if (write(pipes.down[r][1], handles.data(), handles.size()) < 0) return 3;
  for (int round = 0; round < 4; ++round) {
    std::vector<char> bytes(size);
    for (int r = 0; r < size; ++r) read_all(pipes.up[r][0], &bytes[r], 1);
    for (int r = 0; r < size; ++r)
      if (write(pipes.down[r][1], &bytes[r], 1) != 1) return 3;
  }
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
