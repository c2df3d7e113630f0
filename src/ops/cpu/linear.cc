// SPDX-License-Identifier: Apache-2.0
// linear and route: activations packed once, then strips of outputs claimed by the threads.
#include <cmath>
#include <limits>
#include <vector>

#include "base/math.h"
#include "ops/cpu/ops_cpu.h"
#include "ops/cpu/part_sums.h"

namespace sparrow::ops::cpu {
namespace {

// Packs all rows of x on the pool's threads, each part of their columns for itself.
void pack_rows(Exec& exec, const GemmEngine& engine, const Tensor& x, int parts, char* packed,
               int64_t packed_part) {
  // Wide enough to spread one group of rows over the threads when there are no more.
  constexpr int64_t kColumns = 2048;
  const int64_t columns = x.cols() / parts, pieces_of_part = ceil_div(columns, kColumns);
  const int64_t groups = ceil_div(x.rows(), kRowGroup), pieces = parts * pieces_of_part;
  const auto pack = [&](int64_t item) {
    const int64_t row = item / pieces * kRowGroup, count = std::min(kRowGroup, x.rows() - row);
    const int64_t part = item % pieces / pieces_of_part, column = item % pieces_of_part * kColumns;
    const void* rows[kRowGroup];
    for (int64_t r = 0; r < count; ++r)
      rows[r] = row_at(x, row + r) + (part * columns + column) * static_cast<int64_t>(size_of(x.dtype));
    engine.pack({.rows = rows,
                 .type = x.dtype,
                 .count = count,
                 .columns = std::min(kColumns, columns - column),
                 .packed = packed + part * packed_part,
                 .packed_columns = columns,
                 .first_row = row,
                 .first_column = column});
  };
  if (groups == 1) {
    for (int64_t item = 0; item < pieces; ++item) pack(item);
  } else {
    exec.pool.parallel_for(groups * pieces, [&](int64_t item, int) { pack(item); });
  }
}

struct Strips {
  const Projection* projection;
  WeightView weight;
  int64_t width, row_chunks, items;

  int64_t output(int64_t item) const { return item / row_chunks * width; }
};

// The strips that an item is of, and its number among theirs; nullptr beyond the last.
const Strips* strips_of(std::span<const Strips> all, int64_t& item) {
  for (const Strips& strips : all) {
    if (item < strips.items) return &strips;
    item -= strips.items;
  }
  return nullptr;
}

// What run_engine takes: the packed rows, and for each thread a workspace and results.
struct Sizes {
  Sizes(const GemmEngine& engine, int64_t rows, int64_t columns, int parts)
      : packed_part(engine.packed_bytes(rows, columns / parts)),
        workspace_bytes(round_up(engine.workspace_bytes(columns), 64)),
        c_part(round_up(std::min(rows, kMaxRows), kRowGroup) * kMaxStrip),
        c_elements(PartSums(parts, rows).buffers() * c_part) {}

