// SPDX-License-Identifier: Apache-2.0
// LatencyHistogram: hundreds of millions of times, and their percentiles to within one and a half per cent.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace sparrow::cli {

class LatencyHistogram {
 public:
  void add(double seconds) {
    ++counts_[bucket_of(seconds)];
    ++total_;
    sum_ += seconds;
  }

  int64_t count() const { return total_; }
  double mean() const { return total_ == 0 ? 0 : sum_ / static_cast<double>(total_); }
  // The least time that so many of them, as a share, do not exceed.
  double quantile(double share) const {
    const double wanted = share * static_cast<double>(total_);
    int64_t seen = 0;
    for (size_t i = 0; i < counts_.size(); ++i) {
      seen += counts_[i];
      if (seen > 0 && static_cast<double>(seen) >= wanted) return value_of(i);
    }
    return 0;
  }

  // Of them, as a share, that are as short as that or shorter.
  double share_within(double seconds) const {
    if (total_ == 0) return 1;
    int64_t seen = 0;
    for (size_t i = 0; i <= bucket_of(seconds); ++i) seen += counts_[i];
    return static_cast<double>(seen) / static_cast<double>(total_);
  }

 private:
  // The exponent and six bits of the mantissa: 64 buckets between powers of two, from a microsecond on.
  static constexpr int kBits = 6, kFirstExponent = 1023 - 20, kExponents = 40;

  static size_t bucket_of(double seconds) {
    const auto bits = std::bit_cast<uint64_t>(seconds) >> (52 - kBits);
    constexpr uint64_t kFirst = uint64_t{kFirstExponent} << kBits;
    if (!(seconds > 0) || bits < kFirst) return 0;
    const uint64_t bucket = bits - kFirst;
    constexpr uint64_t kLast = (uint64_t{kExponents} << kBits) - 1;
    return bucket < kLast ? bucket : kLast;
  }
  static double value_of(size_t bucket) {  // the middle of it
    if (bucket == 0) return 0;
    const uint64_t bits = ((uint64_t{kFirstExponent} << kBits) + bucket) << (52 - kBits);
    return std::bit_cast<double>(bits | uint64_t{1} << (51 - kBits));
  }

  std::array<int64_t, size_t{kExponents} << kBits> counts_{};
  int64_t total_ = 0;
  double sum_ = 0;
};

}  // namespace sparrow::cli
