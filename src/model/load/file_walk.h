// SPDX-License-Identifier: Apache-2.0
// FileWalk: how one rank walks through the files of a checkpoint: in their order, each announced to the other
// ranks of the node before it is read and after.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/result.h"
#include "checkpoint/safetensors.h"
#include "comm/load_pacer.h"

namespace sparrow {

// What a loader is told of the files: all ranks of a node have them in the same order. None: the weights lie
// in no file, or nobody else reads them.
struct LoadOrder {
  std::span<const SafetensorsFile> files;
  // `reads[f]`: whether this rank reads anything of file f. nullptr: it is alone on its node.
  std::function<std::unique_ptr<LoadPacer>(std::vector<char> reads)> make_pacer;
};

class FileWalk {
 public:
  static constexpr int kNoFile = -1;

  explicit FileWalk(const LoadOrder& order) : order_(order), chunks_left_(order.files.size()) {}

  // The file that holds this byte.
  int file_of(const std::byte* data) const;

  // First what will be read, chunk by chunk, in the order of the files; then start().
  void expect(int file);
  void start();

  // Around each chunk, from any thread, begun in the order of the files. Error: a rank of the node is gone.
  Status begin(int file);
  void end(int file);

 private:
  const LoadOrder& order_;
  std::vector<std::atomic<int>> chunks_left_;
  std::unique_ptr<LoadPacer> pacer_;
  std::mutex mutex_;
  std::atomic<int> last_begun_{kNoFile};
};

}  // namespace sparrow
