// SPDX-License-Identifier: Apache-2.0
// sparrow debug text: every line is answered, in order, whatever it holds.
#include "cli/run/debug_text.h"

#include <gtest/gtest.h>

#include <sstream>

#include "base/files/mapped_file.h"
#include "support/output_cases.h"
#include "support/temp_dir.h"

namespace sparrow::cli {
namespace {

// '@' stands for the namespace marker.
std::string answers(const std::string& lines) {
  test::TempDir folder;
  const auto file = folder.path() / "t.jinja";
  EXPECT_TRUE(write_text_file(file,
                              "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
                              "{{ tools|length if tools else 0 }}{{ color }}{{ add_generation_prompt }}")
                  .ok());
  std::istringstream in(with_markers(lines));
  std::ostringstream out;
  const Status status = answer_text_lines({.model = {}, .chat_template = file}, in, out);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return out.str();
}

TEST(DebugText, ParsesAnOutputAndShowsWhatStreamed) {
  EXPECT_EQ(
      answers(
          R"({"op":"parse_output","id":7,"tools":[{"type":"function","function":{"name":"f","parameters":)"
          R"({"properties":{"s":{"type":"string"}}}}}],"chunks":["<mm:think>pl","an</mm:think>Hi @<tool_call>@<invoke )"
          R"(name=\"f\">@<s>a","b@</s>@</invoke>","@</tool_call>\n"],"stream":true,"final":true})"),
      R"({"id":7,"reasoning":"plan","content":"Hi ","tool_calls":[{"name":"f","arguments":"{\"s\":\"ab\"}"}],"deltas":[)"
      R"({"reasoning":"pl"},{"reasoning":"an"},{"content":"Hi "},{"tool_calls":[{"index":0,"name":"f","arguments":"{\"s\":\"a"}]},)"
      R"({"tool_calls":[{"index":0,"name":null,"arguments":"b\"}"}]}]})"
      "\n");
}

TEST(DebugText, EachOperationParsesItsPartOnly) {
  EXPECT_EQ(answers(R"({"op":"parse_tools","chunks":["<mm:think>a"]})"),
            "{\"content\":\"<mm:think>a\",\"tool_calls\":[],\"deltas\":[]}\n");
  EXPECT_EQ(answers(R"({"op":"parse_reasoning","chunks":["@<tool_call>@</tool_call>"]})"),
            with_markers("{\"reasoning\":null,\"content\":\"@<tool_call>@</tool_call>\",\"deltas\":[]}\n"));
}

TEST(DebugText, ThinkingModeEnabledStartsInReasoning) {
  EXPECT_EQ(answers(R"({"op":"parse_reasoning","thinking_mode":"enabled","chunks":["a</mm:think>b"]})"
                    "\n"
                    R"({"op":"parse_reasoning","thinking_mode":"adaptive","chunks":["a</mm:think>b"]})"
                    "\n"
                    R"({"op":"parse_reasoning","thinking_mode":null,"chunks":["</mm:think>b"]})"),
            "{\"reasoning\":\"a\",\"content\":\"b\",\"deltas\":[]}\n"
            "{\"reasoning\":null,\"content\":\"a</mm:think>b\",\"deltas\":[]}\n"
            "{\"reasoning\":null,\"content\":\"b\",\"deltas\":[]}\n");
}

TEST(DebugText, BytesCutAnywhereComeAsHex) {
  EXPECT_EQ(answers(R"({"op":"parse_reasoning","chunks_hex":["70C3","bc","ff"],"stream":true})"),
            "{\"reasoning\":null,\"content\":\"p\xC3\xBC\xEF\xBF\xBD\",\"deltas\":[{\"content\":\"p\"},"
            "{\"content\":\"\xC3\xBC\"},{\"content\":\"\xEF\xBF\xBD\"}]}\n");
}

TEST(DebugText, AnswerThatIsNotFinalKeepsBackWhatIsNotCertain) {
  EXPECT_EQ(
      answers(R"({"op":"parse_tools","chunks":["a]<"],"stream":true,"final":false})"
              "\n"
              R"({"op":"parse_tools","chunks":["a]<"],"stream":true,"final":true})"),
      "{\"content\":\"a\",\"tool_calls\":[],\"deltas\":[{\"content\":\"a\"}]}\n"
      "{\"content\":\"a]<\",\"tool_calls\":[],\"deltas\":[{\"content\":\"a\"},{\"content\":\"]<\"}]}\n");
}

TEST(DebugText, RendersWithTheGivenTemplateAndEveryKeyOfTheRequest) {
  EXPECT_EQ(
      answers(
          R"({"op":"render_chat","id":"a","input_format":"template","messages":[{"role":"u","content":"Hi"}],)"
          R"("tools":[1,2],"chat_template_kwargs":{"color":"red"},"add_generation_prompt":false})"),
      "{\"id\":\"a\",\"prompt\":\"[u:Hi]2redFalse\"}\n");
}

