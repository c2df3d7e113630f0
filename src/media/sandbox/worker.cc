// SPDX-License-Identifier: Apache-2.0
#include "media/sandbox/worker.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "media/sandbox/confine.h"
#include "media/sandbox/wire.h"

namespace sparrow {
namespace {

constexpr int kExitDone = 0, kExitNoServer = 3;

// A socket of whole messages: one call moves one of them, or fails.
template <typename Message>
bool receive(Message& message) {
  ssize_t size;
  do size = ::read(kWorkerSocket, &message, sizeof message);
  while (size < 0 && errno == EINTR);
  return size == static_cast<ssize_t>(sizeof message);
}

template <typename Message>
bool send(const Message& message) {
  ssize_t size;
  do size = ::write(kWorkerSocket, &message, sizeof message);
  while (size < 0 && errno == EINTR);
  return size == static_cast<ssize_t>(sizeof message);
}

// Whoever starts it by hand has another descriptor there, or none.
bool has_server() {
  int type = 0;
  socklen_t size = sizeof type;
  return ::getsockopt(kWorkerSocket, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

WorkerHello hello_after(const std::optional<ConfineFault>& fault) {
  WorkerHello hello{.ready = fault ? 0u : 1u};
  if (!fault) return hello;
  hello.error_number = fault->error_number;
  std::strncpy(hello.step, fault->step, sizeof hello.step - 1);
  return hello;
}

Result<size_t> attempt(const MediaWork& work, std::span<const std::byte> options,
                       std::span<const std::byte> input, std::span<std::byte> output) {
  try {
    return work(options, input, output);
  } catch (const std::bad_alloc&) {
    return Error{Errc::kUnsupported, "decoding takes more memory than the server allows"};
  } catch (const std::exception& e) {
    return Error{Errc::kCorrupt, e.what()};
  }
}

ReplyMessage reply_with(const Error& error, std::span<std::byte> output) {
  const size_t size = std::min({error.message.size(), kMaxErrorText, output.size()});
  std::memcpy(output.data(), error.message.data(), size);
  return {.output_bytes = size, .error = static_cast<int32_t>(error.code)};
}

ReplyMessage do_job(const MediaWork& work, const JobMessage& job, const WorkerSetup& setup,
                    std::byte* memory) {
  const std::span options(memory, job.option_bytes);
  const std::span input(memory + job.option_bytes, job.input_bytes);
  const std::span output(memory + setup.input_capacity, setup.output_capacity);
  const Result<size_t> written = attempt(work, options, input, output.first(job.max_output_bytes));
  ReplyMessage reply =
      written.ok() ? ReplyMessage{.output_bytes = written.value()} : reply_with(written.error(), output);
  reply.id = job.id;
  return reply;
}

}  // namespace

int run_media_worker(const MediaWork& work) {
  WorkerSetup setup;
  if (!has_server() || !receive(setup)) return kExitNoServer;
  void* const memory = ::mmap(nullptr, setup.shared_bytes(), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_NORESERVE, kWorkerMemory, 0);
  std::optional<ConfineFault> fault;
  if (memory == MAP_FAILED) fault = ConfineFault{"mmap", errno};
  ::close(kWorkerMemory);
  if (!fault)
    fault = confine(
        {.socket = kWorkerSocket, .memory_bytes = setup.memory_bytes, .cpu_seconds = setup.cpu_seconds});
  if (!send(hello_after(fault)) || fault) return kExitNoServer;
  // A server that ended before its death would have killed us is seen here: its end of the socket is closed.
  for (JobMessage job; receive(job);)
    if (!send(do_job(work, job, setup, static_cast<std::byte*>(memory)))) break;
  // No destructor and no exit handler may run: they would do what is forbidden.
  ::_exit(kExitDone);
}

}  // namespace sparrow
