// SPDX-License-Identifier: Apache-2.0
#include "support/checkpoint/expanded.h"

#include <map>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "base/files/mapped_file.h"
#include "base/json/json.h"
#include "base/json/json_writer.h"
#include "checkpoint/safetensors.h"

namespace sparrow::test {
namespace {

namespace fs = std::filesystem;

struct Stored {
  TensorSpec spec;
  std::vector<uint8_t> bytes;
};

std::map<std::string, Stored> read_all(const fs::path& dir) {
  std::map<std::string, Stored> tensors;
  for (const auto& item : fs::directory_iterator(dir)) {
    if (item.path().extension() != ".safetensors") continue;
    const SafetensorsFile file = SafetensorsFile::open(item.path()).value();
    for (const auto& [name, entry] : file.header().entries) {
      const auto* const bytes = reinterpret_cast<const uint8_t*>(file.bytes(entry).data());
      tensors[name] = {{name, *entry.dtype, entry.shape}, {bytes, bytes + file.bytes(entry).size()}};
    }
  }
  return tensors;
}

Stored expanded(const Stored& codes, const std::vector<uint8_t>& scales) {
  const bool fp8 = codes.spec.dtype == DType::kF8E4M3;
  Stored out{codes.spec, {}};
  out.spec.dtype = DType::kBF16;
  if (!fp8) out.spec.shape.back() *= 2;
  for (size_t i = 0; i < codes.bytes.size() * (fp8 ? 1 : 2); ++i) {
    const float code = fp8 ? e4m3_to_float(codes.bytes[i])
                           : e2m1_to_float(static_cast<uint8_t>(codes.bytes[i / 2] >> (i % 2 * 4) & 15));
    const uint16_t bits = to_bf16(code * e8m0_to_float(scales[i / 32])).bits;
    out.bytes.insert(out.bytes.end(), {static_cast<uint8_t>(bits), static_cast<uint8_t>(bits >> 8)});
  }
  return out;
}

std::string without_quantisation(const std::string& config_json) {
  const JsonDocument document = JsonDocument::parse(config_json, "config.json").value();
  const Json root = document.root();
  JsonWriter out;
  out.begin_object();
  for (size_t i = 0; i < root.size(); ++i)
    if (root.key(i) != "quantization_config") write_json(root.member(i), out.key(root.key(i)));
  return out.end_object().take();
}

}  // namespace

void write_expanded(const fs::path& from, const fs::path& to) {
  fs::create_directories(to);
  const std::map<std::string, Stored> tensors = read_all(from);
  std::vector<Stored> kept;
  for (const auto& [name, tensor] : tensors) {
    if (name.ends_with("_scale") || name.ends_with("_scale_inv")) continue;
    auto scales = tensors.find(name + "_scale_inv");
    if (scales == tensors.end()) scales = tensors.find(name + "_scale");
    kept.push_back(scales == tensors.end() ? tensor : expanded(tensor, scales->second.bytes));
  }
  std::vector<TensorSpec> specs;
  for (const Stored& tensor : kept) specs.push_back(tensor.spec);
  SafetensorsWriter writer = SafetensorsWriter::create(to / "model.safetensors", specs).value();
  for (size_t i = 0; i < kept.size(); ++i)
    SPARROW_CHECK(writer.write(i, std::as_bytes(std::span(kept[i].bytes))).ok());
  SPARROW_CHECK(writer.finish().ok());
  for (const auto& item : fs::directory_iterator(from))
    if (const std::string name = item.path().filename(); name.find("safetensors") == std::string::npos)
      fs::copy_file(item.path(), to / name);
  const std::string config = read_text_file(from / "config.json", 1 << 24).value();
  SPARROW_CHECK(write_text_file(to / "config.json", without_quantisation(config)).ok());
}

}  // namespace sparrow::test
