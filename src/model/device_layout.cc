// SPDX-License-Identifier: Apache-2.0
#include "model/device_layout.h"

#include <algorithm>
#include <utility>

#include "base/math.h"
#include "checkpoint/tensor_table.h"
#include "ops/cuda/limits.h"

namespace sparrow {
namespace {

constexpr int kTile = ops::cuda::kColumnTile;
constexpr int kInterleave = 8;
constexpr int kGroups[] = {4, 8, 16};  // query heads for one KV head that the attention kernels take

// Query heads of one rank for each of its KV heads, and the next size that the kernels take (0: none).
int group_size(const ModelConfig& config, const Grid& grid) {
  return config.num_query_heads / grid.tp / kv_heads_per_rank(config, grid);
}
int padded_group_size(const ModelConfig& config, const Grid& grid) {
  for (const int size : kGroups)
    if (size >= group_size(config, grid)) return size;
  return 0;
}

Status check_shapes(const ModelConfig& config, const Grid& grid) {
  if (config.hidden_size % kTile != 0)
    return Error{
        Errc::kUnsupported,
        strf("hidden_size {} is not a multiple of {}: the GPU kernels cannot run this model; the CPU can",
             config.hidden_size, kTile),
        "hidden_size"};
  const bool has_moe = std::count(config.layer_is_moe.begin(), config.layer_is_moe.end(), 1) > 0;
  const struct {
    const char* field;
    int value, most;
  } limits[] = {
      {"hidden_size", config.hidden_size, ops::cuda::kMaxHidden},
      {"vocab_size", config.vocab_size, ops::cuda::kMaxVocabulary},
      {"num_local_experts", has_moe ? config.num_experts : 0, ops::cuda::kMaxExperts},
      {"num_experts_per_tok", has_moe ? config.experts_per_token : 0, ops::cuda::kMaxExpertsPerToken}};
  for (const auto& [field, value, most] : limits)
    if (value > most)
      return Error{Errc::kUnsupported,
                   strf("{} {} is more than the {} that the GPU kernels take; the CPU can run this model",
                        field, value, most),
                   field};
  if (padded_group_size(config, grid) == 0)
    return Error{
        Errc::kUnsupported,
        strf("num_attention_heads {}: {} query heads for one KV head are more than the {} that the GPU "
             "kernels take; the CPU can run this model",
             config.num_query_heads, group_size(config, grid), std::end(kGroups)[-1]),
        "num_attention_heads"};
  if (has_moe && config.shared_intermediate_size != config.expert_intermediate_size)
    return Error{
        Errc::kUnsupported,
        strf("shared_intermediate_size {} differs from intermediate_size {}: the GPU kernels run the shared "
             "expert as one of the experts; the CPU can run this model",
             config.shared_intermediate_size, config.expert_intermediate_size),
        "shared_intermediate_size"};
  return Ok{};
}

// What the kernels read: f32 where the router is computed, quantised numbers in the layers' other matrices,
// and bf16 everywhere else.
bool is_read(DeviceTensor tensor, MatrixFormat format) {
  switch (tensor) {
    case DeviceTensor::kRouter:
    case DeviceTensor::kRouterBias:
      return format == MatrixFormat::kF32;
    case DeviceTensor::kQkv:
    case DeviceTensor::kO:
    case DeviceTensor::kGateUp:
    case DeviceTensor::kDown:
    case DeviceTensor::kSharedGateUp:
    case DeviceTensor::kSharedDown:
      return format == MatrixFormat::kBF16 || is_mx(format);
    default:
      return format == MatrixFormat::kBF16;
  }
}

Status check_format(const TensorRow& row) {
  if (is_read(row.device.tensor, row.device.format)) return Ok{};
  return Error{Errc::kUnsupported,
               strf("tensor {}: the GPU kernels do not read {} there; the CPU can run this model",
                    row.spec.name, name_of(row.device.format)),
               row.spec.name};
}

// The rows of which the rank holds something on the GPU, each with its place there.
std::vector<TensorRow> rows_here(const ModelConfig& config, const Grid& grid,
                                 std::span<const TensorRow> rows) {
  std::vector<TensorRow> here;
  for (const TensorRow& row : rows) {
    if (row.device.tensor == DeviceTensor::kNone || shard_of(config, grid, row).empty()) continue;
    DeviceTensor& tensor = here.emplace_back(row).device.tensor;
    // Index q is the last of its matrix, for those of other ranks may follow.
    if (row.role == TensorRole::kIndexK && here.size() > 1 &&
        here[here.size() - 2].role == TensorRole::kIndexQ)
      std::swap(here[here.size() - 2], here.back());
    if (!has_whole_experts(grid) || row.part != LedgerPart::kSharedExperts) continue;
    tensor = tensor == DeviceTensor::kDown ? DeviceTensor::kSharedDown : DeviceTensor::kSharedGateUp;
  }
  return here;
}

// Lays tensors down, each in its matrix, below those that are there already.
class Placer {
 public:
  Placer(const ModelConfig& config, const Grid& grid, DeviceLayout& layout)
      : config_(config), grid_(grid), layout_(layout) {}