  int64_t packed_part, workspace_bytes, c_part, c_elements;
};

void run_engine(Exec& exec, const Kernels& kernels, const GemmEngine& engine, const Tensor& x, int parts,
                std::span<const Strips> all) {
  const int64_t rows = x.rows(), threads = exec.pool.size(), part_columns = x.cols() / parts;
  const Sizes sizes(engine, rows, x.cols(), parts);
  const PartSums sums(parts, rows);
  const int64_t workspace_bytes = sizes.workspace_bytes;
  Scratch::Scope scope(exec.scratch);
  char* packed = scope.take<char>(parts * sizes.packed_part);
  pack_rows(exec, engine, x, parts, packed, sizes.packed_part);
  char* workspaces = scope.take<char>(threads * workspace_bytes);
  float* results = scope.take<float>(threads * sizes.c_elements);

  int64_t items = 0;
  for (const Strips& strips : all) items += strips.items;
  exec.pool.parallel_for(items, [&](int64_t item, int worker) {
    int64_t next = item + threads;  // others take those between, as long as all are as fast
    const Strips *strips = strips_of(all, item), *next_strips = strips_of(all, next);
    const Tensor& out = strips->projection->out;
    const int64_t row = item % strips->row_chunks * kMaxRows, count = std::min(kMaxRows, rows - row);
    const int64_t output = strips->output(item);
    const int64_t outputs = std::min(strips->width, out.cols() - output);
    float* c = results + worker * sizes.c_elements;
    const auto multiply = [&](int first, int count_parts, float* to) {
      engine.multiply({.packed = packed + first * sizes.packed_part,
                       .first_row = row,
                       .rows = count,
                       .weight = columns_of(strips->weight, first * part_columns, count_parts * part_columns),
                       .first_output = output,
                       .outputs = outputs,
                       .c = to,
                       .c_stride = kMaxStrip,
                       .workspace = workspaces + worker * workspace_bytes,
                       .parts = count_parts,
                       .packed_part = sizes.packed_part,
                       .c_part = sizes.c_part,
                       .next = next_strips == nullptr ? WeightPlace{}
                                                      : next_strips->weight.row(next_strips->output(next))});
    };
    sums.run(c, sizes.c_part, multiply, [&](float* to, const float* from) {
      for (int64_t r = 0; r < count; ++r) kernels.row->add(to + r * kMaxStrip, from + r * kMaxStrip, outputs);
    });
    for (int64_t r = 0; r < count; ++r) {
      float* sum = c + r * kMaxStrip;
      const Projection& projection = *strips->projection;
      if (!projection.bias.empty()) kernels.row->add(sum, projection.bias.as<float>() + output, outputs);
      if (projection.gelu) kernels.vision->gelu(sum, outputs);
      kernels.row->from_f32(sum, row_at(out, row + r) + output * static_cast<int64_t>(size_of(out.dtype)),
                            out.dtype, outputs);
    }
  });
}

}  // namespace

int64_t linear_scratch_bytes(const Kernels& kernels, const ScratchQuery& query, int64_t columns) {
  const Sizes sizes(kernels.engine(query.activations, query.weights), query.rows, columns, query.parts);
  return round_up(query.parts * sizes.packed_part, 64) +
         query.threads * (sizes.workspace_bytes + sizes.c_elements * static_cast<int64_t>(sizeof(float)));
}

WeightView view_of(const Weight& weight, int64_t columns) {
  SPARROW_CHECK_EQ(weight.in(), columns);
  WeightView view{.values = weight.values.data,
                  .format = weight.format(),
                  .columns = columns,
                  .stride = weight.values.row_stride * static_cast<int64_t>(size_of(weight.values.dtype))};
  if (is_mx(view.format)) {
    SPARROW_CHECK_EQ(columns % kScaleGroup, 0);
    SPARROW_CHECK_EQ(weight.scales.cols(), columns / kScaleGroup);
    view.scales = weight.scales.as<uint8_t>();
    view.scale_stride = weight.scales.row_stride;
  }
  return view;
}

WeightView columns_of(const WeightView& weight, int64_t first, int64_t count) {
  WeightView view = weight;
  view.values = static_cast<const char*>(weight.values) + value_bytes(weight.format, first);
  if (weight.scales != nullptr) view.scales = weight.scales + first / kScaleGroup;
  view.columns = count;
  return view;
}

int64_t strip_outputs(int64_t outputs, int64_t rows, int threads) {
  constexpr int64_t kNarrow = 32;
  int64_t width = kMaxStrip;  // few rows gain from it too: memory is read in longer runs
  // Four items to a thread keep the last ones from running alone.
  while (width > kNarrow && ceil_div(outputs, width) * ceil_div(rows, kMaxRows) < 4 * threads) width /= 2;
  return width;
}

void linear(Exec& exec, const Kernels& kernels, const Tensor& x, std::span<const Projection> projections,
            int parts) {
  if (x.rows() == 0) return;
  SPARROW_CHECK_EQ(x.cols() % parts, 0);
  // The engine is chosen by types alone, so that a row meets the same arithmetic in every call.
  std::vector<Strips> tiles, simd;
  for (const Projection& projection : projections) {
    const WeightView weight = view_of(*projection.weight, x.cols());
    SPARROW_CHECK(!is_mx(weight.format) || x.cols() / parts % kScaleGroup == 0);
    SPARROW_CHECK_EQ(projection.out.rows(), x.rows());
    SPARROW_CHECK_EQ(projection.out.cols(), projection.weight->out());
    SPARROW_CHECK(projection.bias.empty() || projection.bias.numel() == projection.out.cols());
    const int64_t outputs = projection.out.cols();
    const int64_t width = strip_outputs(outputs, x.rows(), exec.pool.size());
    const int64_t row_chunks = ceil_div(x.rows(), kMaxRows);
    const Strips strips{&projection, weight, width, row_chunks, ceil_div(outputs, width) * row_chunks};
    (&kernels.engine(x.dtype, weight.format) == kernels.tiles ? tiles : simd).push_back(strips);
  }
  if (!tiles.empty()) run_engine(exec, kernels, *kernels.tiles, x, parts, tiles);
  if (!simd.empty()) run_engine(exec, kernels, *kernels.simd, x, parts, simd);
}

namespace {

// Writes the top_k experts of one row, ascending by id, and their weights.
void pick_experts(const float* logits, const float* bias, int64_t experts, int top_k, int32_t* ids,
                  float* weights) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const auto sigmoid = [&](int64_t e) { return 1.0f / (1.0f + std::exp(-logits[e])); };
  const auto choice = [&](int64_t e) {
    const float value = sigmoid(e) + bias[e];
    return std::isnan(value) ? kLowest : value;
  };
  // Insertion keeps ids[0, count) ordered by choice, held in `weights` meanwhile. The scan ascends, so an
  // equal later expert stays behind.
  int count = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const float value = choice(e);
    if (count == top_k && !(value > weights[count - 1])) continue;
    int at = count < top_k ? count++ : count - 1;
    for (; at > 0 && value > weights[at - 1]; --at) {
      weights[at] = weights[at - 1];
      ids[at] = ids[at - 1];
    }
    weights[at] = value;
    ids[at] = static_cast<int32_t>(e);
  }
  std::sort(ids, ids + top_k);
  float sum = 0.0f;
  for (int i = 0; i < top_k; ++i) {
    weights[i] = sigmoid(ids[i]);
    sum += weights[i];
  }
  for (int i = 0; i < top_k; ++i) weights[i] /= sum;
}

}  // namespace

void route(Exec& exec, const Kernels& kernels, const Tensor& x, const Weight& gate, const Tensor& bias,
           int top_k, const Tensor& ids, const Tensor& weights) {
  const int64_t experts = gate.out();
  SPARROW_CHECK_EQ(bias.numel(), experts);
  SPARROW_CHECK_LE(top_k, experts);
  SPARROW_CHECK_LE(1, top_k);
  Scratch::Scope scope(exec.scratch);
  const Tensor logits(scope.take<float>(x.rows() * experts), DType::kF32, {x.rows(), experts});
  float* biases = scope.take<float>(experts);
  kernels.row->to_f32(bias.data, bias.dtype, biases, experts);
  const Projection projection{&gate, logits};
  linear(exec, kernels, x, {&projection, 1});
  // An exponential for each expert: count it as sixteen elements.
  for_each_row(exec, x.rows(), experts * 16, [&](int64_t row, int) {
    pick_experts(logits.row<float>(row), biases, experts, top_k, ids.row<int32_t>(row),
                 weights.row<float>(row));
  });
}

}  // namespace sparrow::ops::cpu
