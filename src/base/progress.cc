// SPDX-License-Identifier: Apache-2.0
#include "base/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/strf.h"

namespace sparrow {
namespace {

constexpr std::chrono::milliseconds kRedrawInterval{100};
constexpr int kBarCells = 24;

std::string amount(double n, ProgressBar::Unit unit) {
  if (unit == ProgressBar::Unit::kItems) return strf("{:.0f}", n);
  if (n >= 1e9) return strf("{:.2f} GB", n / 1e9);
  return strf("{:.2f} MB", n / 1e6);
}

std::string rate(double n, double seconds, ProgressBar::Unit unit) {
  if (!has_rate(n, seconds)) return "";
  if (unit == ProgressBar::Unit::kItems) return strf(", {:.1f}/s", n / seconds);
  return strf(", {:.2f} GB/s", n / seconds / 1e9);
}

}  // namespace

ProgressBar::ProgressBar(std::string label, Unit unit)
    : label_(std::move(label)),
      unit_(unit),
      is_terminal_(::isatty(STDERR_FILENO) == 1),
      start_(Clock::now()) {}

ProgressBar::~ProgressBar() {
  if (!finished_ && is_terminal_ && total_ != 0) std::fputs("\r\x1b[K", stderr);
}

void ProgressBar::update(uint64_t done, uint64_t total) {
  done_ = done;
  total_ = total;
  const Clock::time_point now = Clock::now();
  if (!is_terminal_ || finished_ || now - last_draw_ < kRedrawInterval) return;
  last_draw_ = now;
  draw(std::chrono::duration<double>(now - start_).count(), /*last=*/false);
}

void ProgressBar::finish() {
  if (finished_) return;
  finished_ = true;
  if (total_ == 0) return;  // nothing was done
  draw(std::chrono::duration<double>(Clock::now() - start_).count(), /*last=*/true);
}

void ProgressBar::draw(double seconds, bool last) {
  const auto done = static_cast<double>(done_);
  std::string line;
  // "\r" and "erase to the end of the line": a shorter line must not leave the tail of a longer one.
  if (is_terminal_) line += "\r\x1b[K";
  line += label_;
  if (last) {
    line += strf(": {} in {:.1f} s{}\n", amount(done, unit_), seconds, rate(done, seconds, unit_));
  } else {
    const double fraction = total_ == 0 ? 0.0 : std::min(1.0, done / static_cast<double>(total_));
    const int filled = static_cast<int>(fraction * kBarCells);
    line += strf(" [{}{}] {:3.0f}% {} of {}{}", std::string(static_cast<size_t>(filled), '#'),
                 std::string(static_cast<size_t>(kBarCells - filled), '.'), 100.0 * fraction,
                 amount(done, unit_), amount(static_cast<double>(total_), unit_), rate(done, seconds, unit_));
  }
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace sparrow
