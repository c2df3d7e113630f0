// SPDX-License-Identifier: Apache-2.0
// What comes before the engine: who asks, whether there is room, and the body's way to ids. Limits first:
// nothing is parsed for a request that would be refused in the end.
#include <utility>

#include "server/media/media_input.h"
#include "server/service.h"

namespace sparrow {
namespace {

Error client_gone() {
  return {Errc::kStopped, "the client is gone"};
}

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
    co_return client_gone();
  }
  co_return job->outcome.take();
}

// Media that a request waits for, on its handler's thread, while others bring them.
class MediaArrival {
 public:
  explicit MediaArrival(Waker waker) : state_(std::make_shared<State>(std::move(waker))) {}

  Status expect(MediaLoader& loader, const std::string& key, openai::Prepared& prepared) {
    const std::string& salt = prepared.request.salt;
    load_ = SPARROW_TRY(loader.load(key, salt, std::move(prepared.media), [state = state_](auto media) {
      state->media = std::move(media);
      state->is_here.store(true, std::memory_order_release);
      state->waker.wake();
    }));
    return Ok{};
  }
  bool is_expected() const { return load_ != nullptr; }
  bool is_here() const { return state_->is_here.load(std::memory_order_acquire); }
  Result<std::vector<LoadedMedium>> take() { return std::move(*state_->media); }

 private:
  struct State {
    explicit State(Waker waker) : waker(std::move(waker)) {}

    Waker waker;
    std::optional<Result<std::vector<LoadedMedium>>> media;
    std::atomic<bool> is_here{false};
  };

  std::shared_ptr<State> state_;
  std::shared_ptr<MediaLoad> load_;
};

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
  const auto arrival = std::make_shared<MediaArrival>(exchange.waker());
  auto work = [this, &api, body = exchange.take_body(), tenant = tenant.value(),
               arrival]() -> Result<std::unique_ptr<openai::Prepared>> {
    auto prepared = SPARROW_TRY(openai::prepare(api, body, model_, tenant, &store_));
    if (!prepared->media.empty()) SPARROW_TRY(arrival->expect(*model_.media.loader, tenant, *prepared));
    return prepared;
  };
  auto prepared = co_await run_in_turn(work_, exchange, tenant.value(), bytes, std::move(work));
  if (!prepared.ok() || !arrival->is_expected()) co_return prepared;

  while (!arrival->is_here()) {
    const WaitResult result = co_await exchange.wait();
    if (result == WaitResult::kPeerGone) co_return client_gone();
  }
  auto media = arrival->take();
  if (!media.ok()) co_return media.error();
  const auto pixels = static_cast<size_t>(frame_bytes(media.value()));
  auto place = [this, prepared = std::move(prepared).value(),
                media = std::move(media).value()]() mutable -> Result<std::unique_ptr<openai::Prepared>> {
    SPARROW_TRY(openai::finish(*prepared, std::move(media), model_));
    return std::move(prepared);
  };
  co_return co_await run_in_turn(work_, exchange, tenant.value(), pixels, std::move(place));
}

net::awaitable<void> Service::count(Exchange& exchange, const Route& route) {
  KeyTicket ticket;
  auto prepared = co_await prepare(exchange, *route.api, ticket);
  ticket.release();
  if (exchange.peer_gone()) co_return;
  HttpResponse response = prepared.ok() ? HttpResponse{.body = std::move(prepared.value()->counted)}
                                        : refuse(exchange, prepared.error());
  co_await exchange.respond(std::move(response));
}

net::awaitable<void> Service::detokenize(Exchange& exchange, const Route&) {
  KeyTicket ticket;
  const Result<std::string> tenant = admit(exchange, ticket);
  Result<std::string> answer = Error{Errc::kStopped, ""};
  if (tenant.ok()) {
    const size_t bytes = exchange.request().body.size();
    auto work = [this, body = exchange.take_body()] { return openai::detokenize(body, model_); };
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
