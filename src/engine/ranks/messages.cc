// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks/messages.h"

#include <algorithm>
#include <utility>

namespace sparrow {
namespace {

uint64_t fnv1a(uint64_t hash, uint8_t byte) {
  return (hash ^ byte) * 0x100000001b3u;
}

Error corrupt(std::string message) {
  return {Errc::kCorrupt, std::move(message)};
}

// Tokens of a sequence in this step.
int length(const Batch& batch, int s) {
  return batch.cu_seqlens_q[s + 1] - batch.cu_seqlens_q[s];
}

// Positions and slots follow from lengths and tables, and are not sent.
template <typename Visit>
void for_each_token(const Batch& batch, Visit visit) {
  int row = 0;
  for (int s = 0; s < batch.num_sequences(); ++s) {
    const int32_t* blocks = batch.block_table.data() + int64_t{s} * batch.max_blocks;
    for (int32_t position = batch.seq_lens[s] - length(batch, s); position < batch.seq_lens[s]; ++position)
      visit(row++, position,
            int64_t{blocks[position / kBlockTokens]} * kBlockTokens + position % kBlockTokens);
  }
}

// Which fields of a draw are not at their default: most have two or three.
enum DrawField : uint16_t {
  kTemperature = 1,
  kTopP = 2,
  kTopK = 4,
  kMinP = 8,
  kPenalties = 16,
  kBias = 32,
  kAllowed = 64,
  kBanned = 128,
  kSeed = 256,
  kMoreBanned = 512,
  kOnly = 1024,
  kLogprobs = 2048,
  kChoice = 4096,
  kMask = 8192,
};

uint16_t fields_of(const DrawRequest& draw) {
  const SamplingParams &p = draw.sample.params, plain;
  const auto has = [](bool holds, DrawField field) { return holds ? field : 0; };
  return static_cast<uint16_t>(
      has(p.temperature != plain.temperature, kTemperature) | has(p.top_p != plain.top_p, kTopP) |
      has(p.top_k != plain.top_k, kTopK) | has(p.min_p != plain.min_p, kMinP) |
      has(p.has_penalties(), kPenalties) | has(!p.logit_bias.empty(), kBias) |
      has(!p.allowed_ids.empty(), kAllowed) | has(!p.banned_ids.empty(), kBanned) | has(p.seed != 0, kSeed) |
      has(!draw.sample.more_banned.empty(), kMoreBanned) | has(!draw.sample.only.empty(), kOnly) |
      has(draw.num_top_logprobs.has_value(), kLogprobs) | has(draw.sample.choice != 0, kChoice) |
      has(!draw.sample.mask.empty(), kMask));
}

void write_draw(const DrawRequest& draw, WireWriter& out) {
  const SampleRow& sample = draw.sample;
  const SamplingParams& p = sample.params;
  const uint16_t fields = fields_of(draw);
  out.number(fields);
  out.number(sample.position);
  if (fields & kTemperature) out.f64(p.temperature);
  if (fields & kTopP) out.f64(p.top_p);
  if (fields & kTopK) out.number(static_cast<uint64_t>(p.top_k));
  if (fields & kMinP) out.f64(p.min_p);
  if (fields & kPenalties) {
    for (const double penalty : {p.repetition_penalty, p.presence_penalty, p.frequency_penalty})
      out.f64(penalty);
    out.number(sample.counts ? sample.counts->output_count().size() : 0);
    if (sample.counts)
      for (const auto& [id, count] : sample.counts->output_count()) {
        out.number(static_cast<uint64_t>(id));
        out.number(static_cast<uint64_t>(count));
      }
  }
  if (fields & kBias) {
    out.number(p.logit_bias.size());
    for (const auto& [id, bias] : p.logit_bias) {
      out.number(static_cast<uint64_t>(id));
      out.f32(bias);
    }
  }
  if (fields & kAllowed) out.ids(p.allowed_ids);
  if (fields & kBanned) out.ids(p.banned_ids);
  if (fields & kSeed) out.fixed64(p.seed);
  if (fields & kMoreBanned) out.ids(sample.more_banned);
  if (fields & kOnly) out.ids(sample.only);
  if (fields & kLogprobs) out.number(static_cast<uint64_t>(*draw.num_top_logprobs));
  if (fields & kChoice) out.number(sample.choice);
  if (fields & kMask)
    for (const uint32_t word : sample.mask) out.fixed32(word);
}

void read_penalties(WireReader& in, int vocab_size, ReceivedCall::DrawData& data) {
  for (double* penalty :
       {&data.params.repetition_penalty, &data.params.presence_penalty, &data.params.frequency_penalty})
    *penalty = in.f64();
  std::vector<std::pair<int32_t, int>> counts(in.count());
  for (auto& [id, count] : counts) {
    id = in.below(vocab_size);
    count = static_cast<int>(in.number(std::numeric_limits<int>::max()));
  }
  for (const auto& [id, count] : counts) data.counts.set_output_count(id, count);
}

}  // namespace

uint64_t CallChain::add(Call call, std::span<const std::byte> body) {
  ++serial_;
  hash_ = fnv1a(hash_, static_cast<uint8_t>(call));
  for (const std::byte b : body) hash_ = fnv1a(hash_, static_cast<uint8_t>(b));
  return hash_;
}

Bytes CallWriter::seal(Call call, const WireWriter& body) {
  chain_.add(call, body.bytes());
  WireWriter message;
  message.byte(static_cast<uint8_t>(call));
  message.number(chain_.serial());
  message.fixed64(chain_.hash());
  message.append(body.bytes());
  return message.take();
}

Bytes CallWriter::plain(Call call) {
  return seal(call, {});
}

Bytes CallWriter::run(const Batch& batch, bool compare) {
  WireWriter out;
  out.byte(compare);
  out.number(static_cast<uint64_t>(batch.num_sequences()));
  for (int s = 0; s < batch.num_sequences(); ++s) {
    out.number(static_cast<uint64_t>(length(batch, s)));
    out.number(static_cast<uint64_t>(batch.seq_lens[s]));
  }
  out.ids(batch.group_sequences);
  tables_.write(batch, out);
  for_each_token(batch, [&](int row, int32_t position, int64_t slot) {
    SPARROW_CHECK(batch.positions[row] == position && batch.slots[row] == slot);
  });
  for (const int32_t id : batch.ids) out.number(static_cast<uint64_t>(id));
  out.number(batch.logit_rows.size());
  int32_t last = -1;
  for (const int32_t row : batch.logit_rows)
    out.number(static_cast<uint64_t>(row - std::exchange(last, row) - 1));
  out.byte(!batch.drawn_by.empty());
  for (const int32_t draw : batch.drawn_by) out.number(static_cast<uint64_t>(draw + 1));
  out.byte(!batch.feature_rows.empty());
  for (const int32_t row : batch.feature_rows) out.number(static_cast<uint64_t>(row + 1));
  return seal(Call::kRun, out);
}

Bytes CallWriter::copy_blocks(std::span<const BlockCopy> copies) {
  WireWriter out;
  out.number(copies.size());
  for (const BlockCopy& copy : copies) {
    out.number(static_cast<uint64_t>(copy.from));
    out.number(static_cast<uint64_t>(copy.to));
  }
  return seal(Call::kCopyBlocks, out);
}

Bytes CallWriter::encode(std::span<const EncodeJob> jobs) {
  WireWriter out;
  out.number(jobs.size());
  for (const EncodeJob& job : jobs) {
    out.number(static_cast<uint64_t>(job.group));
    for (const int extent : {job.grid.t, job.grid.h, job.grid.w}) out.number(static_cast<uint64_t>(extent));
    out.ids(job.rows);
    out.append(std::as_bytes(job.patches));
  }
  return seal(Call::kEncode, out);
}

Bytes CallWriter::start_draws(std::span<const DrawRequest> draws) {
  WireWriter out;
  out.byte(draws_elsewhere_);
  out.number(draws.size());
  for (const DrawRequest& draw : draws) {
    out.number(static_cast<uint64_t>(draw.row));
    if (draws_elsewhere_) write_draw(draw, out);
  }
  return seal(Call::kStartDraws, out);
}

Bytes CallWriter::score(std::span<const PromptRow> rows) {
  WireWriter out;
  out.number(rows.size());
  for (const PromptRow& row : rows) {
    out.number(static_cast<uint64_t>(row.row));
    out.number(static_cast<uint64_t>(row.id));
    out.number(static_cast<uint64_t>(row.num_top));
  }
  return seal(Call::kScore, out);
}

Result<const ReceivedCall*> CallReader::read(std::span<const std::byte> message) {
  WireReader in(message);
  const auto call = static_cast<Call>(in.byte());
  const uint64_t serial = in.number();
  const uint64_t hash = in.fixed64();
  if (in.failed()) return corrupt("a message of rank 0 is cut off");
  chain_.add(call, in.rest());
  if (serial != chain_.serial())
    return corrupt(strf("message {} of rank 0 came where {} should have", serial, chain_.serial()));
  if (hash != chain_.hash())
    return corrupt(strf("message {} of rank 0 is not the one that was sent, or follows on others", serial));
  return read_body(call, in.rest());
}

Result<const ReceivedCall*> CallReader::read_body(Call call, std::span<const std::byte> body) {
  WireReader in(body);
  call_.call = call;
  switch (call) {
    case Call::kRun:
      read_run(in);
      break;
    case Call::kCopyBlocks:
      call_.copies.resize(in.count());
      for (BlockCopy& copy : call_.copies) {
        copy.from = in.below(limits_.num_blocks);
        copy.to = in.below(limits_.num_blocks);
        in.require(group_of_block(copy.from) == group_of_block(copy.to));
      }
      break;
    case Call::kEncode: {
      call_.jobs.clear();
      call_.patches.clear();
      const size_t count = in.count();
      for (size_t i = 0; i < count && !in.failed(); ++i) read_job(in);
      break;
    }
    case Call::kStartDraws: {
      call_.draws.clear();
      call_.draw_data.clear();
      const bool with_sampling = in.number(1);
      const size_t count = in.count();
      for (size_t i = 0; i < count && !in.failed(); ++i) read_draw(in, with_sampling);
      num_drawn_ = static_cast<int>(count);
      break;
    }
    case Call::kScore:
      call_.rows.resize(in.count());
      for (PromptRow& row : call_.rows)
        row = {in.below(num_logits_), in.below(limits_.vocab_size), in.below(kMaxTopLogprobs + 1)};
      break;
    case Call::kFinishDraws:
    case Call::kLogits:
    case Call::kStop:
      break;
    default:
      return corrupt(strf("rank 0 sent a call of kind {}, which there is not", static_cast<int>(call)));
  }
  if (!in.complete())
    return corrupt(strf("the arguments of a call of kind {} make no sense", static_cast<int>(call)));
  return &call_;
}

// Every position has a block, and every block is its group's.
void CallReader::check_tables(const Batch& batch, WireReader& in) const {
  const int sequences = batch.num_sequences(), groups = limits_.num_groups;
  for (int s = 0; s < sequences; ++s) {
    const int64_t blocks = blocks_for_tokens(batch.seq_lens[s]);
    in.require(blocks <= batch.max_blocks &&
               batch.block_table[int64_t{s} * batch.max_blocks + blocks - 1] >= 0);
  }
  const std::vector<int32_t>& first = batch.group_sequences;
  if (first.empty()) return in.require(groups == 1);
  in.require(static_cast<int>(first.size()) == groups + 1 && first.front() == 0 &&
             first.back() == sequences && std::is_sorted(first.begin(), first.end()));
  for (int group = 0; group < groups && !in.failed(); ++group)
    for (int64_t i = int64_t{first[group]} * batch.max_blocks;
         i < int64_t{first[group + 1]} * batch.max_blocks; ++i)
      in.require(batch.block_table[i] < 0 || group_of_block(batch.block_table[i]) == group);
}

void CallReader::read_run(WireReader& in) {
  Batch& batch = call_.batch;
  call_.compare = in.number(1);
  const auto sequences = static_cast<int>(in.count(limits_.max_step_sequences));
  batch.cu_seqlens_q.assign(1, 0);
  batch.seq_lens.clear();
  for (int s = 0; s < sequences; ++s) {
    const int tokens = in.below(int64_t{limits_.max_step_tokens} - batch.cu_seqlens_q.back() + 1);
    batch.cu_seqlens_q.push_back(batch.cu_seqlens_q.back() + tokens);
    batch.seq_lens.push_back(in.below(std::numeric_limits<int32_t>::max()));
    in.require(tokens > 0 && tokens <= batch.seq_lens.back());
  }
  batch.group_sequences = in.ids(int64_t{sequences} + 1);
  tables_.read(sequences, limits_.num_blocks, in, batch);
  if (!in.failed()) check_tables(batch, in);
  if (in.failed()) return;
  const int tokens = batch.cu_seqlens_q.back();
  batch.ids.resize(tokens);
  for (int32_t& id : batch.ids) id = in.below(limits_.vocab_size);
  batch.positions.resize(tokens);
  batch.slots.resize(tokens);
  for_each_token(batch, [&](int row, int32_t position, int64_t slot) {
    batch.positions[row] = position;
    batch.slots[row] = slot;
  });
  batch.logit_rows.resize(in.count());
  int32_t next = 0;
  for (int32_t& row : batch.logit_rows) {
    row = next + in.below(tokens - next);
    next = row + 1;
  }
  batch.drawn_by.resize(in.number(1) ? tokens : 0);
  for (int32_t& draw : batch.drawn_by) draw = in.below(num_drawn_ + 1) - 1;
  batch.feature_rows.resize(in.number(1) ? tokens : 0);
  for (int32_t& row : batch.feature_rows) row = in.below(limits_.feature_tokens + 1) - 1;
  num_logits_ = static_cast<int>(batch.logit_rows.size());
}

void CallReader::read_job(WireReader& in) {
  constexpr int64_t kMaxSide = 1 << 15;  // so that the product of all three fits
  EncodeJob& job = call_.jobs.emplace_back();
  job.group = in.below(limits_.num_groups);
  for (int* extent : {&job.grid.t, &job.grid.h, &job.grid.w}) *extent = in.below(kMaxSide + 1);
  job.rows = in.ids(limits_.feature_tokens);
  const int64_t patches = job.grid.patches(), side = limits_.merge_side;
  in.require(job.grid.h % side == 0 && job.grid.w % side == 0 && patches > 0 &&
             patches == static_cast<int64_t>(job.rows.size()) * side * side);
  if (in.failed()) return;
  std::vector<float>& numbers = call_.patches.emplace_back();
  in.floats(static_cast<size_t>(patches * limits_.patch_numbers), numbers);
  job.patches = numbers;
}

void CallReader::read_draw(WireReader& in, bool with_sampling) {
  ReceivedCall::DrawData& data = call_.draw_data.emplace_back();
  SamplingParams& p = data.params;
  const int vocab = limits_.vocab_size;
  DrawRequest draw{.row = in.below(num_logits_), .sample = {.logits = {}, .params = p}};
  const auto fields = static_cast<uint16_t>(with_sampling ? in.number(2 * kMask - 1) : 0);
  if (with_sampling) draw.sample.position = in.number();
  if (fields & kTemperature) p.temperature = in.f64();
  if (fields & kTopP) p.top_p = in.f64();
  if (fields & kTopK) p.top_k = static_cast<int32_t>(in.number(std::numeric_limits<int32_t>::max()));
  if (fields & kMinP) p.min_p = in.f64();
  if (fields & kPenalties) read_penalties(in, vocab, data);
  if (fields & kBias) {
    p.logit_bias.resize(in.count());
    for (auto& [id, bias] : p.logit_bias) {
      id = in.below(vocab);
      bias = in.f32();
    }
  }
  if (fields & kAllowed) p.allowed_ids = in.ids(vocab);
  if (fields & kBanned) p.banned_ids = in.ids(vocab);
  if (fields & kSeed) p.seed = in.fixed64();
  if (fields & kMoreBanned) data.more_banned = in.ids(vocab);
  if (fields & kOnly) data.only = in.ids(vocab);
  if (fields & kLogprobs) draw.num_top_logprobs = in.below(kMaxTopLogprobs + 1);
  if (fields & kChoice) draw.sample.choice = in.number();
  if (fields & kMask) {
    data.mask.resize(static_cast<size_t>(vocab + 31) / 32);
    for (uint32_t& word : data.mask) word = in.fixed32();
  }
  in.require(validate(p, vocab).ok());
  draw.sample.counts = &data.counts;
  draw.sample.more_banned = data.more_banned;
  draw.sample.only = data.only;
  draw.sample.mask = data.mask;
  call_.draws.push_back(draw);
}

}  // namespace sparrow
