// SPDX-License-Identifier: Apache-2.0
// The goldens of tests/golden/vision as the tests of media/ read them.
#pragma once

#include <openssl/evp.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "base/json/json.h"
#include "media/image.h"
#include "media/resize.h"
#include "support/golden.h"

namespace sparrow::test {

inline std::filesystem::path vision_dir() {
  return golden_dir() / "vision";
}

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

inline std::string vision_file(const std::string& name) {
  return read_text(vision_dir() / name);
}

inline JsonDocument manifest() {
  return JsonDocument::parse(vision_file("manifest.json"), "manifest.json").value();
}

inline std::string sha256(std::span<const uint8_t> bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned size = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr);
  std::string hex;
  for (unsigned i = 0; i < size; ++i) {
    hex += "0123456789abcdef"[digest[i] >> 4];
    hex += "0123456789abcdef"[digest[i] & 15];
  }
  return hex;
}

inline Image decoded(const std::string& name) {
  return decode_image(bytes_of(vision_file(name)), DecodeLimits{}).value();
}

inline Image resized(const Image& image, ImageSize size) {
  Image out;
  resize_bicubic(image, size, out);
  return out;
}

inline std::vector<int64_t> int_list(const Json& list) {
  std::vector<int64_t> values;
  for (size_t i = 0; i < list.size(); ++i) values.push_back(list.element(i).as_int(0, 1 << 30).value());
  return values;
}

}  // namespace sparrow::test
