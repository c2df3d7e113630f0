// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "base/json/json.h"

namespace sparrow {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr size_t kLengthBytes = 8;
// The format's own limit.
constexpr size_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxRank = 8;

struct StoredType {
  std::string_view name;
  size_t bytes;
  std::optional<DType> dtype;
};

// Every type the format knows with whole bytes. Those without a DType can be in a file, but not be used.
constexpr std::array<StoredType, 17> kStoredTypes = {{{"F32", 4, DType::kF32},
                                                      {"BF16", 2, DType::kBF16},
                                                      {"F8_E4M3", 1, DType::kF8E4M3},
                                                      {"U8", 1, DType::kU8},
                                                      {"I32", 4, DType::kI32},
                                                      {"I64", 8, std::nullopt},
                                                      {"F64", 8, std::nullopt},
                                                      {"F16", 2, std::nullopt},
                                                      {"I16", 2, std::nullopt},
                                                      {"I8", 1, std::nullopt},
                                                      {"U16", 2, std::nullopt},
                                                      {"U32", 4, std::nullopt},
                                                      {"U64", 8, std::nullopt},
                                                      {"BOOL", 1, std::nullopt},
                                                      {"F8_E5M2", 1, std::nullopt},
                                                      {"F8_E8M0", 1, std::nullopt},
                                                      {"C64", 8, std::nullopt}}};

const StoredType* find_type(std::string_view name) {
  const auto found = std::find_if(kStoredTypes.begin(), kStoredTypes.end(),
                                  [&](const StoredType& type) { return type.name == name; });
  return found == kStoredTypes.end() ? nullptr : &*found;
}

Error corrupt(std::string message) {
  return {Errc::kCorrupt, std::move(message)};
}

// Bytes of a tensor; nullopt when they do not fit into 63 bits.
std::optional<int64_t> checked_bytes(std::span<const int64_t> shape, size_t element_bytes) {
  auto bytes = static_cast<int64_t>(element_bytes);
  // A zero extent makes the product zero, however large the others are.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  for (const int64_t extent : shape)
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  return bytes;
}

// One member of the header. Offsets come back relative to the data.
Result<SafetensorsEntry> parse_entry(const Json& json, int64_t data_bytes) {
  SafetensorsEntry entry;
  entry.dtype_name = SPARROW_TRY(SPARROW_TRY(json.at("dtype")).as_string());
  const Json shape = SPARROW_TRY(json.at("shape"));
  SPARROW_TRY(shape.expect_array());
  if (shape.size() > kMaxRank)
    return corrupt(strf("{} has {} extents; at most {} are allowed", shape.path(), shape.size(), kMaxRank));
  for (size_t i = 0; i < shape.size(); ++i)
    entry.shape.push_back(SPARROW_TRY(shape.element(i).as_int(0, INT64_MAX)));

  const Json offsets = SPARROW_TRY(json.at("data_offsets"));
  if (!offsets.is_array() || offsets.size() != 2) return offsets.error("must be a list of two offsets");
  const int64_t begin = SPARROW_TRY(offsets.element(0).as_int(0, INT64_MAX));
  const int64_t end = SPARROW_TRY(offsets.element(1).as_int(0, INT64_MAX));
  if (begin > end || end > data_bytes)
    return corrupt(
        strf("{} [{}, {}] do not lie inside the {} bytes of data", offsets.path(), begin, end, data_bytes));
  entry.begin = static_cast<size_t>(begin);
  entry.end = static_cast<size_t>(end);

  // A type from a newer format: its size is unknown, and nothing here can use it.
  const StoredType* const type = find_type(entry.dtype_name);
  if (type == nullptr) return entry;
  entry.dtype = type->dtype;
  if (checked_bytes(entry.shape, type->bytes) != end - begin)
    return corrupt(strf("tensor {} of type {} and shape {} does not fill its {} bytes of data", json.path(),
                        entry.dtype_name, shape_string(entry.shape), end - begin));
  return entry;
}

Status parse_metadata(const Json& json, SafetensorsHeader& header) {
  SPARROW_TRY(json.expect_object());
  for (size_t i = 0; i < json.size(); ++i)
    header.metadata.emplace(json.key(i), SPARROW_TRY(json.member(i).as_string()));
  return Ok{};
}

// The tensors must tile the data from its first to its last byte.
Status check_tiling(const SafetensorsHeader& header, size_t data_bytes) {
  using Named = std::pair<const std::string*, const SafetensorsEntry*>;
  std::vector<Named> by_offset;
  by_offset.reserve(header.entries.size());
  for (const auto& [name, entry] : header.entries) by_offset.emplace_back(&name, &entry);
  std::sort(by_offset.begin(), by_offset.end(), [](const Named& a, const Named& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  size_t reached = 0;
  const std::string* previous = nullptr;
  for (const auto& [name, entry] : by_offset) {
    if (entry->begin < reached) return corrupt(strf("tensors {} and {} overlap", *previous, *name));
    if (entry->begin > reached)
      return corrupt(
          strf("{} bytes of data before tensor {} belong to no tensor", entry->begin - reached, *name));
    reached = entry->end;
    previous = name;
  }
  if (reached != data_bytes)
    return corrupt(strf("the last {} bytes of data belong to no tensor", data_bytes - reached));
  return Ok{};
}

}  // namespace

std::string shape_string(std::span<const int64_t> shape) {
  std::string out = "[";
  for (const int64_t extent : shape) out += strf("{}{}", out.size() > 1 ? ", " : "", extent);
  return out + "]";
}

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> file) {
  if (file.size() < kLengthBytes)
    return corrupt(strf("the file is {} bytes long, too short for a safetensors header", file.size()));
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), kLengthBytes);
  if (header_bytes > file.size() - kLengthBytes)
    return corrupt(strf("the header claims {} bytes, but the file has only {}", header_bytes, file.size()));
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, header_bytes);
  const JsonDocument document =
      SPARROW_TRY(JsonDocument::parse(text, "the header", {.max_bytes = kMaxHeaderBytes, .max_depth = 4}));
  const Json root = document.root();
  SPARROW_TRY(root.expect_object());

  const size_t data_begin = kLengthBytes + header_bytes;
  const size_t data_bytes = file.size() - data_begin;
  SafetensorsHeader header;
  for (size_t i = 0; i < root.size(); ++i) {
    if (root.key(i) == "__metadata__") {
      SPARROW_TRY(parse_metadata(root.member(i), header));
      continue;
    }
    header.entries.emplace(root.key(i),
                           SPARROW_TRY(parse_entry(root.member(i), static_cast<int64_t>(data_bytes))));
  }
  SPARROW_TRY(check_tiling(header, data_bytes));
  for (auto& [name, entry] : header.entries) {
    entry.begin += data_begin;
    entry.end += data_begin;
  }
  return header;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile opened;
  opened.path_ = path;
  opened.file_ = SPARROW_TRY(MappedFile::open(path));
  auto header = parse_safetensors_header(opened.file_.bytes());
  if (!header.ok()) return Error{header.error().code, strf("{}: {}", quoted(path), header.error().message)};
  opened.header_ = std::move(*header);
  return opened;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = header_.entries.find(name);
  return found == header_.entries.end() ? nullptr : &found->second;
}

