# SPDX-License-Identifier: Apache-2.0
"""Agent frameworks on their defaults: only the address is ours. Usage: frameworks.py PATH_OF_SPARROW

Each runs an agent that calls a tool, gets its result and answers, and asks for an answer of a class. What is not installed
is skipped; exits with 77 where none of them is.
"""

import importlib.util
import os
import sys
import unittest

from served import KEY, Server

FRAMEWORKS = ["agents", "pydantic_ai", "langchain_openai", "langchain_anthropic", "litellm"]
if not any(importlib.util.find_spec(name) for name in FRAMEWORKS):
    print("skipped: none of " + ", ".join(FRAMEWORKS) + " is installed here")
    sys.exit(77)

from typing import Literal

import pydantic


class Route(pydantic.BaseModel):
    """Short: random weights write it."""

    name: str = pydantic.Field(max_length=12)
    stops: list[Literal["A", "B", "C"]] = pydantic.Field(max_length=3)
    minutes: int
    fast: bool


def needs(*names):
    missing = [name for name in names if not importlib.util.find_spec(name)]
    return unittest.skipIf(missing, f"{missing} is not installed here")


class Frameworks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(sys.argv[1]).__enter__()
        cls.url = cls.server.url + "/v1"
        # Random weights seldom come to an end by themselves.
        cls.extra = {"logit_bias": cls.server.ending_bias(), "seed": 3, "chat_template_kwargs": {"thinking_mode": "disabled"}}
        os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched from the network

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def setUp(self):
        self.calls = []

    def find_route(self, stops: list[Literal["A", "B"]]) -> str:
        """Finds a route."""
        self.calls.append(stops)
        return "A to B"

    @needs("agents")
    def test_openai_agents(self):
        import agents
        import openai

        client = openai.AsyncOpenAI(base_url=self.url, api_key=KEY, max_retries=0, timeout=300)
        agents.set_default_openai_client(client, use_for_tracing=False)
        agents.set_tracing_disabled(True)
        tool = agents.function_tool(self.find_route)
        for model in ["m3", agents.OpenAIChatCompletionsModel("m3", client)]:
            with self.subTest(model=type(model).__name__):
                # An answer that is cut is an error to it, and its tools are strict: they end by themselves.
                end = self.server.post("/tokenize", {"prompt": "[e~["})["tokens"][0]
                settings = agents.ModelSettings(tool_choice="required", max_tokens=600, temperature=1,
                                                extra_body={**self.extra, "logit_bias": {str(end): 6}})
                agent = agents.Agent(name="router", instructions="Find routes.", tools=[tool], model=model,
                                     model_settings=settings)
                self.calls = []
                result = agents.Runner.run_sync(agent, "Which route?", max_turns=6)
                self.assertTrue(self.calls)
                self.assertTrue(result.final_output)
                typed = agents.Agent(name="writer", model=model, output_type=Route,
                                     model_settings=agents.ModelSettings(max_tokens=600, extra_body=self.extra))
                history = result.to_input_list() + [{"role": "user", "content": "As JSON."}]
                self.assertIsInstance(agents.Runner.run_sync(typed, history).final_output, Route)

    @needs("pydantic_ai")
    def test_pydantic_ai(self):
        from pydantic_ai import Agent, NativeOutput
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
        from pydantic_ai.providers.anthropic import AnthropicProvider
        from pydantic_ai.providers.openai import OpenAIProvider

        openai = OpenAIProvider(base_url=self.url, api_key=KEY)
        anthropic = AnthropicProvider(base_url=self.server.url, api_key=KEY)
        settings = {"max_tokens": 600, "temperature": 1, "extra_body": self.extra}
        for model in [OpenAIResponsesModel("m3", provider=openai), OpenAIChatModel("m3", provider=openai),
                      AnthropicModel("m3", provider=anthropic)]:
            with self.subTest(model=type(model).__name__):
                # With an output type every turn has to call: the tool, or what hands the output over.
                self.calls = []
                agent = Agent(model, output_type=Route, instructions="Be brief.", tools=[self.find_route],
                              model_settings=settings, retries=5)
                result = agent.run_sync("Hello")
                self.assertIsInstance(result.output, Route)
                again = agent.run_sync("And then?", message_history=result.all_messages())
                self.assertGreater(again.usage.output_tokens, 0)
                if not isinstance(model, AnthropicModel):
                    native = Agent(model, output_type=NativeOutput(Route), model_settings=settings)
                    self.assertIsInstance(native.run_sync("Hello").output, Route)

    @needs("langchain_openai")
    def test_langchain_openai(self):
        from langchain_openai import ChatOpenAI

        for responses in [False, True]:
            with self.subTest(responses=responses):
                self.langchain(ChatOpenAI(model="m3", base_url=self.url, api_key=KEY, temperature=1, max_tokens=2000,
                                          max_retries=0, extra_body=self.extra, use_responses_api=responses))

    @needs("langchain_anthropic")
    def test_langchain_anthropic(self):
        from langchain_anthropic import ChatAnthropic

        self.langchain(ChatAnthropic(model_name="m3", base_url=self.server.url, api_key=KEY, max_tokens=2000, max_retries=0,
                                     model_kwargs={"extra_body": {"temperature": 1, **self.extra}}))

    def langchain(self, model):
        from langchain_core.messages import HumanMessage, ToolMessage

        messages = [HumanMessage("Which route?")]
        for _ in range(2):
            answer = model.bind_tools([self.find_route], tool_choice="any").invoke(messages)
            self.assertTrue(answer.tool_calls)
            for call in answer.tool_calls:
                self.assertLessEqual(set(call["args"]["stops"]), {"A", "B"})
            messages += [answer, *[ToolMessage("A to B", tool_call_id=call["id"]) for call in answer.tool_calls]]
        chunks = [chunk for chunk, _ in zip(model.stream(messages), range(40))]
        self.assertTrue(chunks)
        self.assertIsInstance(model.with_structured_output(Route).invoke("A route?"), Route)

    @needs("litellm")
    def test_litellm(self):
        import litellm

        litellm.suppress_debug_info = True
        messages = [{"role": "user", "content": "Hello"}]
        for model, base in [("openai/m3", self.url), ("anthropic/m3", self.server.url)]:
            with self.subTest(model=model):
                fields = {"model": model, "api_base": base, "api_key": KEY, "messages": messages, "max_tokens": 8,
                          "ignore_eos": True}
                answer = litellm.completion(**fields)
                self.assertEqual(answer.choices[0].finish_reason, "length")
                self.assertGreater(answer.usage.prompt_tokens, 0)
                # Random weights may begin with a thought.
                deltas = [chunk.choices[0].delta for chunk in litellm.completion(stream=True, **fields)]
                self.assertTrue(any(delta.content or getattr(delta, "reasoning_content", None) for delta in deltas))
        response = litellm.responses(model="openai/m3", api_base=self.url, api_key=KEY, input="Hello", max_output_tokens=8,
                                     extra_body={"ignore_eos": True})
        self.assertEqual(response.status, "incomplete")
        typed = litellm.completion(model="openai/m3", api_base=self.url, api_key=KEY, messages=messages, max_tokens=600,
                                   temperature=1, response_format=Route, extra_body=self.extra)
        Route.model_validate_json(typed.choices[0].message.content)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2, warnings="ignore")
