// SPDX-License-Identifier: Apache-2.0
// What comes before the engine: who asks, whether there is room, and the body's way to ids. Limits first:
// nothing is parsed for a request that would be refused in the end.
#include <utility>

#include "server/anthropic/messages.h"
#include "server/responses/responses.h"
#include "server/service.h"

namespace sparrow {
namespace {

// Does `work` when it is its turn. It owns what it needs: a client that is gone waits for nothing, and what
// has not begun by then is not done at all.
template <typename Work>
net::awaitable<std::invoke_result_t<Work>> run_in_turn(WorkQueue& queue, Exchange& exchange,
                                                       const std::string& key, size_t bytes, Work work) {
  struct Job {
    explicit Job(Work work) : work(std::move(work)) {}

    Work work;
    Outcome<Work> outcome{};
  };
  const auto job = std::make_shared<Job>(std::move(work));
  Waker waker = exchange.waker();
  const uint64_t id = queue.post(key, bytes, [job, waker] {
    job->outcome.run(job->work);
    waker.wake();
  });
  while (!job->outcome.ready()) {
    const WaitResult result = co_await exchange.wait();
    if (result != WaitResult::kPeerGone) continue;
    queue.remove(id);
    co_return Error{Errc::kStopped, "the client is gone"};
  }
  co_return job->outcome.take();
}

}  // namespace

Result<std::string> Service::admit(Exchange& exchange, KeyTicket& ticket) {
  const auto key = key_of(exchange.request());
  // It was valid when the head came; the keys have been read again since.
  if (!key) return Error{Errc::kBusy, "this API key has just been withdrawn", kKeyAtFault};
  if (!keys_.empty()) exchange.annotate("key", key->name);
  const int waiting = work_.num_waiting() + engine_.stats().queued_requests;
  if (waiting >= options_.max_queued_requests)
    return Error{Errc::kBusy, strf("{} requests are waiting and the queue holds {}: try again later", waiting,
                                   options_.max_queued_requests)};
  std::optional<KeyTicket> taken = KeyTicket::take(key);
  if (!taken) return Error{Errc::kBusy, "this key has as many requests running as it may", kKeyAtFault};
  ticket = std::move(*taken);
  return key->id;
}

net::awaitable<Result<std::unique_ptr<openai::Prepared>>> Service::prepare(Exchange& exchange,
                                                                           const openai::Api& api,
                                                                           KeyTicket& ticket) {
  const Result<std::string> tenant = admit(exchange, ticket);
  if (!tenant.ok()) co_return tenant.error();
  const size_t bytes = exchange.request().body.size();
  auto work = [this, &api, body = exchange.take_body(), tenant = tenant.value()] {
    return openai::prepare(api, body, model_, tenant, &store_);
  };
  co_return co_await run_in_turn(work_, exchange, tenant.value(), bytes, std::move(work));
}

net::awaitable<void> Service::count_message(Exchange& exchange, const Route&) {
  co_await convert(exchange, anthropic::count_tokens);
}

net::awaitable<void> Service::count_input(Exchange& exchange, const Route&) {
  co_await convert(exchange, responses::count_tokens);
}

net::awaitable<void> Service::tokenize(Exchange& exchange, const Route&) {
  co_await convert(exchange, [](std::string_view body, const openai::Asker& asker) {
    return openai::tokenize(body, asker.model, asker.tenant);
  });
}

net::awaitable<void> Service::detokenize(Exchange& exchange, const Route&) {
  co_await convert(exchange, [](std::string_view body, const openai::Asker& asker) {
    return openai::detokenize(body, asker.model);
  });
}

net::awaitable<void> Service::convert(Exchange& exchange, Convert convert) {
  KeyTicket ticket;
  const Result<std::string> tenant = admit(exchange, ticket);
  Result<std::string> answer = Error{Errc::kStopped, ""};
  if (tenant.ok()) {
    const size_t bytes = exchange.request().body.size();
    auto work = [this, convert, body = exchange.take_body(), tenant = tenant.value()] {
      return convert(body, {.model = model_, .tenant = tenant, .store = &store_});
    };
    answer = co_await run_in_turn(work_, exchange, tenant.value(), bytes, std::move(work));
  } else {
    answer = tenant.error();
  }
  ticket.release();
  if (exchange.peer_gone()) co_return;
  HttpResponse response =
      answer.ok() ? HttpResponse{.body = std::move(answer).value()} : refuse(exchange, answer.error());
  co_await exchange.respond(std::move(response));
}

}  // namespace sparrow