Result<Tensor> SafetensorsFile::tensor(std::string_view name) const {
  const SafetensorsEntry* const entry = find(name);
  if (entry == nullptr) return Error{Errc::kNotFound, strf("{} holds no tensor {}", quoted(path_), name)};
  const auto unusable = [&](const std::string& why) {
    return Error{Errc::kUnsupported, strf("tensor {} of {} {}", name, quoted(path_), why)};
  };
  if (!entry->dtype) return unusable(strf("has type {}, which is not supported", entry->dtype_name));
  if (entry->shape.size() > size_t{Tensor::kMaxRank})
    return unusable(strf("has {} extents; at most {} are supported", entry->shape.size(), Tensor::kMaxRank));
  const std::byte* const data = bytes(*entry).data();
  if (reinterpret_cast<uintptr_t>(data) % size_of(*entry->dtype) != 0)
    return unusable(strf("does not lie at a multiple of {} bytes", size_of(*entry->dtype)));
  return make_view(data, *entry->dtype, entry->shape);
}

Tensor make_view(const std::byte* data, DType dtype, std::span<const int64_t> shape) {
  SPARROW_CHECK_LE(shape.size(), size_t{Tensor::kMaxRank});
  Tensor view;
  view.data = const_cast<std::byte*>(data);
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), view.shape.begin());
  view.row_stride = shape.empty() ? 0 : 1;
  for (size_t d = 1; d < shape.size(); ++d) view.row_stride *= shape[d];
  return view;
}

}  // namespace sparrow