  // A matrix has one format. Where its tensors differ (a list of exclusions may say so), all are expanded to
  // bf16, which holds every number of theirs. Before any tensor is added.
  void choose_formats(std::span<const TensorRow> rows) {
    for (const TensorRow& row : rows) matrix_of(row).format = row.device.format;
    for (const TensorRow& row : rows)
      if (matrix_of(row).format != row.device.format) matrix_of(row).format = MatrixFormat::kBF16;
  }

  void add(const TensorRow& row) {
    DevicePart part = cut(row);
    const bool by_columns = row.cut == TensorCut::kColumns;
    const int64_t padded_rows = by_columns ? part.num_rows : padded(row, part.num_rows);
    (by_columns ? part.columns : part.rows) = runs_of(row.device.packing);

    DeviceTensorLayout& matrix = matrix_of(row);
    matrix.cols = part.matrix_columns = by_columns ? padded(row, part.num_cols) : part.num_cols;
    part.tensor.device.format = matrix.format;
    part.matrix_row = matrix.rows;
    // Eights of a second tensor start in the gap after the first's first eight.
    if (row.device.packing == DevicePacking::kSecondEights) part.matrix_row += kInterleave - padded_rows;
    matrix.rows += padded_rows;
    layout_.parts.push_back(std::move(part));
    if (row.role == TensorRole::kIndexQ && shared_index_heads(config_, grid_) > 0) add_other_index_heads(row);
  }

  // Once every tensor is there: hands out memory front to back.
  void finish() {
    take(layout_.model[DeviceTensor::kEmbed]);
    for (DeviceLayerLayout& layer : layout_.layers) {
      for (DeviceTensorLayout& tensor : layer.tensors.all) take(tensor);
      layer.qkv_rows = static_cast<int>(layer.tensors[DeviceTensor::kQkv].rows) - layer.other_index_rows;
      layer.inter = static_cast<int>(layer.tensors[DeviceTensor::kDown].cols);
      layer.shared_inter = static_cast<int>(layer.tensors[DeviceTensor::kSharedDown].cols);
      for (const DeviceTensor tensor : {DeviceTensor::kQkv, DeviceTensor::kO})
        if (const DeviceTensorLayout& matrix = layer.tensors[tensor]; is_mx(matrix.format))
          layer.expanded_numbers = std::max(layer.expanded_numbers, matrix.rows * matrix.cols);
    }
    take(layout_.model[DeviceTensor::kFinalNorm]);
    take(layout_.model[DeviceTensor::kHead]);
    for (DevicePart& part : layout_.parts) part.offset = matrix_of(part.tensor).offset;
  }

 private:
  // Behind the rank's own, so that products without them are those of the first rows.
  void add_other_index_heads(const TensorRow& row) {
    DeviceTensorLayout& matrix = matrix_of(row);
    const DevicePart own = layout_.parts.back();
    const int64_t own_end = own.first_row + own.num_rows;
    for (const auto& [begin, end] : {std::pair{int64_t{0}, own.first_row}, {own_end, own.whole_rows}}) {
      if (begin == end) continue;
      DevicePart part = own;
      part.first_row = begin, part.num_rows = end - begin;
      part.matrix_row = matrix.rows;
      matrix.rows += part.num_rows;
      layout_.layers[static_cast<size_t>(row.layer)].other_index_rows += static_cast<int>(part.num_rows);
      layout_.parts.push_back(std::move(part));
    }
  }

