# SPDX-License-Identifier: Apache-2.0
"""The official openai client on /v1/responses. Usage: responses_client.py PATH_OF_SPARROW. Exits with 77 without the client."""

import json
import sys
import time
import unittest

try:
    import openai
except ImportError:
    print("skipped: the openai package is not installed here")
    sys.exit(77)

from served import KEY, Server

TOOLS = [
    {"type": "function", "name": "find_route", "strict": False,
     "parameters": {"type": "object", "properties": {"stops": {"type": "array", "items": {"type": "string"}}}}},
    {"type": "function", "name": "ping", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}, "strict": False},
]


def said(response):
    """An answer without what differs from one request to the next."""
    items = []
    for item in response.output:
        if item.type == "function_call":
            items.append((item.type, item.name, item.arguments, item.status))
        elif item.type == "custom_tool_call":
            items.append((item.type, item.name, item.input))
        else:
            items.append((item.type, "".join(part.text for part in item.content), item.status))
    return items, response.status, response.usage.output_tokens


class ResponsesClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(sys.argv[1]).__enter__()
        cls.bias = cls.server.ending_bias()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key=KEY, max_retries=0, timeout=300)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.__exit__()

    def create(self, input="Hello", extra=None, **fields):
        fields.setdefault("max_output_tokens", 24)
        return self.client.responses.create(model="m3", input=input, temperature=fields.pop("temperature", 0),
                                            extra_body=extra, **fields)

    def events(self, **fields):
        """All events of a stream; the last one has the response."""
        events = list(self.create(stream=True, **fields))
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        return events

    def test_an_answer(self):
        response = self.create(instructions="Be brief.", extra={"ignore_eos": True}, metadata={"a": "b"})
        self.assertEqual(response.object, "response")
        self.assertEqual(response.status, "incomplete")
        self.assertEqual(response.incomplete_details.reason, "max_output_tokens")
        self.assertEqual(response.usage.output_tokens, 24)
        self.assertEqual(response.instructions, "Be brief.")
        self.assertEqual(response.metadata, {"a": "b"})
        self.assertTrue(response.output_text)
        again = self.create(instructions="Be brief.", extra={"ignore_eos": True})
        self.assertEqual(said(response), said(again))
        self.assertGreater(again.usage.input_tokens_details.cached_tokens, 0)

    def test_a_stream_says_what_the_answer_says(self):
        for mode, choice in [("enabled", "auto"), ("disabled", "required"), ("adaptive", "required")]:
            with self.subTest(mode=mode, choice=choice):
                fields = {"tools": TOOLS, "tool_choice": choice, "max_output_tokens": 400,
                          "extra": {"chat_template_kwargs": {"thinking_mode": mode}, "logit_bias": self.bias,
                                    "seed": 5}, "temperature": 1}
                whole = self.create(**fields)
                events = self.events(**fields)
                self.assertEqual(events[0].type, "response.created")
                self.assertEqual(events[1].type, "response.in_progress")
                self.assertEqual(said(events[-1].response), said(whole))
                text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
                self.assertEqual(text, whole.output_text)

    def test_the_stream_helper(self):
        with self.client.responses.stream(model="m3", input="Hello", max_output_tokens=3000, tools=TOOLS,
                                          tool_choice="required", temperature=1,
                                          extra_body={"logit_bias": self.bias, "seed": 7,
                                                      "chat_template_kwargs": {"thinking_mode": "disabled"}}) as stream:
            for _ in stream:
                pass
            final = stream.get_final_response()
        self.assertEqual(final.status, "completed")
        self.assertTrue(any(item.type == "function_call" for item in final.output))

    def agent(self, streaming, history_of):
        """An agent of several turns: calls, their outputs, then an answer."""
        items = [{"role": "user", "content": "Which route?"}]
        calls = 0
        for turn in range(4):
            fields = {"tools": TOOLS, "tool_choice": "required" if turn < 2 else "none", "temperature": 1,
                      "max_output_tokens": 3000 if turn < 2 else 30, "include": ["reasoning.encrypted_content"],
                      "store": False,
                      "extra": {"logit_bias": self.bias, "seed": turn,
                                "chat_template_kwargs": {"thinking_mode": "enabled" if turn == 1 else "disabled"}}}
            if streaming:
                response = self.events(input=items, **fields)[-1].response
            else:
                response = self.create(input=items, **fields)
            items += [history_of(item) for item in response.output]
            for item in response.output:
                if item.type == "function_call":
                    calls += 1
                    json.loads(item.arguments)
                    items.append({"type": "function_call_output", "call_id": item.call_id, "output": f"result {calls}"})
            if turn >= 2:
                items.append({"role": "user", "content": "And then?"})
        self.assertGreaterEqual(calls, 2)
        ids = [item["call_id"] for item in items if isinstance(item, dict) and item.get("type") == "function_call"]
        self.assertEqual(len(ids), len(set(ids)))
        return items

    def test_agents_of_several_turns(self):
        for streaming in [False, True]:
            with self.subTest(streaming=streaming):
                self.agent(streaming, lambda item: item.to_dict())
        # Some clients keep nothing of a thought but its encrypted form.
        self.agent(False, lambda item: {k: v for k, v in item.to_dict().items()
                                        if item.type != "reasoning" or k != "content"})

    def test_tools_of_every_kind(self):
        # What Codex sends: tools in namespaces, custom ones, and some that only OpenAI could run.
        patch = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "regex", "definition": "[ab]{3}"}}
        agents = {"type": "namespace", "name": "agents", "description": "Helpers.", "tools": TOOLS}
        name = TOOLS[0]["name"]
        for chosen, kind in [(patch, "custom_tool_call"), ({**TOOLS[0], "namespace": "agents"}, "function_call")]:
            with self.subTest(kind=kind):
                choice = {key: chosen[key] for key in ["type", "name", "namespace"] if key in chosen}
                fields = {"tools": [agents, patch, {"type": "web_search"}], "tool_choice": choice, "temperature": 1,
                          "max_output_tokens": 3000, "parallel_tool_calls": False,
                          "extra": {"logit_bias": self.bias, "seed": 3, "chat_template_kwargs": {"thinking_mode": "disabled"}}}
                response = self.create(**fields)
                self.assertEqual([item.type for item in response.output], [kind])
                call = response.output[0]
                self.assertEqual(said(self.events(**fields)[-1].response), said(response))
                if kind == "custom_tool_call":
                    self.assertRegex(call.input, "^[ab]{3}$")
                else:
                    self.assertEqual((call.name, call.namespace), (name, "agents"))
                output = {"type": kind + "_output", "call_id": call.call_id, "output": "done"}
                question = {"role": "user", "content": "Hello"}
                sent = self.create(input=[question, call.to_dict(), output])
                named = self.create(input=[question, {"type": "item_reference", "id": call.id}, output])
                self.assertEqual(said(named), said(sent))

    def test_a_conversation_that_the_server_remembers(self):
        first = self.create(input="Hello", instructions="Be brief.", extra={"ignore_eos": True})
        self.assertTrue(first.store)
        second = self.create(input="And then?", previous_response_id=first.id, extra={"ignore_eos": True})
        history = [{"role": "user", "content": "Hello"}, *[item.to_dict() for item in first.output],
                   {"role": "user", "content": "And then?"}]
        by_hand = self.create(input=history, store=False, extra={"ignore_eos": True})
        self.assertEqual(said(second), said(by_hand))
        self.assertEqual(second.usage.input_tokens, by_hand.usage.input_tokens)
        self.assertEqual(second.previous_response_id, first.id)

        kept = self.client.responses.retrieve(second.id)
        self.assertEqual(kept.to_dict(), second.to_dict())
        items = list(self.client.responses.input_items.list(second.id, order="asc", limit=1))
        self.assertEqual(len(items), len(history))
        self.assertEqual(items[0].content[0].text, "Hello")
        self.assertEqual(items[-1].content[0].text, "And then?")

        self.client.responses.delete(second.id)
        for gone in [second.id, by_hand.id, "resp_none"]:
            with self.assertRaises(openai.NotFoundError):
                self.client.responses.retrieve(gone)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.create(previous_response_id=second.id)
        self.assertEqual(caught.exception.param, "previous_response_id")

    def test_an_agent_that_sends_only_what_is_new(self):
        previous, input, calls = None, "Which route?", 0
        for turn in range(4):
            response = self.events(
                input=input, previous_response_id=previous, tools=TOOLS, temperature=1,
                tool_choice="required" if turn < 2 else "none", max_output_tokens=3000 if turn < 2 else 20,
                extra={"logit_bias": self.bias, "seed": turn, "chat_template_kwargs": {"thinking_mode": "disabled"}},
            )[-1].response
            previous = response.id
            input = [{"type": "function_call_output", "call_id": item.call_id, "output": "a result"}
                     for item in response.output if item.type == "function_call"]
            calls += len(input)
            input = input or "And then?"
        self.assertGreaterEqual(calls, 2)

    def test_answers_in_the_background(self):
        response = self.create(background=True, extra={"ignore_eos": True})
        self.assertEqual(response.status, "queued")
        while response.status in ["queued", "in_progress"]:
            time.sleep(0.05)
            response = self.client.responses.retrieve(response.id)
        self.assertEqual(response.status, "incomplete")
        self.assertEqual(said(response), said(self.create(extra={"ignore_eos": True})))
        self.assertEqual(self.client.responses.cancel(response.id).status, "incomplete", "it had ended")

        long = self.create(background=True, max_output_tokens=4000, extra={"ignore_eos": True})
        self.assertEqual(self.client.responses.cancel(long.id).status, "cancelled")
        self.assertEqual(self.client.responses.retrieve(long.id).status, "cancelled")
        with self.assertRaises(openai.BadRequestError):
            self.client.responses.cancel(self.create().id)
        with self.assertRaises(openai.BadRequestError):
            self.create(background=True, store=False)

    def test_a_server_that_stores_nothing(self):
        with Server(sys.argv[1], "--response-memory", "0") as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0, timeout=300)
            response = client.responses.create(model="m3", input="Hello", max_output_tokens=2)
            self.assertFalse(response.store)
            for fields, name in [({"store": True}, "store"), ({"previous_response_id": response.id}, "previous_response_id"),
                                 ({"background": True}, "background")]:
                with self.assertRaises(openai.BadRequestError) as caught:
                    client.responses.create(model="m3", input="Hello", **fields)
                self.assertEqual(caught.exception.param, name)
            with self.assertRaises(openai.BadRequestError) as caught:
                client.responses.retrieve(response.id)
            self.assertIn("--response-memory", str(caught.exception))

    def test_tokens_are_counted(self):
        count = self.client.responses.input_tokens.count(model="m3", input="Hello", tools=TOOLS)
        self.assertEqual(count.input_tokens, self.create(tools=TOOLS).usage.input_tokens)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.create(temperature=9)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.create(input=[{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}])
        self.assertEqual(caught.exception.param, "input[0].content[0].type")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.create(tools=[{"type": "mcp", "server_label": "x", "server_url": "http://x"}])
        self.assertEqual(caught.exception.param, "tools[0].type")
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.create(model="other", input="x")
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.server.url + "/v1", api_key="no", max_retries=0).responses.create(
                model="m3", input="x")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
