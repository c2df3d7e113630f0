// SPDX-License-Identifier: Apache-2.0
// Stored responses: looked at, deleted, cancelled, and what they were made of.
#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <utility>

#include "base/json/json_writer.h"
#include "base/utf8.h"
#include "server/api/errors.h"
#include "server/service.h"

namespace sparrow {
namespace {

constexpr std::string_view kPrefix = "/v1/responses/";
constexpr int64_t kDefaultItems = 20, kMaxItems = 100;

std::string id_in(const HttpRequest& request) {
  const std::string rest = request.path.substr(kPrefix.size());
  return rest.substr(0, rest.find('/'));
}

std::string id_of_item(const std::string& item) {
  const auto document = JsonDocument::parse(item, "an item");
  const auto id = document->root().find("id");
  return id ? std::string(id->string_view()) : "";
}

// Error at the first parameter that is none of these, comes twice, or is badly encoded.
Status check_query(std::string_view query, std::span<const std::string_view> known) {
  std::vector<std::string_view> seen;
  for (std::string_view rest = query; !rest.empty();) {
    const std::string_view item = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    if (item.empty()) continue;
    const std::string_view name = item.substr(0, item.find('='));
    const auto error = [&](std::string_view what) {
      const std::string field = excerpt(std::string(name));
      return Error{Errc::kInvalidArgument, strf("{} {}", field, what), field};
    };
    if (std::ranges::find(known, name) == known.end()) return error("is not a parameter of this request");
    if (std::ranges::find(seen, name) != seen.end()) return error("must be given once");
    if (!query_value(item, name)) return error("must be percent-encoded");
    seen.push_back(name);
  }
  return Ok{};
}

// A page of the items, as the query wants it.
Result<std::string> item_page(const StoredItems& items, const std::string& query) {
  static constexpr std::array<std::string_view, 3> kParameters = {"limit", "order", "after"};
  SPARROW_TRY(check_query(query, kParameters));
  int64_t limit = kDefaultItems;
  if (const auto text = query_value(query, "limit")) {
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), limit);
    if (error != std::errc{} || end != text->data() + text->size() || limit < 1 || limit > kMaxItems)
      return Error{
          Errc::kInvalidArgument,
          strf("limit must be an integer from 1 to {}, got {}", kMaxItems, json_quoted(excerpt(*text))),
          "limit"};
  }
  const std::string order = query_value(query, "order").value_or("desc");
  if (order != "asc" && order != "desc")
    return Error{Errc::kInvalidArgument,
                 strf("order must be asc or desc, got {}", json_quoted(excerpt(order))), "order"};
  StoredItems sorted = items;
  if (order == "desc") std::reverse(sorted.begin(), sorted.end());
  auto begin = sorted.begin();
  if (const auto after = query_value(query, "after")) {
    begin = std::find_if(begin, sorted.end(), [&](const auto& item) { return id_of_item(*item) == *after; });
    if (begin == sorted.end())
      return Error{Errc::kInvalidArgument,
                   strf("after must be the id of an item, got {}", json_quoted(excerpt(*after))), "after"};
    ++begin;
  }
  const auto end = begin + std::min<int64_t>(limit, sorted.end() - begin);
  JsonWriter json;
  json.begin_object().key("object").string("list").key("data").begin_array();
  for (auto item = begin; item != end; ++item) json.raw(**item);
  json.end_array();
  json.key("first_id").string(begin == end ? "" : id_of_item(**begin));
  json.key("last_id").string(begin == end ? "" : id_of_item(**(end - 1)));
  json.key("has_more").boolean(end != sorted.end()).end_object();
  return json.take();
}

}  // namespace

Result<std::shared_ptr<const StoredResponse>> Service::stored_response(const Exchange& exchange,
                                                                       std::string& key) {
  const auto owner = key_of(exchange.request());
  if (!owner) return Error{Errc::kBusy, "this API key has just been withdrawn", kKeyAtFault};
  key = owner->id;
  if (!store_.enabled())
    return Error{Errc::kUnsupported,
                 "this server stores no responses: it was started with --response-memory 0"};
  const std::string id = id_in(exchange.request());
  auto response = store_.find(key, id);
  if (!response)
    return Error{Errc::kNotFound, strf("there is no response {}: it has expired, was deleted, or never was",
                                       json_quoted(excerpt(id)))};
  return response;
}

net::awaitable<void> Service::show_response(Exchange& exchange, const Route&) {
  std::string key;
  const auto stored = stored_response(exchange, key);
  static constexpr std::array<std::string_view, 1> kParameters = {"stream"};
  const std::string& query = exchange.request().query;
  HttpResponse response =
      stored.ok() ? HttpResponse{.body = stored.value()->body} : refuse(exchange, stored.error());
  if (const Status status = check_query(query, kParameters); !status.ok())
    response = refuse(exchange, status.error());
  else if (query_value(query, "stream").value_or("false") != "false")
    response = refuse(
        exchange, {Errc::kUnsupported, "stream is not supported here: a stored response is whole", "stream"});
  co_await exchange.respond(std::move(response));
}

net::awaitable<void> Service::delete_response(Exchange& exchange, const Route&) {
  std::string key;
  const auto stored = stored_response(exchange, key);
  HttpResponse response;
  if (stored.ok()) {
    if (stored.value()->cancel) stored.value()->cancel();
    store_.remove(key, stored.value()->id);
    JsonWriter json;
    json.begin_object().key("id").string(stored.value()->id).key("object").string("response");
    response.body = json.key("deleted").boolean(true).end_object().take();
  } else {
    response = refuse(exchange, stored.error());
  }
  co_await exchange.respond(std::move(response));
}

net::awaitable<void> Service::cancel_response(Exchange& exchange, const Route&) {
  std::string key;
  auto stored = stored_response(exchange, key);
  if (stored.ok() && stored.value()->cancel) {
    stored.value()->cancel();
    stored = stored_response(exchange, key);
  } else if (stored.ok() && stored.value()->body.find("\"background\":true") == std::string::npos) {
    stored = Error{Errc::kInvalidArgument, "only a response that is made in the background can be cancelled"};
  }
  HttpResponse response =
      stored.ok() ? HttpResponse{.body = stored.value()->body} : refuse(exchange, stored.error());
  co_await exchange.respond(std::move(response));
}

net::awaitable<void> Service::list_input_items(Exchange& exchange, const Route&) {
  std::string key;
  const auto stored = stored_response(exchange, key);
  HttpResponse response;
  if (stored.ok()) {
    Result<std::string> page = item_page(stored.value()->input, exchange.request().query);
    response = page.ok() ? HttpResponse{.body = std::move(page).value()} : refuse(exchange, page.error());
  } else {
    response = refuse(exchange, stored.error());
  }
  co_await exchange.respond(std::move(response));
}

}  // namespace sparrow
