// SPDX-License-Identifier: Apache-2.0
#include "cli/args/byte_size.h"

#include <charconv>
#include <cmath>

namespace sparrow::cli {

Result<int64_t> parse_byte_size(std::string_view text, std::string_view flag) {
  const Error error{Errc::kInvalidArgument, strf("{} must be a size such as 4G or 512M, got {}", flag, text),
                    std::string(flag)};
  double value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc{}) return error;
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  double factor = 1;
  if (!unit.empty()) {
    static constexpr std::string_view kUnits = "KMGT";
    const size_t power = kUnits.find(static_cast<char>(unit[0] & ~0x20));
    if (power == std::string_view::npos) return error;
    factor = std::pow(1024.0, static_cast<double>(power + 1));
    unit.remove_prefix(1);
    if (!unit.empty() && unit != "B" && unit != "iB" && unit != "b") return error;
  }
  const double bytes = value * factor;
  if (!(bytes >= 1 && bytes < 0x1p62)) return error;
  return static_cast<int64_t>(bytes);
}

Result<int64_t> parse_count(std::string_view text, std::string_view flag) {
  const Error error{Errc::kInvalidArgument,
                    strf("{} must be a whole number such as 65536, 64k or 64K, got {}", flag, text),
                    std::string(flag)};
  double value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  if (failed != std::errc{} || unit.size() > 1) return error;
  if (!unit.empty()) {
    static constexpr std::string_view kUnits = "kmg";
    const bool is_binary = unit[0] >= 'A' && unit[0] <= 'Z';
    const size_t power = kUnits.find(static_cast<char>(unit[0] | 0x20));
    if (power == std::string_view::npos) return error;
    value *= std::pow(is_binary ? 1024.0 : 1000.0, static_cast<double>(power + 1));
  }
  const double whole = std::round(value);
  if (!(whole >= 0 && whole < 0x1p53) || std::abs(value - whole) > 1e-6 * whole) return error;
  return static_cast<int64_t>(whole);
}

std::string byte_string(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < 1024) return strf("{} B", bytes);
  if (bytes < 1024 * 1024) return strf("{:.1f} KiB", value / 1024);
  if (bytes < 1024 * 1024 * 1024) return strf("{:.1f} MiB", value / (1024 * 1024));
  return strf("{:.2f} GiB", value / (1024.0 * 1024 * 1024));
}

}  // namespace sparrow::cli