  DeviceTensorLayout& matrix_of(const TensorRow& row) {
    if (row.layer < 0) return layout_.model[row.device.tensor];
    return layout_.layers[static_cast<size_t>(row.layer)].tensors[row.device.tensor];
  }

  DevicePart cut(const TensorRow& row) const {
    const bool is_vector = row.spec.shape.size() == 1;
    SPARROW_CHECK(row.spec.shape.size() <= 2 && (!is_vector || row.cut == TensorCut::kWhole));
    const int64_t rows = is_vector ? 1 : row.spec.shape[0], cols = row.columns();
    DevicePart part = {
        .tensor = row, .whole_rows = rows, .whole_cols = cols, .num_rows = rows, .num_cols = cols};
    if (is_vector) return part;
    const ShardRange range = shard_of(config_, grid_, row);
    const int64_t numbers = range.axis == 0 ? 1 : values_per_element(row.format);
    (range.axis == 0 ? part.first_row : part.first_col) = range.begin * numbers;
    (range.axis == 0 ? part.num_rows : part.num_cols) = (range.end - range.begin) * numbers;
    return part;
  }

  // Of query heads that share a KV head, without and with zero heads.
  DeviceRuns head_groups() const {
    return {int64_t{group_size(config_, grid_)} * config_.head_dim,
            int64_t{padded_group_size(config_, grid_)} * config_.head_dim};
  }

  DeviceRuns runs_of(DevicePacking packing) const {
    switch (packing) {
      case DevicePacking::kHeadGroups:
        return head_groups();
      case DevicePacking::kFirstEights:
      case DevicePacking::kSecondEights:
        return {kInterleave, 2 * kInterleave};
      default:
        return {};
    }
  }

  int64_t padded(const TensorRow& row, int64_t count) const {
    switch (row.device.packing) {
      case DevicePacking::kAsIs:
        return count;
      case DevicePacking::kHeadGroups:
        return count / head_groups().size * head_groups().stride;
      default:
        return round_up(count, kTile);
    }
  }

  void take(DeviceTensorLayout& tensor) {
    if (tensor.rows == 0) return;
    if (is_mx(tensor.format))
      SPARROW_CHECK(tensor.rows % ops::cuda::kCellRows == 0 && tensor.cols % ops::cuda::kCellColumns == 0);
    tensor.offset = layout_.bytes;
    layout_.bytes += round_up(tensor.bytes(), kDeviceAlignment);
  }

  const ModelConfig& config_;
  const Grid& grid_;
  DeviceLayout& layout_;
};

}  // namespace

Result<DeviceLayout> make_device_layout(const ModelConfig& config, const Grid& grid,
                                        std::span<const TensorRow> all_rows) {
  SPARROW_TRY(validate(config, grid));
  SPARROW_TRY(check_shapes(config, grid));
  DeviceLayout layout;
  layout.kv_heads = kv_heads_per_rank(config, grid);
  layout.query_heads = layout.kv_heads * padded_group_size(config, grid);
  layout.vocab_rows = config.vocab_size / grid.tp;
  layout.first_vocab_row = layout.vocab_rows * grid.tp_rank();
  layout.experts = experts_of(config, grid);
  layout.layers.resize(static_cast<size_t>(config.num_layers));
  for (size_t i = 0; i < layout.layers.size(); ++i)
    if (config.layer_is_moe[i]) layout.layers[i].num_experts = layout.experts.count;
  const std::vector<TensorRow> rows = rows_here(config, grid, all_rows);
  Placer placer(config, grid, layout);
  placer.choose_formats(rows);
  for (const TensorRow& row : rows) {
    SPARROW_TRY(check_format(row));
    placer.add(row);
  }
  placer.finish();
  return layout;
}

Result<DeviceLayout> make_device_layout(const ModelConfig& config, const Grid& grid) {
  return make_device_layout(config, grid, tensor_table(config));
}

Result<size_t> device_weight_bytes(const ModelConfig& config, const Grid& grid) {
  return SPARROW_TRY(make_device_layout(config, grid)).bytes;
}

}  // namespace sparrow
