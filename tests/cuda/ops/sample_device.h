// SPDX-License-Identifier: Apache-2.0
// Device: a Bed in device memory, and what the kernels draw from it.
#pragma once

#include <cstring>
#include <vector>

#include "cuda/device_array.h"
#include "cuda/ops/sample_bed.h"

namespace sparrow::ops::cuda::test_bed {

using test::DeviceArray;

// A bed in device memory.
class Device {
 public:
  explicit Device(const Bed& bed)
      : bed_(bed),
        logits_(bed.logits),
        packed_(pack(bed.batch())),
        ids_(bed.draws.size()),
        status_(bed.draws.size()),
        plain_greedy_(bed.batch().plain_greedy()) {}

  void launch(cudaStream_t stream, bool plain_greedy) {
    sample({.logits = logits_.data(),
            .row_stride = bed_.row_stride,
            .batch = packed_.data(),
            .ids = ids_.data(),
            .status = status_.data(),
            .rows = static_cast<int>(bed_.draws.size()),
            .vocabulary = bed_.vocabulary,
            .plain_greedy = plain_greedy},
           stream);
  }
  std::vector<Drawn> run() { return run(plain_greedy_); }
  std::vector<Drawn> run(bool plain_greedy) {
    launch(nullptr, plain_greedy);
    return result();
  }
  std::vector<Drawn> result() const {
    const std::vector<int32_t> ids = ids_.download();
    const std::vector<SampleStatus> status = status_.download();
    std::vector<Drawn> drawn;
    for (size_t i = 0; i < ids.size(); ++i) drawn.push_back({ids[i], status[i]});
    return drawn;
  }
  bool logits_unchanged() const {
    return std::memcmp(logits_.download().data(), bed_.logits.data(), bed_.logits.size() * 4) == 0;
  }
  const int32_t* ids() const { return ids_.data(); }
  const float* logits() const { return logits_.data(); }

 private:
  static std::vector<char> pack(const SampleBatch& batch) {
    std::vector<char> bytes(batch.bytes());
    batch.pack(bytes.data());
    return bytes;
  }

  const Bed& bed_;
  DeviceArray<float> logits_;
  DeviceArray<char> packed_;
  DeviceArray<int32_t> ids_;
  DeviceArray<SampleStatus> status_;
  bool plain_greedy_;
};

}  // namespace sparrow::ops::cuda::test_bed
