// SPDX-License-Identifier: Apache-2.0
// Where the time of a step goes: the step as it runs, and once more with timestamps between its parts.
#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <span>

#include "device/cuda/check.h"
#include "device/cuda/read_rate.h"
#include "engine/cuda/rank.h"

namespace sparrow {
namespace {

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// A step on the GPU, from its metadata to its ids.
struct Launched {
  Event begin{Event::Timing::kOn}, end{Event::Timing::kOn};
};

std::vector<StepTimes::Span> spans_of(const std::vector<StepMark>& marks) {
  std::vector<StepTimes::Span> spans;
  const auto since_begin = [&](const StepMark& mark) {
    return 1e3 * Event::milliseconds_between(marks.front().event, mark.event);
  };
  for (size_t i = 0; i + 1 < marks.size(); ++i)
    spans.push_back({.part = name_of(marks[i].part),
                     .layer = marks[i].layer,
                     .begin_us = since_begin(marks[i]),
                     .end_us = since_begin(marks[i + 1])});
  return spans;
}

double wall_us(const auto& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

// Steps as the engine runs them: a decode step is launched with the ids that the one before is still drawing.
void time_engine(Rank& rank, const Batch& batch, std::span<const DrawRequest> draws, int repeats,
                 cudaStream_t stream, StepTimes& times) {
  Batch next = batch;
  const bool decodes = shape_of(batch).prefills == 0 && draws.size() == batch.ids.size();
  if (decodes)
    for (size_t row = 0; row < batch.ids.size(); ++row) next.drawn_by.push_back(static_cast<int32_t>(row));
  std::vector<Launched> launched(static_cast<size_t>(repeats) + 1);
  const auto launch = [&](const Batch& step, Launched& l) {
    l.begin.record(stream);
    rank.run(step, nullptr);
    rank.start_draws(draws);
    l.end.record(stream);
  };
  const auto step = [&](Launched& l) {
    if (decodes) launch(next, l);
    rank.finish_draws();
    if (!decodes) launch(next, l);
  };
  launch(batch, launched[0]);
  // The first steps capture graphs, and a GPU that was idle takes its time to get to speed.
  constexpr double kWarmUs = 200e3;
  for (double warm = 0; warm < kWarmUs;) warm += wall_us([&] { step(launched[0]); });
  std::vector<double> wall;
  for (int i = 1; i <= repeats; ++i) wall.push_back(wall_us([&] { step(launched[i]); }));
  rank.finish_draws();
  times.wall_us = median(wall);
  double working = 0;
  for (const Launched& l : launched) working += Event::milliseconds_between(l.begin, l.end);
  times.busy = working / Event::milliseconds_between(launched.front().begin, launched.back().end);
}

// One step at a time, from its metadata to its logits; and what its draws take.
void time_step(Rank& rank, const Batch& batch, std::span<const DrawRequest> draws, int repeats,
               cudaStream_t stream, StepTimes& times) {
  std::vector<double> gpu, sampling;
  Event begin(Event::Timing::kOn), end(Event::Timing::kOn);
  for (int i = 0; i < repeats; ++i) {
    begin.record(stream);
    rank.run(batch, nullptr);
    end.record(stream);
    end.wait();
    gpu.push_back(1e3 * Event::milliseconds_between(begin, end));
    sampling.push_back(wall_us([&] {
      rank.start_draws(draws);
      rank.finish_draws();
    }));
  }
  times.median_us = median(gpu);
  times.min_us = *std::min_element(gpu.begin(), gpu.end());
  times.max_us = *std::max_element(gpu.begin(), gpu.end());
  times.sampling_us = median(sampling);
}

}  // namespace

void Rank::fill_cache(uint64_t seed) {
  enter();
  // One piece of random numbers, repeated: no two blocks of a request that are near each other are alike.
  constexpr size_t kPieceBytes = (size_t{32} << 20) + 4096;
  std::vector<uint16_t> piece(kPieceBytes / 2);
  std::mt19937_64 random(seed);
  std::map<DType, std::byte*> made;  // where the first piece of a type lies; K and V, the longer, come first
  const auto fill = [&](void* pages, size_t bytes, DType dtype) {
    auto* const to = static_cast<std::byte*>(pages);
    const auto copy = [&](size_t done, const void* from) {
      SPARROW_CUDA(
          cudaMemcpyAsync(to + done, from, std::min(kPieceBytes, bytes - done), cudaMemcpyDefault, stream()));
    };
    if (!made.contains(dtype)) {
      // Both signs, sizes from 1/8 to 2; as bytes the same for e4m3.
      for (uint16_t& value : piece) {
        const auto bits = static_cast<uint16_t>(random());
        value = dtype == DType::kBF16 ? (bits & 0x81ff) | 0x3e00 : (bits & 0x9f9f) | 0x2020;
      }
      copy(0, piece.data());
      stream_->synchronize();
      made[dtype] = to;
    }
    for (size_t done = 0; done < bytes; done += kPieceBytes)
      if (to + done != made[dtype]) copy(done, made[dtype]);
  };
  const KvCacheShape& shape = cache_->shape();
  for (int layer = 0; layer < shape.num_layers(); ++layer) {
    fill(cache_->kv_pages(layer), shape.kv_page_bytes() * shape.num_blocks, shape.dtype);
    if (shape.layer_is_sparse[layer])
      fill(cache_->index_pages(layer), shape.index_page_bytes() * shape.num_blocks, shape.index_dtype);
  }
  stream_->synchronize();
}

void Rank::launch_marked(const DeviceBatch& step, std::vector<StepMark>& marks) {
  enter();
  model_->forward(step, *cache_, stream(), [&](StepPart part, int layer, cudaStream_t stream) {
    marks.push_back({.part = part, .layer = layer});
    SPARROW_CUDA(cudaEventRecordWithFlags(marks.back().event.get(), stream, cudaEventRecordExternal));
  });
}

void Rank::launch_marked(const Batch& batch, std::vector<StepMark>& marks) {
  launch_marked(upload_->describe(step_of(batch, /*graphs=*/false).shape), marks);
}

StepTimes Rank::times_of(const std::vector<StepMark>& marks) const {
  StepTimes times{.timeline = spans_of(marks), .attention_kernels = model_->describe()};
  std::erase_if(times.timeline,
                [](const StepTimes::Span& span) { return span.part == name_of(StepPart::kOthers); });
  for (const StepTimes::Span& span : times.timeline) times.median_us += span.end_us - span.begin_us;
  times.min_us = times.max_us = times.median_us;
  return times;
}

std::vector<int> Rank::count_experts(const DeviceBatch& step) {
  std::vector<int> hit(static_cast<size_t>(config_.num_layers));
  const int rows = step.group_rows.empty()
                       ? step.num_tokens
                       : std::accumulate(step.group_rows.begin(), step.group_rows.end(), 0);
  std::vector<int32_t> ids(static_cast<size_t>(rows) * config_.experts_per_token);
  model_->forward(step, *cache_, stream(), [&](StepPart part, int layer, cudaStream_t) {
    if (part != StepPart::kExperts || weights_.layers[layer].num_experts == 0) return;
    SPARROW_CUDA(cudaMemcpyAsync(ids.data(), model_->expert_ids(), ids.size() * sizeof(int32_t),
                                 cudaMemcpyDeviceToHost, stream()));
    stream_->synchronize();
    std::set<int32_t> experts(ids.begin(), ids.end());
    experts.erase(-1);  // padding, or on another rank
    hit[layer] = static_cast<int>(experts.size());
  });
  stream_->synchronize();
  return hit;
}

std::vector<int> Rank::count_experts(const Batch& batch) {
  enter();
  return count_experts(upload_->describe(step_of(batch, /*graphs=*/false).shape));
}

void Rank::measure_rates(StepTimes& times) {
  constexpr size_t kReadBytes = size_t{4} << 30;
  times.read_bytes_per_us =
      measure_read_rate(weights_.memory.data(), std::min(weights_.memory.bytes(), kReadBytes),
                        reinterpret_cast<unsigned*>(const_cast<float*>(model_->logits())), stream());
  times.flops_per_us = model_->measure_product_rate(stream());
}

StepTimes Rank::profile(const Batch& batch, int repeats) {
  enter();
  const cudaStream_t stream = stream_->get();
  StepTimes times;
  std::vector<DrawRequest> draws;
  const SamplingParams greedy{.temperature = 0};
  for (size_t row = 0; row < batch.logit_rows.size(); ++row)
    draws.push_back({.row = static_cast<int64_t>(row), .sample = {.logits = {}, .params = greedy}});
  time_engine(*this, batch, draws, repeats, stream, times);
  time_step(*this, batch, draws, repeats, stream, times);

  const DeviceBatch step = upload_->describe(step_of(batch, replayed_).shape);  // what run() uploaded last
  std::vector<StepMark> marks;
  const Graph graph = Graph::capture(*stream_, [&] { launch_marked(step, marks); });
  for (int i = 0; i < 3; ++i) graph.launch(stream);
  stream_->synchronize();
  times.timeline = spans_of(marks);
  times.attention_kernels = model_->describe();

  times.experts_hit = count_experts(step);
  measure_rates(times);
  return times;
}

}  // namespace sparrow
