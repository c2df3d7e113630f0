// SPDX-License-Identifier: Apache-2.0
#include "base/files/mapped_fault.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "base/check.h"
#include "base/files/created_files.h"

namespace sparrow {
namespace {

// A list that a signal handler can walk at any moment: entries are only ever added, and used again when their
// file is gone. The handler needs all of this without an object to ask, hence the globals.
struct Mapping {
  std::atomic<uintptr_t> begin{0}, end{0};  // end 0: free
  std::string name;                         // written while end is 0
  Mapping* next = nullptr;
};

std::mutex mutex;  // of those who change the list
std::atomic<Mapping*> first{nullptr};
std::atomic<int> fault_exit_code{0};

const Mapping* find_mapping(uintptr_t address) {
  for (const Mapping* mapping = first.load(std::memory_order_acquire); mapping; mapping = mapping->next)
    if (address < mapping->end.load(std::memory_order_acquire) &&
        address >= mapping->begin.load(std::memory_order_relaxed))
      return mapping;
  return nullptr;
}

// Only calls that POSIX allows in a handler.
void on_fault(int, siginfo_t* info, void*) {
  const Mapping* const mapping = find_mapping(reinterpret_cast<uintptr_t>(info->si_addr));
  if (!mapping) {
    signal(SIGBUS, SIG_DFL);  // the instruction runs again, and ends the program
    return;
  }
  // Several threads may read the same file: one has the word.
  static std::atomic_flag is_ending;
  while (is_ending.test_and_set()) ::pause();
  const auto say = [](const char* text, size_t size) { (void)!::write(STDERR_FILENO, text, size); };
  constexpr char kBefore[] = "sparrow: ",
                 kAfter[] = " cannot be read any more: it was cut short, or its disk failed, while in use\n";
  say(kBefore, sizeof(kBefore) - 1);
  say(mapping->name.data(), mapping->name.size());
  say(kAfter, sizeof(kAfter) - 1);
  CreatedFiles::remove_before_exit();
  ::_exit(fault_exit_code.load(std::memory_order_relaxed));
}

}  // namespace

void report_mapping_faults(int exit_code) {
  fault_exit_code = exit_code;
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  SPARROW_CHECK(sigaction(SIGBUS, &action, nullptr) == 0);
}

void add_mapping(const void* data, size_t size, const std::string& name) {
  const std::lock_guard lock(mutex);
  Mapping* mapping = first.load(std::memory_order_relaxed);
  while (mapping && mapping->end.load(std::memory_order_relaxed) != 0) mapping = mapping->next;
  const bool is_new = mapping == nullptr;
  if (is_new) mapping = new Mapping;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  mapping->name = name;
  mapping->begin.store(begin, std::memory_order_relaxed);
  mapping->end.store(begin + size, std::memory_order_release);
  if (!is_new) return;
  mapping->next = first.load(std::memory_order_relaxed);
  first.store(mapping, std::memory_order_release);
}

void remove_mapping(const void* data) {
  const std::lock_guard lock(mutex);
  const auto begin = reinterpret_cast<uintptr_t>(data);
  for (Mapping* mapping = first.load(std::memory_order_relaxed); mapping; mapping = mapping->next)
    if (mapping->end.load(std::memory_order_relaxed) != 0 &&
        mapping->begin.load(std::memory_order_relaxed) == begin)
      return mapping->end.store(0, std::memory_order_release);
}

}  // namespace sparrow
