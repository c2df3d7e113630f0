// SPDX-License-Identifier: Apache-2.0
// mlp and moe: (row, expert) pairs grouped by expert, then two passes over the weights. Pass 1 makes the
// hidden rows of every group; pass 2 owns a strip of outputs and adds the groups in ascending expert id, the
// shared expert last, so that the order of a row's sum is the same in every batch; so for each part of the
// channels.
#include <cstring>
#include <vector>

#include "base/math.h"
#include "ops/cpu/ops_cpu.h"
#include "ops/cpu/part_sums.h"

namespace sparrow::ops::cpu {
namespace {

// Packed activations of pass 1 stay below this many rows: past it, groups are taken in batches.
constexpr int64_t kPackedRows = 2048;

struct Group {
  const MlpWeights* mlp;
  WeightView gate, up, down;
  std::vector<int32_t> rows;   // of x
  std::vector<float> factors;  // of each row's contribution
  int64_t first_row = 0;       // of this group when all groups are packed one after another
  char* hidden = nullptr;      // packed hidden rows, made by pass 1: the parts one after another
  int64_t hidden_part = 0;     // bytes of a part of them
};

struct Pass {
  Exec& exec;
  const RowKernels& row;
  const GemmEngine& engine;
  const Tensor& x;
  int parts;
};

Group make_group(const MlpWeights& mlp, int64_t columns) {
  const int64_t hidden = mlp.gate.out();
  SPARROW_CHECK_EQ(mlp.up.out(), hidden);
  return {.mlp = &mlp,
          .gate = view_of(mlp.gate, columns),
          .up = view_of(mlp.up, columns),
          .down = view_of(mlp.down, hidden),
          .rows = {},
          .factors = {}};
}

// Whether another rank has its weights.
bool is_elsewhere(const MlpWeights& mlp) {
  return mlp.gate.values.empty();
}

// Ascending by expert id, the shared expert last; rows ascending within a group.
std::vector<Group> group_rows(const Tensor& x, const Experts& experts) {
  std::vector<Group> groups;
  std::vector<int32_t> group_of(experts.routed.size(), -1);
  const int64_t top_k = experts.ids.empty() ? 0 : experts.ids.cols();
  for (int64_t row = 0; row < x.rows(); ++row)
    for (int64_t k = 0; k < top_k; ++k) group_of[static_cast<size_t>(experts.ids.row<int32_t>(row)[k])] = 0;
  for (size_t e = 0; e < group_of.size(); ++e) {
    if (group_of[e] < 0) continue;
    group_of[e] = -1;
    if (is_elsewhere(experts.routed[e])) continue;
    group_of[e] = static_cast<int32_t>(groups.size());
    groups.push_back(make_group(experts.routed[e], x.cols()));
  }
  groups.push_back(make_group(experts.shared, x.cols()));
  for (int64_t row = 0; row < x.rows(); ++row) {
    for (int64_t k = 0; k < top_k; ++k) {
      const int32_t place = group_of[static_cast<size_t>(experts.ids.row<int32_t>(row)[k])];
      if (place < 0) continue;
      Group& group = groups[static_cast<size_t>(place)];
      group.rows.push_back(static_cast<int32_t>(row));
      group.factors.push_back(experts.weights.row<float>(row)[k] * experts.scaling);
    }
    groups.back().rows.push_back(static_cast<int32_t>(row));
    groups.back().factors.push_back(1.0f);
  }
  for (size_t g = 1; g < groups.size(); ++g)
    groups[g].first_row =
        groups[g - 1].first_row + round_up(static_cast<int64_t>(groups[g - 1].rows.size()), kRowGroup);
  return groups;
}

int64_t padded_rows(std::span<const Group> groups) {
  int64_t rows = 0;
  for (const Group& group : groups) rows += round_up(static_cast<int64_t>(group.rows.size()), kRowGroup);
  return rows;
}

// One engine for all experts, picked or not: a row's bits must not depend on who else is picked.
const GemmEngine& engine_of(const Kernels& kernels, DType activation, const Experts& experts) {
  const auto fits = [&](const MlpWeights& mlp) {
    for (const Weight* weight : {&mlp.gate, &mlp.up, &mlp.down})
      if (&kernels.engine(activation, weight->format()) != kernels.tiles) return false;
    return true;
  };
  bool tiles = kernels.tiles != nullptr && fits(experts.shared);
  for (const MlpWeights& mlp : experts.routed) tiles = tiles && (is_elsewhere(mlp) || fits(mlp));
  return tiles ? *kernels.tiles : *kernels.simd;
}

// Gathers the rows of every group, one row group to an item; few rows alone, as waking the others takes
// longer.
void gather(const Pass& pass, std::span<const Group> groups, void* packed) {
  const Tensor& x = pass.x;
  const int64_t base = groups.front().first_row, items = padded_rows(groups) / kRowGroup;
  const auto pack = [&](int64_t item, int) {
    size_t g = 0;
    while (g + 1 < groups.size() && base + item * kRowGroup >= groups[g + 1].first_row) ++g;
    const int64_t first = base + item * kRowGroup - groups[g].first_row;
    const int64_t count = std::min(kRowGroup, static_cast<int64_t>(groups[g].rows.size()) - first);
    const void* rows[kRowGroup];
    for (int64_t r = 0; r < count; ++r) rows[r] = row_at(x, groups[g].rows[static_cast<size_t>(first + r)]);
    pass.engine.pack({.rows = rows,
                      .type = x.dtype,
                      .count = count,
                      .columns = x.cols(),
                      .packed = packed,
                      .packed_columns = x.cols(),
                      .first_row = item * kRowGroup,
                      .first_column = 0});
  };
  int64_t rows = 0;
  for (const Group& group : groups) rows += static_cast<int64_t>(group.rows.size());
  if (rows * x.cols() > kElementsPerItem) return pass.exec.pool.parallel_for(items, pack);
  for (int64_t item = 0; item < items; ++item) pack(item, 0);
}

// A piece of one group: up to kMaxRows rows and a strip of outputs.
struct Piece {
  const Group* group;
  int64_t row, rows, output, outputs;
};

// Pieces of every group, a strip's chunks of rows side by side. A piece has channels of one part.
std::vector<Piece> make_pieces(const Pass& pass, std::span<const Group> groups) {
  std::vector<Piece> pieces;
  for (const Group& group : groups) {
    const int64_t rows = static_cast<int64_t>(group.rows.size()), outputs = group.down.columns;
    const int64_t of_part = outputs / pass.parts;
    // Two products share a piece: half the width keeps its buffers the size of linear's.
    const int64_t width = std::min(kMaxStrip / 2, strip_outputs(outputs, rows, pass.exec.pool.size()));
    for (int64_t output = 0, count; output < outputs; output += count) {
      count = std::min(width, of_part - output % of_part);
      for (int64_t row = 0; row < rows; row += kMaxRows)
        pieces.push_back({&group, row, std::min(kMaxRows, rows - row), output, count});
    }
  }
  return pieces;
}

struct Worker {
  float* c;
  char* workspace;
};

// Elements of a thread's result of `rows` rows.
int64_t result_elements(int64_t rows, int64_t width) {
  return round_up(std::min(rows, kMaxRows), kRowGroup) * width;
}

// Buffers of each thread: results of so many elements together and a workspace for `columns`.
std::vector<Worker> make_workers(const Pass& pass, Scratch::Scope& scope, int64_t elements, int64_t columns) {
  std::vector<Worker> workers(static_cast<size_t>(pass.exec.pool.size()));
  for (Worker& worker : workers)
    worker = {scope.take<float>(elements), scope.take<char>(pass.engine.workspace_bytes(columns))};
  return workers;
}

// `next`: the piece that this thread will probably take next, if there is one.
void run_hidden_piece(const Pass& pass, const Piece& piece, const Piece* next, const void* packed,
                      int64_t base, const Worker& worker, const SwigluParams& swiglu) {
  const Group& group = *piece.group;
  const int64_t stride = round_up(piece.outputs, kColumnGroup);
  StripJob job{.packed = packed,
               .first_row = group.first_row - base + piece.row,
               .rows = piece.rows,
               .weight = group.gate,
               .first_output = piece.output,
               .outputs = piece.outputs,
               .c = worker.c,
               .c_stride = stride,
               .workspace = worker.workspace,
               .next = group.up.row(piece.output)};
  pass.engine.multiply(job);
  job.weight = group.up;
  job.next = next == nullptr ? WeightPlace{} : next->group->gate.row(next->output);
  job.c = worker.c + round_up(piece.rows, kRowGroup) * stride;
  pass.engine.multiply(job);
  const void* rows[kMaxRows];
  for (int64_t r = 0; r < piece.rows; ++r) {
    float *gate = worker.c + r * stride, *up = job.c + r * stride;
    pass.row.swiglu(gate, up, swiglu.alpha, swiglu.limit, swiglu.beta, piece.outputs);
    // The rounded hidden row takes the place of `up`, which nobody reads any more.
    pass.row.from_f32(gate, up, pass.x.dtype, piece.outputs);
    rows[r] = up;
  }
  const int64_t of_part = group.down.columns / pass.parts;
  pass.engine.pack({.rows = rows,
                    .type = pass.x.dtype,
                    .count = piece.rows,
                    .columns = piece.outputs,
                    .packed = group.hidden + piece.output / of_part * group.hidden_part,
                    .packed_columns = of_part,
                    .first_row = piece.row,
                    .first_column = piece.output % of_part});
}

void hidden_pass(const Pass& pass, std::span<const Group> groups, const SwigluParams& swiglu) {
  Scratch::Scope scope(pass.exec.scratch);
  const int64_t columns = pass.x.cols(), base = groups.front().first_row;
  char* packed = scope.take<char>(pass.engine.packed_bytes(padded_rows(groups), columns));
  gather(pass, groups, packed);
  const std::vector<Worker> workers =
      make_workers(pass, scope, 2 * result_elements(pass.x.rows(), kMaxStrip / 2), columns);
  const std::vector<Piece> pieces = make_pieces(pass, groups);
  pass.exec.pool.parallel_for(static_cast<int64_t>(pieces.size()), [&](int64_t item, int worker) {
    const size_t at = static_cast<size_t>(item), next = at + workers.size();
    run_hidden_piece(pass, pieces[at], next < pieces.size() ? &pieces[next] : nullptr, packed, base,
                     workers[static_cast<size_t>(worker)], swiglu);
  });
}

// A strip of outputs in the making.
struct Strip {
  int64_t output, outputs, width, rows;
  int64_t next_output;  // of the strip that this thread will probably take next, if there is one
};

// sums [count][rows][width] = parts [first, first + count) of the strip's outputs, over all groups.
void sum_groups(const Pass& pass, std::span<const Group> groups, const Strip& strip, const Worker& worker,
                int first, int count, float* sums) {
  std::memset(sums, 0, static_cast<size_t>(count * strip.rows * strip.width) * sizeof(float));
  for (size_t g = 0; g < groups.size(); ++g) {
    const Group& group = groups[g];
    const int64_t of_part = group.down.columns / pass.parts, rows = static_cast<int64_t>(group.rows.size());
    const bool is_last = g + 1 == groups.size();
    const int64_t next_output = is_last ? strip.next_output : strip.output;
    WeightPlace next;
    if (next_output < pass.x.cols()) next = groups[is_last ? 0 : g + 1].down.row(next_output);
    for (int64_t row = 0; row < rows; row += kMaxRows) {
      const int64_t chunk = std::min(kMaxRows, rows - row), c_part = result_elements(chunk, strip.width);
      pass.engine.multiply({.packed = group.hidden + first * group.hidden_part,
                            .first_row = row,
                            .rows = chunk,
                            .weight = columns_of(group.down, first * of_part, count * of_part),
                            .first_output = strip.output,
                            .outputs = strip.outputs,
                            .c = worker.c,
                            .c_stride = strip.width,
                            .workspace = worker.workspace,
                            .parts = count,
                            .packed_part = group.hidden_part,
                            .c_part = c_part,
                            .next = next});
      for (int part = 0; part < count; ++part)
        for (int64_t r = 0; r < chunk; ++r) {
          const size_t at = static_cast<size_t>(row + r);
          pass.row.add_scaled(sums + (part * strip.rows + group.rows[at]) * strip.width,
                              worker.c + part * c_part + r * strip.width, group.factors[at], strip.outputs);
        }
    }
  }
}

void output_pass(const Pass& pass, std::span<const Group> groups, const Tensor& out) {
  Scratch::Scope scope(pass.exec.scratch);
  const int64_t rows = out.rows(), columns = out.cols(), threads = pass.exec.pool.size();
  const int64_t width = strip_outputs(columns, rows, pass.exec.pool.size()), size = rows * width;
  int64_t hidden_columns = 0;
  for (const Group& group : groups) hidden_columns = std::max(hidden_columns, group.down.columns);
  const PartSums parts(pass.parts, rows);
  const std::vector<Worker> workers =
      make_workers(pass, scope, parts.together() * result_elements(rows, width), hidden_columns);
  float* all_sums = scope.take<float>(threads * parts.buffers() * size);
  pass.exec.pool.parallel_for(ceil_div(columns, width), [&](int64_t item, int worker) {
    const Strip strip{item * width, std::min(width, columns - item * width), width, rows,
                      (item + threads) * width};
    float* sums = all_sums + worker * parts.buffers() * size;
    parts.run(
        sums, size,
        [&](int first, int count, float* to) {
          sum_groups(pass, groups, strip, workers[static_cast<size_t>(worker)], first, count, to);
        },
        [&](float* to, const float* from) { pass.row.add(to, from, size); });
    for (int64_t r = 0; r < rows; ++r)
      pass.row.from_f32(sums + r * width,
                        row_at(out, r) + strip.output * static_cast<int64_t>(size_of(out.dtype)), out.dtype,
                        strip.outputs);
  });
}

// What make_workers takes.
int64_t worker_bytes(const GemmEngine& engine, int threads, int64_t elements, int64_t columns) {
  return threads * (round_up(elements * static_cast<int64_t>(sizeof(float)), 64) +
                    round_up(engine.workspace_bytes(columns), 64));
}

}  // namespace

// The groups are not known: each may end in a row group that holds one row.
int64_t moe_scratch_bytes(const Kernels& kernels, const ScratchQuery& query, const MoeChannels& channels) {
  const GemmEngine& engine = kernels.engine(query.activations, query.weights);
  const int64_t pairs = query.rows * channels.top_k;
  const int64_t groups = std::min<int64_t>(channels.num_experts, pairs);
  const int64_t routed_rows = round_up(pairs + groups * (kRowGroup - 1), kRowGroup);
  const int64_t shared_rows = round_up(query.rows, kRowGroup);
  const int64_t hidden = query.parts * (engine.packed_bytes(routed_rows, channels.routed / query.parts) +
                                        engine.packed_bytes(shared_rows, channels.shared / query.parts)) +
                         (groups + 1) * 64;
  const int64_t gathered = std::min(routed_rows + shared_rows, std::max(kPackedRows, shared_rows));
  const int64_t first =
      round_up(engine.packed_bytes(gathered, channels.hidden), 64) +
      worker_bytes(engine, query.threads, 2 * result_elements(query.rows, kMaxStrip / 2), channels.hidden);
  const int64_t width = strip_outputs(channels.hidden, query.rows, query.threads);
  const PartSums parts(query.parts, query.rows);
  const int64_t sums =
      query.threads * parts.buffers() * query.rows * width * static_cast<int64_t>(sizeof(float));
  const int64_t second =
      worker_bytes(engine, query.threads, parts.together() * result_elements(query.rows, width),
                   std::max(channels.routed, channels.shared)) +
      round_up(sums, 64);
  return hidden + std::max(first, second);
}

void moe(Exec& exec, const Kernels& kernels, const Tensor& x, const Experts& experts,
         const SwigluParams& swiglu, const Tensor& out) {
  if (x.rows() == 0) return;
  SPARROW_CHECK_EQ(out.rows(), x.rows());
  SPARROW_CHECK_EQ(out.cols(), experts.shared.down.out());
  std::vector<Group> groups = group_rows(x, experts);
  const GemmEngine& engine = engine_of(kernels, x.dtype, experts);
  const Pass pass{exec, *kernels.row, engine, x, experts.parts};
  Scratch::Scope scope(exec.scratch);
  for (Group& group : groups) {
    SPARROW_CHECK_EQ(group.down.columns % (experts.parts * (is_mx(group.down.format) ? kScaleGroup : 1)), 0);
    group.hidden_part =
        engine.packed_bytes(static_cast<int64_t>(group.rows.size()), group.down.columns / experts.parts);
    group.hidden = scope.take<char>(experts.parts * group.hidden_part);
  }

  const std::span<const Group> all(groups);
  for (size_t first = 0, end; first < groups.size(); first = end) {
    end = first + 1;
    while (end < groups.size() && padded_rows(all.subspan(first, end + 1 - first)) <= kPackedRows) ++end;
    hidden_pass(pass, all.subspan(first, end - first), swiglu);
  }
  output_pass(pass, all, out);
}

}  // namespace sparrow::ops::cpu
