// SPDX-License-Identifier: Apache-2.0
// LoadPacer: the ranks of a node read a checkpoint's files in one order and stay close together, so that the
// page cache serves all of them from one read of the disk, also where the memory is smaller than the
// checkpoint. A column cut touches every page of its file, so no rank can read its part alone.
//
// A file that several ranks read is open from when the first of them begins it until the last has ended it.
// A rank may begin a file that is open; or open one more, as long as few are; or open one before all that are
// open: so the last always gets on. Files of one rank alone (whole experts) wait for nobody.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace sparrow {

class LoadPacer {
 public:
  static constexpr int kMaxOpen = 3;  // the last rank's file, and two that others are ahead
  // Files that memory must hold for each page to be read once: while one is open, two before it and two after
  // it may be.
  static constexpr int kFilesInMemory = 2 * kMaxOpen - 1;

  static size_t bytes_for(int num_files);

  // `memory`: shared by the ranks of the node, zeroed at first, bytes_for(num_files) long. `reads[f]`:
  // whether this rank reads file f. `give_up`: asked while waiting; true where a rank is gone.
  LoadPacer(std::byte* memory, int local_world, std::vector<char> reads, std::function<bool()> give_up);

  // Before the first byte of a file is read here, and after the last. Any thread; each once for every file
  // that this rank reads, and begun in ascending order. False: gave up.
  bool begin(int file);
  void end(int file);

 private:
  struct Head;
  struct File;

  bool may_begin(int file) const;
  bool lock();
  void unlock();
  template <typename Done>
  bool wait(Done&& done);

  Head& head_;
  File* files_;
  const int local_world_;
  const std::vector<char> reads_;
  const std::function<bool()> give_up_;
};

}  // namespace sparrow
