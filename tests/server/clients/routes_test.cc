// SPDX-License-Identifier: Apache-2.0
// What a client finds besides completions, and what it is told where it looks in the wrong place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json/json.h"
#include "server/openai/chat_request.h"
#include "support/server/service_fixture.h"

namespace sparrow {
namespace {

using namespace test;
using testing::HasSubstr;
using testing::Not;

class ClientRoutes : public ServiceTest {
 protected:
  JsonDocument document(const char* path) const {
    const RawResponse response = ask(get_request(path));
    EXPECT_EQ(response.status, 200) << path << response.body;
    EXPECT_EQ(response.header("content-type"), "application/json") << path;
    return JsonDocument::parse(response.body, path).value();
  }
};

TEST_F(ClientRoutes, ModelsSayWhereTheyComeFromAndHowMuchTheyTake) {
  start();
  const JsonDocument list = document("/v1/models");
  const Json model = list.root().at("data").value().element(0);
  EXPECT_EQ(model.at("root").value().string_view(), "m3");
  EXPECT_EQ(model.at("max_model_len").value().as_int(0, 1 << 20).value(), 2048);
}

TEST_F(ClientRoutes, SmallDocumentsAreThere) {
  start();
  EXPECT_EQ(ask(get_request("/ping")).status, 200);
  EXPECT_EQ(document("/load").root().at("server_load").value().as_int(0, 10).value(), 0);
  EXPECT_EQ(document("/server_info").root().at("device").value().string_view(), "cpu");
  EXPECT_GT(document("/tokenizer_info").root().at("added_tokens").value().size(), 50u);
  const JsonDocument greeting = document("/");
  EXPECT_EQ(greeting.root().at("name").value().string_view(), "sparrow");
  EXPECT_GT(greeting.root().at("endpoints").value().size(), 10u);
}

TEST_F(ClientRoutes, InternalsNeedAKeyWhereThereAreKeys) {
  ASSERT_TRUE(keys_.add("secret").ok());
  start();
  for (const char* path : {"/v1/models", "/server_info", "/tokenizer_info"})
    EXPECT_EQ(ask(get_request(path)).status, 401) << path;
  for (const char* path : {"/", "/ping", "/load", "/health", "/openapi.json"})
    EXPECT_EQ(ask(get_request(path)).status, 200) << path;
  EXPECT_THAT(ask(get_request("/openapi.json")).body, HasSubstr("\"scheme\":\"bearer\""));
}

// The rows that the reader checks by are those of the description.
TEST_F(ClientRoutes, TheDescriptionHasEveryFieldOfARequest) {
  start();
  const JsonDocument description = document("/openapi.json");
  const Json root = description.root();
  EXPECT_EQ(root.at("openapi").value().string_view(), "3.1.0");
  EXPECT_TRUE(root.at("paths").value().find("/v1/models/{id}"));
  const Json schemas = root.at("components").value().at("schemas").value();
  const Json chat = schemas.at("ChatCompletionRequest").value().at("properties").value();
  for (const auto& table : {openai::shared_fields(), openai::chat_fields()})
    for (const Field& field : table) EXPECT_TRUE(chat.find(field.name)) << field.name;
  const Json temperature = chat.at("temperature").value();
  EXPECT_EQ(temperature.at("maximum").value().as_number().value(), 2);
  EXPECT_EQ(
      chat.at("stop_token_ids").value().at("items").value().at("maximum").value().as_int(0, 1 << 20).value(),
      shared_model().config().vocab_size - 1);
  // No reference leads nowhere.
  const std::string text = ask(get_request("/openapi.json")).body;
  for (size_t at = 0; (at = text.find("#/components/schemas/", at)) != text.npos; ++at) {
    const size_t name = at + std::string_view("#/components/schemas/").size();
    EXPECT_TRUE(schemas.find(text.substr(name, text.find('"', name) - name))) << text.substr(at, 60);
  }
}

TEST_F(ClientRoutes, AWrongPathIsAnsweredWithTheRightOne) {
  start();
  const std::pair<const char*, const char*> cases[] = {
      {"/chat/completions", "did you mean /v1/chat/completions?"},
      {"//v1/chat/completions", "did you mean /v1/chat/completions?"},
      {"/v1//chat/completions/", "did you mean /v1/chat/completions?"},
      {"/v1/v1/chat/completions", "did you mean /v1/chat/completions?"},
      {"/openai/v1/completions", "did you mean /v1/completions?"},
      {"/v1/chat/completions/v1/messages", "did you mean /v1/messages?"},
      {"/models", "did you mean /v1/models?"},
      {"/v1/health", "did you mean /health?"},
      {"/v1/embeddings", "M3 is no embedding model"},
      {"/rerank", "M3 is no embedding model"},
      {"/v1/audio/speech", "M3 answers with text"},
      {"/api/chat", "below /v1"},
  };
  for (const auto& [path, words] : cases) {
    const RawResponse response = ask(json_post(path, "{}"));
    EXPECT_EQ(response.status, 404) << path;
    EXPECT_THAT(response.body, HasSubstr(words)) << path;
  }
  EXPECT_THAT(ask(get_request("/etc/passwd")).body, HasSubstr("nothing at /etc/passwd\""));
}

TEST_F(ClientRoutes, APageOfAnotherOriginIsToldWhichFlagLetsItIn) {
  start();
  const char* const head = "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n";
  const std::string page = "Origin: https://a.example\r\nAccess-Control-Request-Method: POST\r\n\r\n";
  EXPECT_THAT(ask(head + page).body, HasSubstr("--allowed-origins"));
  EXPECT_THAT(ask(head + std::string("\r\n")).body, Not(HasSubstr("--allowed-origins")));
}

}  // namespace
}  // namespace sparrow
