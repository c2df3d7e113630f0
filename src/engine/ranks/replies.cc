// SPDX-License-Identifier: Apache-2.0
// What ranks answer, as bytes.
#include <utility>

#include "engine/ranks/messages.h"

namespace sparrow {
namespace {

constexpr size_t kMaxText = 4096;

void write_logprob(const TokenLogprob& entry, WireWriter& out) {
  out.number(static_cast<uint64_t>(entry.id));
  out.f32(entry.logprob);
}

void write_logprobs(const std::optional<TokenLogprobs>& logprobs, WireWriter& out) {
  out.byte(logprobs.has_value());
  if (!logprobs) return;
  write_logprob(logprobs->token, out);
  out.number(static_cast<uint64_t>(logprobs->rank));
  out.number(logprobs->top.size());
  for (const TokenLogprob& entry : logprobs->top) write_logprob(entry, out);
}

TokenLogprob read_logprob(WireReader& in, int vocab_size) {
  const int32_t id = in.below(vocab_size);
  return {id, in.f32()};
}

std::optional<TokenLogprobs> read_logprobs(WireReader& in, int vocab_size) {
  if (in.number(1) == 0) return std::nullopt;
  TokenLogprobs logprobs{.token = read_logprob(in, vocab_size), .rank = in.below(int64_t{vocab_size} + 1)};
  logprobs.top.resize(in.count(kMaxTopLogprobs));
  for (TokenLogprob& entry : logprobs.top) entry = read_logprob(in, vocab_size);
  return logprobs;
}

void write_draw(const Draw& draw, WireWriter& out) {
  out.byte(draw.id.ok());
  if (draw.id.ok())
    out.number(static_cast<uint64_t>(draw.id.value()));
  else
    out.text(draw.id.error().message.substr(0, kMaxText));
  write_logprobs(draw.logprobs, out);
}

Draw read_draw(WireReader& in, int vocab_size) {
  // The one error of a draw is that its logits cannot be drawn from.
  Result<int32_t> id = in.number(1) ? Result<int32_t>(in.below(vocab_size))
                                    : Result<int32_t>(Error{Errc::kCorrupt, in.text()});
  return {std::move(id), read_logprobs(in, vocab_size)};
}

}  // namespace

Bytes write_reply(const CallReply& reply) {
  WireWriter out;
  out.number(reply.serial);
  out.fixed64(reply.chain);
  out.fixed64(reply.replica);
  out.f64(reply.times.step_seconds);
  out.f64(reply.times.peer_wait_seconds);
  out.number(reply.draws.size());
  for (const Draw& draw : reply.draws) write_draw(draw, out);
  out.number(reply.scores.size());
  for (const auto& score : reply.scores) write_logprobs(score, out);
  out.number(reply.logits.size());
  for (const float logit : reply.logits) out.f32(logit);
  return out.take();
}

Result<CallReply> read_reply(std::span<const std::byte> message, int vocab_size) {
  WireReader in(message);
  CallReply reply{.serial = in.number(), .chain = in.fixed64(), .replica = in.fixed64()};
  reply.times = {.step_seconds = in.f64(), .peer_wait_seconds = in.f64()};
  const size_t draws = in.count();
  for (size_t i = 0; i < draws && !in.failed(); ++i) reply.draws.push_back(read_draw(in, vocab_size));
  const size_t scores = in.count();
  for (size_t i = 0; i < scores && !in.failed(); ++i) reply.scores.push_back(read_logprobs(in, vocab_size));
  reply.logits.resize(in.count());
  for (float& logit : reply.logits) logit = in.f32();
  if (!in.complete()) return Error{Errc::kCorrupt, "a reply makes no sense"};
  return reply;
}

}  // namespace sparrow