TEST(DebugText, BadLinesAreAnsweredAndTheNextOneIsRead) {
  EXPECT_EQ(
      answers(
          "\n[1\n3\n{}\n"
          R"({"op":"fly","id":1})"
          "\n"
          R"({"op":"parse_tools","id":{"n":[1.5,null,true,1e400,1234567890123456789012345678901234567890123456789012345678901234567890]}})"
          "\n"
          R"({"op":"parse_tools","chunks":[3]})"
          "\n"
          R"({"op":"parse_tools","chunks_hex":["0g"]})"
          "\n"
          R"({"op":"parse_tools","chunks":[],"tools":[{}]})"
          "\n"
          R"({"op":"render_chat","input_format":"xml","messages":[]})"
          "\n"
          R"({"op":"tokenize","text":"a"})"
          "\n"
          R"({"op":"parse_tools","chunks":["ok"]})"),
      R"({"error":"the line is not valid JSON: incomplete JSON at line 1, column 1"}
{"error":"the line is not valid JSON: incomplete JSON at line 1, column 3"}
{"error":"the document must be an object, got 3"}
{"error":"op is missing"}
{"id":1,"error":"op must be render_chat, parse_tools, parse_reasoning, parse_output, tokenize or detokenize, got \"fly\""}
{"id":{"n":[1.5,null,true,null,1234567890123456789012345678901234567890123456789012345678901234567890]},"error":"chunks is missing"}
{"error":"chunks[0] must be a string, got 3"}
{"error":"chunks_hex[0] must be pairs of hex digits, got \"0g\""}
{"error":"tools[0].name is missing"}
{"error":"input_format must be openai or template, got \"xml\""}
{"error":"tokenize, detokenize and return_ids need --model"}
{"content":"ok","tool_calls":[],"deltas":[]}
)");
}

TEST(DebugText, TokenizesAndBack) {
  test::TempDir folder;
  std::filesystem::copy_file(std::filesystem::path(SPARROW_GOLDEN_DIR) / "tokenizer/m3.tokenizer.json",
                             folder.path() / "tokenizer.json");
  std::istringstream in(R"({"op":"tokenize","text":"größe <mm:think>"})"
                        "\n"
                        R"({"op":"detokenize","ids":[70,81]})"
                        "\n"
                        R"({"op":"detokenize","ids":[-1]})");
  std::ostringstream out;
  ASSERT_TRUE(answer_text_lines({.model = folder.path(), .chat_template = {}}, in, out).ok());
  const std::string lines = out.str();
  ASSERT_TRUE(lines.starts_with("{\"ids\":[")) << lines;
  EXPECT_NE(lines.find("\n{\"text\":\"gr\"}\n{\"error\":\"ids[0] must be an integer"), lines.npos) << lines;
  std::istringstream back("{\"op\":\"detokenize\"," + lines.substr(1, lines.find('\n') - 1));
  std::ostringstream text;
  ASSERT_TRUE(answer_text_lines({.model = folder.path(), .chat_template = {}}, back, text).ok());
  EXPECT_EQ(text.str(), "{\"text\":\"größe <mm:think>\"}\n");
}

TEST(DebugText, ShowsWhatOfAPromptIsMarkup) {
  test::TempDir folder;
  std::filesystem::copy_file(std::filesystem::path(SPARROW_GOLDEN_DIR) / "tokenizer/m3.tokenizer.json",
                             folder.path() / "tokenizer.json");
  ASSERT_TRUE(write_text_file(folder.path() / "chat_template.jinja", "]~b]{{ messages[0].content }}").ok());
  std::istringstream in(R"({"op":"render_chat","messages":[{"role":"user","content":"]~b]"}],)"
                        R"("return_spans":true,"return_ids":true})");
  std::ostringstream out;
  ASSERT_TRUE(answer_text_lines({.model = folder.path(), .chat_template = {}}, in, out).ok());
  EXPECT_EQ(out.str(),
            R"({"prompt":"]~b]]~b]","spans":[{"text":"]~b]","markup":true},{"text":"]~b]","markup":false}],)"
            R"("ids":[2519,60,93,65,60]})"
            "\n");
}

TEST(DebugText, NeedsAModelOrATemplate) {
  std::istringstream in;
  std::ostringstream out;
  EXPECT_EQ(answer_text_lines({}, in, out).error().message, "debug text needs --model or --chat-template");
  EXPECT_EQ(answer_text_lines({.model = "/no/such", .chat_template = {}}, in, out).error().message,
            "--model '/no/such' is not a folder");
}

}  // namespace
}  // namespace sparrow::cli
