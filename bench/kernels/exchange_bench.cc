// SPDX-License-Identifier: Apache-2.0
// Sum over ranks + residual + norm, on one GPU: all ranks in one launch, each on CTAs of its own (what the
// protocol costs where memory is near), and ranks as processes, which share the GPU by time slices or, under
// MPS, at once, with NCCL beside (libnccl.so.2, if it lets ranks share a GPU): rows sent over it as steps do
// where GPUs do not share memory, and its own sum with a norm. Usage: exchange_bench [ranks ...]
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
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "model/cuda/exchange/row_kernels.h"
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

// The sum of 2^rank in every `step`-th row from `first` on.
bool is_right(const ExchangeArgs& args, int first, int end, int step = 1) {
  std::vector<Bf16> sums(size_t(args.rows) * kHidden);
  SPARROW_CUDA(cudaDeviceSynchronize());
  SPARROW_CUDA(cudaMemcpy(sums.data(), args.residual_out, sums.size() * 2, cudaMemcpyDeviceToHost));
  for (int row = first; row < end; row += step)
    for (int c = 0; c < kHidden; ++c)
      if (__bfloat162float(sums[size_t(row) * kHidden + c]) != float((1 << args.peers.size) - 1))
        return false;
  return true;
}

bool is_right(const ExchangeArgs& args) {
  return args.many ? is_right(args, args.peers.rank, args.rows, args.peers.size)
                   : is_right(args, 0, args.rows);
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

// us of each of the kLaunches that `launch_all` launches, dependent, while all ranks do.
constexpr int kLaunches = 20;
template <typename LaunchAll>
double us_of_launches(const Pipes& pipes, int rank, int size, const Stream& stream,
                      const LaunchAll& launch_all) {
  // Under MPS; by time slices an exchange takes milliseconds.
  const bool shared_at_once = std::getenv("CUDA_MPS_PIPE_DIRECTORY") != nullptr;
  const int replays = shared_at_once ? 50 : 1;  // many: processes do not start at once
  launch_all();
  stream.synchronize();
  share(pipes, rank, size, Bytes(1));
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < replays; ++i) launch_all();
  stream.synchronize();
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  return took.count() / kLaunches / replays;
}

template <typename Launch>
double us_of_all(const Pipes& pipes, int rank, int size, const Stream& stream, const Launch& launch) {
  const Graph graph = Graph::capture(stream, [&] {
    for (int i = 0; i < kLaunches; ++i) launch();
  });
  return us_of_launches(pipes, rank, size, stream, [&] { graph.launch(stream.get()); });
}

// MiB that all processes have taken of the GPU, over their number; all call it.
double taken_mib(const Pipes& pipes, int rank, int size) {
  share(pipes, rank, size, Bytes(1));
  size_t free = 0, total = 0;
  SPARROW_CUDA(cudaMemGetInfo(&free, &total));
  share(pipes, rank, size, Bytes(1));
  return double(total - free) / size / (1 << 20);
}

// Rows as messages, summed and normed as steps do it over NCCL; in a graph, and launched one by one.
Result<bool> bench_nccl_rows(const Pipes& pipes, const PeerMemory& memory, const Stream& stream) {
  const int rank = memory.rank(), size = memory.size();
  const double before = taken_mib(pipes, rank, size);
  const auto ranks =
      SPARROW_TRY(NcclRanks::join({.grid = {.tp = size, .rank = rank},
                                   .needs = {.shared_gpu = size > 1},
                                   .stream = stream.get(),
                                   .patience = std::chrono::seconds(10)},
                                  [&](std::span<const std::byte> mine) -> Result<std::vector<Bytes>> {
                                    return share(pipes, rank, size, Bytes(mine.begin(), mine.end()));
                                  }));
  const double joined = taken_mib(pipes, rank, size);
  const NcclShape shape{.grid = ranks->grid(),
                        .peers = {.hidden = kHidden, .max_rows = kMaxRows, .peer_memory = false},
                        .index_heads = 0,
                        .own_heads = 0};
  const auto messages = SPARROW_TRY(DeviceBuffer::allocate(static_cast<size_t>(nccl_bytes(shape))));
  Arena arena(messages.data());
  const NcclBuffers buffers = lay_out_nccl(arena, shape);
  const double own = double(messages.bytes()) / (1 << 20);
  CudaRowKernels kernels(kHidden, 1e-6f, stream.get());
  bool right = true;
  for (const int rows : {1, 8, 64, kMaxRows}) {
    const ExchangeArgs at = args_of(memory, rows, false);
    NcclRows exchange(shape, *ranks, kernels, buffers, {.partial = at.partial, .normed = at.out});
    if (rows == 1) {
      exchange.connect();
      stream.synchronize();
      const double connected = taken_mib(pipes, rank, size) - own;
      if (rank == 0)
        std::printf("%d processes, NCCL %s takes %.0f MiB a rank, %.0f of them for connections\n", size,
                    ranks->version().c_str(), connected - before, connected - joined);
    }
    SPARROW_CUDA(cudaMemset(at.residual_out, 0, size_t(rows) * kHidden * sizeof(Bf16)));
    const auto launch = [&] {
      exchange.add_norm({.step_rows = {&rows, 1}, .residual_out = at.residual_out, .weight = at.weight});
    };
    const double us = us_of_all(pipes, rank, size, stream, launch);
    const double one_by_one = us_of_launches(pipes, rank, size, stream, [&] {
      for (int i = 0; i < kLaunches; ++i) launch();
    });
    const bool many = exchange.is_many({&rows, 1});
    right &= many ? is_right(at, rank * rows / size, (rank + 1) * rows / size) : is_right(at, 0, rows);
    const std::optional<Error> failed = ranks->failure();
    if (rank == 0)
      std::printf("%d processes, %4d rows over NCCL, %s: %8.1f us, one by one %8.1f us%s%s\n", size, rows,
                  many ? "many" : "few ", us, one_by_one, right ? "" : "  WRONG",
                  failed ? ("  FAILED: " + failed->message).c_str() : "");
  }
  return right;
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
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  bool right = true;
  for (const auto& [rows, many] :
       std::vector<std::pair<int, bool>>{{1, false}, {8, false}, {64, true}, {kMaxRows, true}}) {
    const ExchangeArgs args = args_of(*memory, rows, many);
    const double us = us_of_all(pipes, rank, size, stream, [&] { exchange_norm(args, stream.get()); });
    right &= is_right(args) && !memory->missed_rank();
    if (rank == 0)
      std::printf("%d processes, %4d rows, %s: %8.1f us%s\n", size, rows, many ? "many" : "few ", us,
                  right ? "" : "  WRONG");
  }
  if (const Result<bool> sent = bench_nccl_rows(pipes, *memory, stream); sent.ok())
    right &= sent.value();
  else if (rank == 0)
    std::printf("no rows over NCCL: %s\n", sent.error().message.c_str());
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
