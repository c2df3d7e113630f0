# SPDX-License-Identifier: Apache-2.0
"""The official openai client against a running server. Usage: openai_client.py PATH_OF_SPARROW [FLAG OF serve ...]

On a GPU the flag is --batch-invariant: answers are compared to the last character. Exits with 77 where the client is not installed.
"""

import asyncio
import itertools
import json
import subprocess
import sys
import unittest
import urllib.request

try:
    import openai
except ImportError:
    print("skipped: the openai package is not installed here")
    sys.exit(77)

from served import KEY, Server

SPARROW = sys.argv[1]
FLAGS = sys.argv[2:]
TOOL = {
    "type": "function",
    "function": {
        "name": "find_route",
        "parameters": {"type": "object", "properties": {"stops": {"type": "array", "items": {"type": "string"}}}},
    },
}
PING = {"type": "function", "function": {"name": "ping"}}


def user(text):
    return [{"role": "user", "content": text}]


class OpenAiClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(SPARROW, *FLAGS).__enter__()
        cls.base = cls.server.url + "/v1"
        cls.client = openai.OpenAI(base_url=cls.base, api_key=KEY, max_retries=0, timeout=120)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.__exit__()

    def chat(self, text="Hello", **fields):
        fields.setdefault("max_tokens", 12)
        fields.setdefault("temperature", 0)
        return self.client.chat.completions.create(model="m3", messages=user(text), **fields)

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], ["m3"])
        self.assertEqual(self.client.models.retrieve("m3").id, "m3")

    def test_chat(self):
        answer = self.chat(extra_body={"ignore_eos": True})
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 12)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + 12)
        again = self.chat(extra_body={"ignore_eos": True})
        self.assertEqual(answer.choices[0].message, again.choices[0].message)
        self.assertGreater(again.usage.prompt_tokens_details.cached_tokens, 0)

    def test_stream_adds_up_to_the_answer(self):
        fields = {"extra_body": {"ignore_eos": True}, "max_tokens": 40}
        whole = self.chat("Stream", **fields).choices[0]
        content, reasoning, finish, usage = "", "", None, None
        for chunk in self.chat("Stream", stream=True, stream_options={"include_usage": True}, **fields):
            if chunk.usage:
                usage = chunk.usage
            for choice in chunk.choices:
                content += choice.delta.content or ""
                reasoning += getattr(choice.delta, "reasoning", None) or ""
                finish = choice.finish_reason or finish
        self.assertEqual(content, whole.message.content or "")
        self.assertEqual(reasoning, getattr(whole.message, "reasoning", None) or "")
        self.assertEqual(finish, whole.finish_reason)
        self.assertEqual(usage.completion_tokens, 40)

    def test_reasoning_is_not_content(self):
        answer = self.chat(extra_body={"chat_template_kwargs": {"thinking_mode": "enabled"}, "ignore_eos": True})
        message = answer.choices[0].message
        self.assertTrue(message.reasoning)
        self.assertEqual(message.reasoning, message.reasoning_content)
        self.assertIsNone(message.content)
        self.assertGreater(answer.usage.completion_tokens_details.reasoning_tokens, 0)

    def token_id(self, text):
        request = urllib.request.Request(self.server.url + "/tokenize", json.dumps({"prompt": text}).encode(),
                                         {"Authorization": "Bearer " + KEY, "Content-Type": "application/json"})
        (token,) = json.load(urllib.request.urlopen(request))["tokens"]
        return token

    def add_chunk(self, choices, chunk):
        """Adds to what the chunks of a stream say: for each choice its reasoning, content, calls and finish reason."""
        for choice in chunk.choices:
            found = choices.setdefault(choice.index, {"reasoning": "", "content": "", "calls": [], "finish": None})
            delta = choice.delta
            found["reasoning"] += getattr(delta, "reasoning", None) or ""
            found["content"] += delta.content or ""
            for call in delta.tool_calls or []:
                if call.index == len(found["calls"]):
                    self.assertTrue(call.id)
                    found["calls"].append([call.function.name, ""])
                found["calls"][call.index][1] += call.function.arguments or ""
            found["finish"] = choice.finish_reason or found["finish"]

    def collect(self, stream):
        choices = {}
        for chunk in stream:
            self.add_chunk(choices, chunk)
        return [choices[index] for index in sorted(choices)]

    def whole(self, answer):
        """A whole answer in the same form."""
        return [{"reasoning": got.message.reasoning or "", "content": got.message.content or "",
                 "calls": [[c.function.name, c.function.arguments] for c in got.message.tool_calls or []],
                 "finish": got.finish_reason} for got in answer.choices]

    def test_forced_calls_are_complete(self):
        # Random weights do not come to an end by themselves: these ids come up now and then.
        bias = {str(self.token_id(text)): 6 for text in ["]<]minimax[>[", "</mm:think>"]}
        named = {"type": "function", "function": {"name": "find_route"}}
        thoughts = 0
        for choice, mode, n in itertools.product(["required", named], ["enabled", "disabled", "adaptive"], [1, 2]):
            with self.subTest(choice=choice, mode=mode, n=n):
                fields = {"tools": [PING, TOOL], "tool_choice": choice, "n": n, "temperature": 1, "seed": 5,
                          "max_tokens": 3000, "logit_bias": bias,
                          "extra_body": {"chat_template_kwargs": {"thinking_mode": mode}}}
                answer = self.chat("Route?", **fields)
                self.assertEqual(len(answer.choices), n)
                for got in answer.choices:
                    self.assertEqual(got.finish_reason, "tool_calls")
                    self.assertIsNone(got.message.content)
                    thoughts += len(got.message.reasoning or "")
                    self.assertFalse(mode == "disabled" and got.message.reasoning)
                    names = {call.function.name for call in got.message.tool_calls}
                    self.assertLessEqual(names, {"find_route"} if choice == named else {"find_route", "ping"})
                    for call in got.message.tool_calls:
                        self.assertLessEqual(set(json.loads(call.function.arguments)), {"stops"})
                self.assertEqual(self.collect(self.chat("Route?", stream=True, **fields)), self.whole(answer))
        self.assertGreater(thoughts, 0)

    def test_a_forced_call_that_is_cut_off_is_not_made_whole(self):
        answer = self.chat("Route?", tools=[TOOL], tool_choice="required", max_tokens=30,
                           extra_body={"reasoning_effort": "none"}).choices[0]
        self.assertEqual(answer.finish_reason, "length")
        self.assertEqual(answer.message.tool_calls[0].function.name, "find_route")
        with self.assertRaises(ValueError):
            json.loads(answer.message.tool_calls[0].function.arguments)

    def test_tool_history_is_rendered(self):
        call = {"id": "c1", "type": "function", "function": {"name": "find_route", "arguments": '{"stops": ["A"]}'}}
        messages = user("Route?") + [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "A to B"},
        ]
        answer = self.client.chat.completions.create(model="m3", messages=messages, tools=[TOOL], max_tokens=4)
        self.assertGreater(answer.usage.prompt_tokens, 20)

    def test_logprobs(self):
        answer = self.chat(logprobs=True, top_logprobs=3, extra_body={"ignore_eos": True})
        content = answer.choices[0].logprobs.content
        self.assertEqual(len(content), answer.usage.completion_tokens)
        for token in content:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertLessEqual(token.logprob, 0)
            self.assertAlmostEqual(token.logprob, token.top_logprobs[0].logprob, places=5)  # greedy

    def test_n_choices_with_seed(self):
        fields = {"n": 3, "temperature": 1.5, "seed": 7, "extra_body": {"ignore_eos": True, "top_k": -1}}
        first, second = self.chat(**fields), self.chat(**fields)
        texts = [c.message.content for c in first.choices]
        self.assertEqual(texts, [c.message.content for c in second.choices])
        self.assertEqual([c.index for c in first.choices], [0, 1, 2])
        self.assertGreater(len(set(texts)), 1)

    def test_stop_string(self):
        fields = {"max_tokens": 40, "extra_body": {"ignore_eos": True}}
        text = self.chat("Stop", **fields).choices[0].message.content
        stop = text[5:8]
        cut = self.chat("Stop", stop=[stop], **fields).choices[0]
        self.assertEqual(cut.message.content, text[:text.index(stop)])
        self.assertEqual(cut.finish_reason, "stop")

    def test_completions_in_four_forms(self):
        for prompt in ["the fox", ["a", "b"], [1, 2, 3], [[1, 2], [3]]]:
            answer = self.client.completions.create(model="m3", prompt=prompt, max_tokens=2, temperature=0)
            expected = 2 if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
            self.assertEqual(len(answer.choices), expected)

    def test_completion_logprobs_and_echo(self):
        answer = self.client.completions.create(model="m3", prompt="the fox", max_tokens=3, logprobs=2, echo=True,
                                                temperature=0, extra_body={"ignore_eos": True})
        logprobs = answer.choices[0].logprobs
        self.assertTrue(answer.choices[0].text.startswith("the fox"))
        self.assertIsNone(logprobs.token_logprobs[0])
        self.assertEqual(len(logprobs.tokens), answer.usage.total_tokens)

    def test_echo_streams(self):
        fields = {"model": "m3", "prompt": ["the fox", "a b c"], "max_tokens": 5, "logprobs": 2, "echo": True, "n": 2,
                  "seed": 3, "extra_body": {"ignore_eos": True}}
        whole = self.client.completions.create(**fields)
        lists = ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
        texts = [""] * 4
        logprobs = [{name: [] for name in lists} for _ in range(4)]
        for chunk in self.client.completions.create(stream=True, **fields):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                for name in lists:
                    logprobs[choice.index][name] += getattr(choice.logprobs, name)
        for choice in whole.choices:
            self.assertTrue(choice.text.startswith("the fox" if choice.index < 2 else "a b c"))
            self.assertEqual(texts[choice.index], choice.text)
            for name in lists:
                self.assertEqual(logprobs[choice.index][name], getattr(choice.logprobs, name))

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=9)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="other", messages=user("x"))
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.base, api_key="wrong", max_retries=0).models.list()
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat("x " * 100000)
        self.assertIn("tokens", str(caught.exception))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(response_format={"type": "yaml"})
        self.assertIn("response_format", caught.exception.param)

    def test_chat_command(self):
        run = subprocess.run([SPARROW, "chat", "--url", self.server.url, "--api-key", KEY, "--max-tokens", "8",
                              "--temperature", "0", "--raw"], input="Hello\n/new\nHello\n", capture_output=True, text=True,
                             timeout=60)
        self.assertEqual(run.returncode, 0, run.stderr)
        answer = self.chat("Hello", max_tokens=8).choices[0].message.content
        self.assertEqual(run.stdout, (answer + "\n") * 2)
        wrong = subprocess.run([SPARROW, "chat", "--url", self.server.url, "--api-key", "no"], input="Hello\n",
                               capture_output=True, text=True, timeout=60)
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("--api-key", wrong.stderr)

    def test_64_streams_equal_their_sequential_answers(self):
        # Random weights do not come to an end by themselves: these ids come up now and then.
        bias = {str(self.token_id(text)): 6 for text in ["]<]minimax[>[", "</mm:think>"]}

        def fields(i):
            out = {"model": "m3", "messages": user(f"Question {i} " + "word " * (i % 7) * 9), "max_tokens": 120,
                   "temperature": 1, "seed": i, "n": 1 + i % 2, "logit_bias": bias, "extra_body": {}}
            if i % 4:
                out["extra_body"]["chat_template_kwargs"] = {"thinking_mode": "enabled"}
            if i % 3:
                out |= {"tools": [PING, TOOL], "tool_choice": "required"}
            return out

        alone = [self.whole(self.client.chat.completions.create(**fields(i))) for i in range(64)]
        kinds = [[choice[kind] for answer in alone for choice in answer if choice[kind]]
                 for kind in ("reasoning", "content", "calls")]
        self.assertTrue(all(kinds), "all kinds are compared")

        async def run():
            async with openai.AsyncOpenAI(base_url=self.base, api_key=KEY, max_retries=0, timeout=120) as client:

                async def one(i):
                    choices = {}
                    async for chunk in await client.chat.completions.create(stream=True, **fields(i)):
                        self.add_chunk(choices, chunk)
                    return [choices[index] for index in sorted(choices)]

                return await asyncio.gather(*[one(i) for i in range(64)])

        self.assertEqual(asyncio.run(run()), alone)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
