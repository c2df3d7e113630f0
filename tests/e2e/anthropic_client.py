# SPDX-License-Identifier: Apache-2.0
"""The official anthropic client on /v1/messages. Usage: anthropic_client.py PATH_OF_SPARROW. Exits with 77 without the client."""

import sys
import unittest
from typing import Literal

try:
    import anthropic
except ImportError:
    print("skipped: the anthropic package is not installed here")
    sys.exit(77)

from served import KEY, Server

TOOLS = [
    {"name": "find_route", "description": "Finds a route.", "cache_control": {"type": "ephemeral"},
     "input_schema": {"type": "object", "properties": {"stops": {"type": "array", "items": {"type": "string"}}}}},
    {"name": "ping", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}},
]


def said(message):
    """An answer without what differs from one request to the next."""
    blocks = [(b.type, b.text if b.type == "text" else b.thinking if b.type == "thinking" else (b.name, b.input))
              for b in message.content]
    return blocks, message.stop_reason, message.stop_sequence, message.usage.output_tokens


class AnthropicClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(sys.argv[1]).__enter__()
        cls.bias = cls.server.ending_bias()
        cls.client = anthropic.Anthropic(base_url=cls.server.url, api_key=KEY, max_retries=0, timeout=300)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.__exit__()

    def fields(self, messages="Hello", extra=None, **fields):
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        fields.setdefault("max_tokens", 24)
        return {"model": "m3", "messages": messages,
                "extra_body": {"temperature": 0, **(extra or {})}, **fields}

    def create(self, *args, **fields):
        return self.client.messages.create(**self.fields(*args, **fields))

    def streamed(self, *args, **fields):
        with self.client.messages.stream(**self.fields(*args, **fields)) as stream:
            for _ in stream:
                pass
            return stream.get_final_message()

    def test_a_message(self):
        message = self.create(system="Be brief.", extra={"ignore_eos": True}, metadata={"user_id": "u"})
        self.assertEqual(message.type, "message")
        self.assertEqual(message.stop_reason, "max_tokens")
        self.assertEqual([block.type for block in message.content], ["text"])
        self.assertEqual(message.usage.output_tokens, 24)
        again = self.create(system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
                            extra={"ignore_eos": True})
        self.assertEqual(said(message), said(again))
        self.assertGreater(again.usage.cache_read_input_tokens, 0)

    def test_a_stream_says_what_the_message_says(self):
        for thinking, choice in [({"type": "enabled", "budget_tokens": 9}, "auto"), ({"type": "disabled"}, "any"),
                                 ({"type": "adaptive"}, "any")]:
            with self.subTest(thinking=thinking, choice=choice):
                # What ends a call by chance would end a thought before it has begun.
                fields = {"thinking": thinking, "tools": TOOLS, "tool_choice": {"type": choice},
                          "max_tokens": 3000 if choice == "any" else 60,
                          "extra": {"logit_bias": self.bias if choice == "any" else {}, "seed": 5, "temperature": 1}}
                whole = self.create(**fields)
                self.assertEqual(said(self.streamed(**fields)), said(whole))
                if thinking["type"] == "enabled":
                    self.assertEqual(whole.content[0].type, "thinking")
                    self.assertTrue(whole.content[0].signature)
                    # The tag that closes the thought counts where it also ends a character.
                    self.assertLessEqual(whole.usage.output_tokens_details.thinking_tokens, 10)
                if choice == "any":
                    self.assertEqual(whole.stop_reason, "tool_use")

    def test_events_in_their_order(self):
        events = [event.type for event in self.client.messages.create(stream=True, **self.fields(extra={"ignore_eos": True}))]
        self.assertEqual(events[:2], ["message_start", "content_block_start"])
        self.assertEqual(events[-3:], ["content_block_stop", "message_delta", "message_stop"])

    def test_stop_sequences(self):
        text = self.create("Stop", max_tokens=40, extra={"ignore_eos": True}).content[0].text
        cut = self.create("Stop", max_tokens=40, stop_sequences=[text[5:8]], extra={"ignore_eos": True})
        self.assertEqual((cut.stop_reason, cut.stop_sequence), ("stop_sequence", text[5:8]))
        self.assertEqual(cut.content[0].text, text[:text.index(text[5:8])])

    def agent(self, call):
        messages = [{"role": "user", "content": "Which route?"}]
        calls = 0
        for turn in range(4):
            last = turn >= 2
            message = call(messages, tools=TOOLS, tool_choice={"type": "none" if last else "any"},
                           max_tokens=30 if last else 3000,
                           thinking={"type": "enabled", "budget_tokens": 8} if turn == 1 else {"type": "disabled"},
                           extra={"logit_bias": self.bias, "seed": turn, "temperature": 1})
            messages.append({"role": "assistant", "content": message.content})
            results = [{"type": "tool_result", "tool_use_id": block.id, "is_error": calls % 2 == 1,
                        "content": [{"type": "text", "text": "a result"}]}
                       for block in message.content if block.type == "tool_use"]
            calls += len(results)
            messages.append({"role": "user", "content": results + [{"type": "text", "text": "And then?"}]})
            if not last:
                self.assertTrue(results)
                self.assertEqual(message.stop_reason, "tool_use")
        self.assertGreaterEqual(calls, 2)

    def test_agents_of_several_turns(self):
        self.agent(self.create)
        self.agent(self.streamed)

    def test_the_clients_own_loop_over_tools(self):
        calls = []

        @anthropic.beta_tool
        def find_route(stops: list[Literal["A", "B"]]) -> str:
            """Finds a route."""
            calls.append(stops)
            return "A to B"

        runner = self.client.beta.messages.tool_runner(
            **self.fields("Which route?", tools=[find_route], tool_choice={"type": "any"}, max_tokens=3000, max_iterations=3,
                          extra={"logit_bias": self.bias, "seed": 5, "temperature": 1}))
        self.assertEqual([message.stop_reason for message in runner], ["tool_use"] * 3)
        self.assertGreaterEqual(len(calls), 3)

    def test_tokens_are_counted(self):
        fields = self.fields(system="Be brief.", tools=TOOLS)
        del fields["max_tokens"], fields["extra_body"]
        count = self.client.messages.count_tokens(**fields).input_tokens
        usage = self.create(system="Be brief.", tools=TOOLS).usage
        self.assertEqual(count, usage.input_tokens + usage.cache_read_input_tokens)

    def test_keys_betas_and_queries(self):
        bearer = anthropic.Anthropic(base_url=self.server.url, auth_token=KEY, max_retries=0)
        self.assertTrue(bearer.messages.create(**self.fields(max_tokens=2)).id)
        fields = self.fields(max_tokens=2)
        self.assertTrue(self.client.beta.messages.create(betas=["interleaved-thinking-2025-05-14"], **fields).id)

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["m3"])

    def test_errors(self):
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.create(extra={"temperature": 9})
        self.assertEqual(caught.exception.body["type"], "error")
        self.assertEqual(caught.exception.body["error"]["type"], "invalid_request_error")
        self.assertIn("temperature", caught.exception.body["error"]["message"])
        with self.assertRaises(anthropic.NotFoundError) as caught:
            self.client.messages.create(model="other", max_tokens=2, messages=[{"role": "user", "content": "x"}])
        self.assertEqual(caught.exception.body["error"]["type"], "not_found_error")
        with self.assertRaises(anthropic.AuthenticationError) as caught:
            anthropic.Anthropic(base_url=self.server.url, api_key="no", max_retries=0).messages.create(
                **self.fields(max_tokens=2))
        self.assertEqual(caught.exception.body["error"]["type"], "authentication_error")
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.create("word " * 100000)
        with self.assertRaises(anthropic.BadRequestError):
            self.create(tools=[{"type": "bash_20250124", "name": "bash"}])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
