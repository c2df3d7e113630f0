# SPDX-License-Identifier: Apache-2.0
"""Answers of a form, asked for as clients do: openai's chats, completions and responses, anthropic's tools. Usage: forms_client.py
PATH_OF_SPARROW. Random weights answer, so whatever fits was forced to. Exits with 77 where a package is missing."""

import json
import re
import sys
import unittest

try:
    import anthropic
    import jsonschema
    import openai
    import pydantic
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from typing import Literal, Optional

from served import KEY, Server


class Person(pydantic.BaseModel):
    name: str
    age: int
    nick: Optional[str] = None


class Group(pydantic.BaseModel):
    people: list[Person]
    color: Literal["red", "blue"]
    score: float


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "home": {"type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}}, "required": ["zip"],
                 "additionalProperties": False},
    },
    "required": ["name", "age", "tags", "home"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
MODES = ["disabled", "enabled", "adaptive"]


class FormsClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(sys.argv[1]).__enter__()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key=KEY, max_retries=0, timeout=300)
        cls.anthropic = anthropic.Anthropic(base_url=cls.server.url, api_key=KEY, max_retries=0, timeout=300)
        closing = [cls.server.post("/tokenize", {"prompt": text})["tokens"][0] for text in '"}],']
        cls.bias = {**cls.server.ending_bias(), **{str(token): 6 for token in closing}}

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.anthropic.close()
        cls.server.__exit__()

    def extra(self, mode="disabled", **fields):
        return {"chat_template_kwargs": {"thinking_mode": mode}, "logit_bias": self.bias, **fields}

    def chat(self, mode="disabled", extra=None, **fields):
        return self.client.chat.completions.create(
            model="m3", messages=[{"role": "user", "content": "Hello"}], temperature=1, seed=fields.pop("seed", 1),
            max_tokens=fields.pop("max_tokens", 3000), extra_body=self.extra(mode, **(extra or {})), **fields)

    def fits(self, text, schema=SCHEMA):
        jsonschema.validate(json.loads(text), schema)

    def test_schemas(self):
        for mode in MODES:
            for strict in [True, False]:
                with self.subTest(mode=mode, strict=strict):
                    form = {**FORMAT, "json_schema": {**FORMAT["json_schema"], "strict": strict}}
                    answer = self.chat(mode, response_format=form, n=3)
                    for choice in answer.choices:
                        self.assertEqual(choice.finish_reason, "stop")
                        self.fits(choice.message.content)
                        if mode == "disabled":
                            self.assertFalse(choice.message.reasoning_content)
                    texts = [""] * 3
                    for chunk in self.chat(mode, response_format=form, n=3, stream=True):
                        for choice in chunk.choices:
                            texts[choice.index] += choice.delta.content or ""
                    self.assertEqual(texts, [choice.message.content for choice in answer.choices])

    def test_forms_under_all_their_names(self):
        forms = {"json": (SCHEMA, None), "regex": ("[a-z]{3}-[0-9]{2}",) * 2, "choice": (["yes", "no"], "yes|no"),
                 "grammar": ('root ::= "a" [0-9]{2} "b"', "a[0-9]{2}b")}
        for name, (form, pattern) in forms.items():
            for extra in [{"structured_outputs": {name: form}}, {f"guided_{name}": form}]:
                with self.subTest(extra=extra):
                    chat = self.chat(extra=extra).choices[0]
                    text = self.client.completions.create(model="m3", prompt="x", max_tokens=500, temperature=1, seed=2,
                                                          extra_body={"logit_bias": self.bias, **extra}).choices[0]
                    for finish, said in [(chat.finish_reason, chat.message.content), (text.finish_reason, text.text)]:
                        self.assertEqual(finish, "stop")
                        self.fits(said) if pattern is None else self.assertRegex(said, re.compile(f"^(?:{pattern})$"))

    def test_any_object(self):
        choice = self.chat(response_format={"type": "json_object"}).choices[0]
        self.assertEqual(choice.finish_reason, "stop")
        self.assertIsInstance(json.loads(choice.message.content), dict)

    def test_a_cut_says_so(self):
        choice = self.chat(response_format=FORMAT, max_tokens=5).choices[0]
        self.assertEqual(choice.finish_reason, "length")
        response = self.client.responses.create(
            model="m3", input="Hello", max_output_tokens=16, extra_body=self.extra(),
            text={"format": {"type": "json_schema", "name": "person", "schema": SCHEMA}})
        self.assertEqual((response.status, response.incomplete_details.reason), ("incomplete", "max_output_tokens"))
        with self.assertRaises(openai.LengthFinishReasonError):
            self.client.chat.completions.parse(model="m3", messages=[{"role": "user", "content": "Hello"}], max_tokens=5,
                                               response_format=Group)

    def test_classes(self):
        fields = {"model": "m3", "temperature": 1, "extra_body": self.extra(seed=2)}
        messages = [{"role": "user", "content": "Hello"}]
        parsed = self.client.chat.completions.parse(messages=messages, response_format=Group, max_tokens=3000, **fields)
        self.assertIsInstance(parsed.choices[0].message.parsed, Group)
        with self.client.chat.completions.stream(messages=messages, response_format=Group, max_tokens=3000, **fields) as stream:
            for _ in stream:
                pass
            self.assertEqual(stream.get_final_completion().choices[0].message.parsed, parsed.choices[0].message.parsed)
        response = self.client.responses.parse(input="Hello", text_format=Group, max_output_tokens=3000, **fields)
        self.assertIsInstance(response.output_parsed, Group)
        with self.client.responses.stream(input="Hello", text_format=Group, max_output_tokens=3000, **fields) as stream:
            for _ in stream:
                pass
            self.assertEqual(stream.get_final_response().output_parsed, response.output_parsed)
        called = self.client.chat.completions.parse(
            messages=messages, tools=[openai.pydantic_function_tool(Group)], tool_choice="required", max_tokens=3000,
            parallel_tool_calls=False, **fields)
        self.assertIsInstance(called.choices[0].message.tool_calls[0].function.parsed_arguments, Group)

    def test_calls_fit_their_schemas(self):
        named = {"type": "function", "function": {"name": "find"}}
        for mode in MODES:
            for choice in ["required", named, "auto"]:
                for strict in [True, False]:
                    with self.subTest(mode=mode, choice=choice, strict=strict):
                        tool = {"type": "function", "function": {"name": "find", "parameters": SCHEMA, "strict": strict}}
                        answer = self.chat(mode, tools=[tool], tool_choice=choice).choices[0]
                        calls = answer.message.tool_calls or []
                        if choice != "auto":
                            self.assertTrue(calls)
                            self.assertEqual(answer.finish_reason, "tool_calls")
                        for call in calls if strict or choice != "auto" else []:
                            self.assertEqual(call.function.name, "find")
                            self.fits(call.function.arguments)

    def test_anthropic(self):
        tool = {"name": "find", "input_schema": SCHEMA}
        for choice in [{"type": "any"}, {"type": "tool", "name": "find"}, {"type": "any", "disable_parallel_tool_use": True}]:
            for strict in [{}, {"strict": True}]:
                with self.subTest(choice=choice, strict=strict):
                    fields = {"model": "m3", "max_tokens": 3000, "messages": [{"role": "user", "content": "Hello"}],
                              "tools": [{**tool, **strict}], "tool_choice": choice, "extra_body": self.extra(seed=1, temperature=1)}
                    message = self.anthropic.messages.create(**fields)
                    self.assertEqual(message.stop_reason, "tool_use")
                    uses = [block for block in message.content if block.type == "tool_use"]
                    for use in uses:
                        jsonschema.validate(use.input, SCHEMA)
                    with self.anthropic.messages.stream(**fields) as stream:
                        again = stream.get_final_message()
                    self.assertEqual([block.input for block in again.content if block.type == "tool_use"],
                                     [use.input for use in uses])
        told = self.anthropic.messages.create(
            model="m3", max_tokens=3000, messages=[{"role": "user", "content": "Hello"}],
            extra_body={**self.extra(temperature=1), "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}})
        self.fits(told.content[0].text)

    def test_what_cannot_be_held_to_is_named(self):
        bad = {"type": "object", "properties": {"x": {"not": {"type": "string"}}}}
        cases = [lambda: self.chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": bad}}),
                 lambda: self.chat(extra={"guided_json": bad}),
                 lambda: self.chat(tools=[{"type": "function", "function": {"name": "f", "parameters": bad, "strict": True}}]),
                 lambda: self.client.responses.create(model="m3", input="x", text={
                     "format": {"type": "json_schema", "name": "x", "schema": bad}})]
        for case in cases:
            with self.assertRaises(openai.BadRequestError) as caught:
                case()
            self.assertIn("not at #/properties/x", str(caught.exception))
            self.assertTrue(caught.exception.param)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
