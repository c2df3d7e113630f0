// SPDX-License-Identifier: Apache-2.0
// Completions: body -> engine -> answer, whole or as it comes.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "server/api/errors.h"
#include "server/service.h"

namespace sparrow {
namespace {

using Clock = std::chrono::steady_clock;

// Tokens and log-probabilities beyond this are written by a worker: about a millisecond.
constexpr int64_t kInlineEntries = 8192;
// What was made of a body beyond this is freed by a worker.
constexpr size_t kInlineBytes = 8 << 10;
// Of a large answer, written at a time.
constexpr size_t kPieceBytes = 256 << 10;

// Runs `work` on a worker and waits for it, whatever the peer does: it may borrow what the caller has.
template <typename Work>
net::awaitable<std::invoke_result_t<Work>> run_aside(net::thread_pool& workers, Exchange& exchange,
                                                     Work work) {
  Outcome<Work> outcome;
  Waker waker = exchange.waker();
  net::post(workers, [&work, &outcome, waker] {
    outcome.run(work);  // all but the waker may be gone after this
    waker.wake();
  });
  while (!outcome.ready()) co_await exchange.wait_for_wake();
  co_return outcome.take();
}

}  // namespace

// Up to the engine. What a refused request held is given back before its client is told.
net::awaitable<Result<Pump>> Service::start(Exchange& exchange, const openai::Api& api) {
  KeyTicket ticket;
  auto prepared = co_await prepare(exchange, api, ticket);
  if (!prepared.ok()) co_return prepared.error();
  openai::Prepared& ready = **prepared;
  if (ready.warning) exchange.annotate("warning", ready.warning);
  ready.request.sampling.seed = ready.fields.seed ? *ready.fields.seed : next_seed();
  ready.request.queue_timeout = options_.queue_timeout;
  ready.request.priority = ticket.limits().priorities.nearest(ready.request.priority);

  const int64_t tokens = ready.num_prompt_tokens() + ready.request.max_tokens * ready.request.num_outputs();
  if (!ticket.add_tokens(tokens))
    co_return Error{Errc::kBusy, "this key has as many tokens in flight as it may", kKeyAtFault};
  auto memory = answers_.take(ready.answer_bytes);
  if (!memory)
    co_return Error{Errc::kBusy,
                    strf("answers of {} MB are being made, this one would have {} MB, and the server "
                         "has room for {} MB: try again later",
                         answers_.used() >> 20, ready.answer_bytes >> 20, answers_.limit() >> 20)};
  auto stream = engine_.submit(ready.request);
  if (!stream.ok()) co_return stream.error();
  const auto outputs = static_cast<size_t>(ready.request.num_outputs());
  const ServiceMetrics::Finished asked{.n = ready.request.n, .max_tokens = ready.request.max_tokens};
  const bool is_large = ready.answer_bytes > static_cast<int64_t>(kPieceBytes);
  co_return Pump{.stream = std::move(stream).value(),
                 .generation = std::make_unique<openai::Generation>(model_, std::move(prepared).value(),
                                                                    exchange.request().request_id),
                 .ticket = std::move(ticket),
                 .memory = std::move(*memory),
                 .is_large = is_large,
                 .last_token = std::vector<Clock::time_point>(outputs),
                 .num_tokens = std::vector<int64_t>(outputs),
                 .asked = asked};
}

net::awaitable<void> Service::complete(Exchange& exchange, const Route& route) {
  const bool is_long = exchange.request().body.size() > kInlineBytes;
  Result<Pump> started = co_await start(exchange, *route.api);
  if (exchange.peer_gone()) co_return;
  if (!started.ok()) {
    HttpResponse response = refuse(exchange, started.error());
    co_await exchange.respond(std::move(response));
    co_return;
  }
  Pump& pump = started.value();
  if (pump.generation->in_background()) {
    Result<std::string> begun = background_.start(std::move(pump), exchange.request().received_at);
    HttpResponse response =
        begun.ok() ? HttpResponse{.body = std::move(begun).value()} : refuse(exchange, begun.error());
    co_await exchange.respond(std::move(response));
    co_return;
  }
  Waker waker = exchange.waker();
  pump.stream->set_wake([waker] { waker.wake(); });
  if (pump.generation->streams()) {
    co_await answer_stream(exchange, pump);
  } else {
    co_await answer_whole(exchange, pump);
  }
  record(exchange, pump);
  // A million small objects take as long to free as to make.
  if (is_long || pump.is_large || pump.generation->usage().completion_tokens > kInlineEntries)
    net::post(answer_work_, [dead = std::move(pump.generation), memory = std::move(pump.memory)] {});
}

HttpResponse Service::refuse_failure(const Exchange& exchange, const Error& failure) {
  if (const auto failed = engine_.failure()) return refuse(exchange, *failed);
  // What the model computed makes no sense: no fault of the request.
  if (failure.code == Errc::kCorrupt)
    return error_response_to(exchange.request(), {.status = 500, .message = failure.message});
  return refuse(exchange, failure);
}

net::awaitable<void> Service::answer_whole(Exchange& exchange, Pump& pump) {
  for (;;) {
    while (pump.take(counts_, exchange.request().received_at)) co_await exchange.yield();
    if (pump.generation->finished()) break;
    const WaitResult result = co_await exchange.wait();
    if (result == WaitResult::kPeerGone) co_return;
  }
  pump.stream->cancel();
  pump.ticket.release();
  if (const auto failure = pump.generation->failure()) {
    HttpResponse refusal = refuse_failure(exchange, *failure);
    co_await exchange.respond(std::move(refusal));
    co_return;
  }
  if (pump.generation->num_unwritten() > kInlineEntries) {
    co_await answer_in_pieces(exchange, pump);
    co_return;
  }
  HttpResponse response;
  response.body = pump.generation->response();
  co_await exchange.respond(std::move(response));
}

// No more of it is in memory than what the client is about to take.
net::awaitable<void> Service::answer_in_pieces(Exchange& exchange, Pump& pump) {
  const HttpHeaders headers;
  const bool started = co_await exchange.begin_stream("application/json", headers);
  if (!started) co_return;
  auto write = [&pump] { return pump.generation->response(kPieceBytes); };
  for (;;) {
    const std::string piece = co_await run_aside(answer_work_, exchange, write);
    if (piece.empty()) break;
    const bool written = co_await exchange.write(piece);
    if (!written) co_return;
  }
  co_await exchange.end_stream();
}

net::awaitable<void> Service::answer_stream(Exchange& exchange, Pump& pump) {
  std::string out;
  bool begun = false;
  auto written_at = Clock::now();
  for (;;) {
    bool more = pump.take(counts_, exchange.request().received_at);
    bool has_pieces = false;
    const auto failure = pump.generation->failure();
    if (failure || pump.generation->finished()) pump.ticket.release();
    if (failure && !begun) {
      HttpResponse refusal = refuse_failure(exchange, *failure);
      co_await exchange.respond(std::move(refusal));
      co_return;
    }
    if (failure) {
      const int status = failure->code == Errc::kCorrupt && !engine_.failure() ? 500 : 503;
      pump.generation->append_failure(out, {.status = status, .message = failure->message});
    } else if (pump.generation->num_unwritten() <= kInlineEntries) {
      pump.generation->append_chunks(out);
    } else {
      auto write = [&pump, &out] { return pump.generation->append_chunks(out, kPieceBytes); };
      has_pieces = co_await run_aside(answer_work_, exchange, write);
    }
    more |= has_pieces;
    const bool ends = failure || (pump.generation->finished() && !has_pieces);
    if (ends) out += pump.generation->last_event();
    // Also while tokens come that cannot be sent yet.
    if (out.empty() && Clock::now() - written_at >= options_.keep_alive)
      pump.generation->append_keep_alive(out);
    if (!out.empty()) {
      if (!std::exchange(begun, true)) {
        HttpHeaders headers;
        headers.add("Cache-Control", "no-cache");
        headers.add("X-Accel-Buffering", "no");  // proxies that hold answers back would undo streaming
        const bool started = co_await exchange.begin_stream("text/event-stream", headers);
        if (!started) co_return;
      }
      const bool written = co_await exchange.write(out);
      if (!written) co_return;
      out.clear();
      written_at = Clock::now();
    }
    if (ends) break;
    if (more) {
      co_await exchange.yield();
      continue;
    }
    const WaitResult result = co_await exchange.wait_for(options_.keep_alive);
    if (result == WaitResult::kPeerGone) co_return;
  }
  pump.stream->cancel();
  co_await exchange.end_stream();
}

void Service::record(Exchange& exchange, const Pump& pump) {
  const Usage usage = pump.generation->usage();
  exchange.annotate("prompt_tokens", usage.prompt_tokens);
  exchange.annotate("cached_tokens", usage.cached_tokens);
  exchange.annotate("completion_tokens", usage.completion_tokens);
  if (pump.waited) {
    const int64_t queued_ms = std::llround(1000 * pump.waited->seconds);
    exchange.annotate("queued_ms", queued_ms);
    if (queued_ms > 0) exchange.annotate("waited_for", label_of(pump.waited->reason));
  }
  pump.count(counts_, exchange.request().received_at);
  exchange.annotate("finish",
                    pump.generation->finished() ? pump.generation->finish_reasons()[0] : "abandoned");
}

}  // namespace sparrow
