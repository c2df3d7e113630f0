# SPDX-License-Identifier: Apache-2.0
"""The official openai and anthropic clients send pictures to the model of the vision goldens: its answers are those of
transformers, whatever the API. Usage: pictures.py PATH_OF_SPARROW. Exits with 77 without the clients."""

import base64
import json
import os
import pathlib
import signal
import struct
import sys
import threading
import unittest
import urllib.error
import zlib

try:
    import anthropic
    import openai
except ImportError:
    print("skipped: the openai or the anthropic package is not installed here")
    sys.exit(77)

from served import KEY, Server

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden" / "vision"
MANIFEST = json.loads((GOLDEN / "manifest.json").read_text())


def golden(name):
    """An i32 tensor of the chats' file."""
    data = (GOLDEN / "chat.golden.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8 : 8 + size])[name]
    begin, end = (8 + size + offset for offset in entry["data_offsets"])
    return [value for (value,) in struct.iter_unpack("<i", data[begin:end])]


def in_base64(path):
    return base64.b64encode(path.read_bytes()).decode()


def data_url(path):
    return f"data:image/{path.suffix[1:]};base64,{in_base64(path)}"


def image_file(name):
    return GOLDEN / MANIFEST["images"][name]["file"]


def image_part(name):
    return {"type": "image_url", "image_url": {"url": data_url(image_file(name))}}


def clip_part(name):
    clip = MANIFEST["clips"][name]
    frames = sorted((GOLDEN / "clips" / name).iterdir())
    part = {"type": "video", "video": [data_url(frame) for frame in frames]}
    if clip["fps"]:
        part |= {"fps": clip["fps"], "frames_indices": clip["frames_indices"],
                 "total_num_frames": clip["total_num_frames"]}
    return part


def messages_of(prompt):
    """A prompt of the goldens with its media in their places."""
    media = {"image": iter(prompt["images"]), "video": iter(prompt["clips"])}
    make = {"image": image_part, "video": clip_part}
    messages = json.loads(json.dumps(prompt["messages"]))
    for message in messages:
        if isinstance(message["content"], list):
            message["content"] = [make[part["type"]](next(media[part["type"]])) if part["type"] in make else part
                                  for part in message["content"]]
    return messages


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width, height, data, tail=True):
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    out = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data)
    return out + (chunk(b"IEND", b"") if tail else b"")


def url_of(data):
    return "data:image/png;base64," + base64.b64encode(data).decode()


class Pictures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # A busy machine may need longer than a user would wait.
        cls.server = Server(sys.argv[1], "--media-timeout", "600", model=GOLDEN / "model").__enter__()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key=KEY, max_retries=0, timeout=300)
        cls.claude = anthropic.Anthropic(base_url=cls.server.url, api_key=KEY, max_retries=0, timeout=300)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.claude.close()
        cls.server.__exit__()

    def chat(self, messages, **extra):
        body = {"ignore_eos": True, "return_token_ids": True, **extra}
        return self.client.chat.completions.create(model="m3", messages=messages, temperature=0,
                                                   max_tokens=extra.pop("max_tokens", 8), extra_body=body)

    def refusal(self, url, **more):
        try:
            self.chat([{"role": "user", "content": [{"type": "text", "text": "x"},
                                                    {"type": "image_url", "image_url": {"url": url, **more}}]}])
        except openai.BadRequestError as error:
            return error.body["param"], error.body["message"]
        self.fail("it was taken")

    def test_chats_of_the_goldens(self):
        for name in ("one", "three", "clip", "plain"):
            prompt = MANIFEST["prompts"][name]
            wanted = golden(name + ".greedy_ids")
            answer = self.chat(messages_of(prompt), max_tokens=len(wanted))
            self.assertEqual(answer.prompt_token_ids, golden(name + ".input_ids"), name)
            self.assertEqual(answer.choices[0].token_ids, wanted, name)
            self.assertEqual(answer.usage.prompt_tokens, prompt["length"], name)
            details = answer.usage.prompt_tokens_details.model_dump()
            self.assertEqual(details.get("image_tokens") or 0, prompt.get("media_tokens", 0), name)

    def test_a_picture_again_is_found_and_another_is_not(self):
        def ask(name):
            parts = [{"type": "text", "text": "z" * 300}, image_part(name), {"type": "text", "text": "?" * 200}]
            return self.chat([{"role": "user", "content": parts}])

        first, again = ask("exif1"), ask("exif1")
        other = ask("exif2")  # of the same size
        self.assertEqual(first.choices[0].token_ids, again.choices[0].token_ids)
        self.assertGreaterEqual(again.usage.prompt_tokens_details.cached_tokens, 384)
        self.assertLessEqual(other.usage.prompt_tokens_details.cached_tokens, 384)
        self.assertEqual(other.usage.prompt_tokens, first.usage.prompt_tokens)

    def test_responses_and_messages_say_what_the_chat_says(self):
        prompt = MANIFEST["prompts"]["one"]
        chat = self.chat(messages_of(prompt), max_tokens=12)
        text = [part["text"] for part in prompt["messages"][0]["content"] if part["type"] == "text"]
        file = image_file(prompt["images"][0])
        content = [{"type": "input_text", "text": text[0]}, {"type": "input_image", "image_url": data_url(file)},
                   {"type": "input_text", "text": text[1]}]
        response = self.client.responses.create(
            model="m3", input=[{"role": "user", "content": content}], temperature=0, max_output_tokens=12,
            extra_body={"ignore_eos": True})
        self.assertEqual(response.usage.input_tokens, prompt["length"])
        self.assertEqual(response.output_text, chat.choices[0].message.content)
        counted = self.client.responses.input_tokens.count(model="m3", input=[{"role": "user", "content": content}])
        self.assertEqual(counted.input_tokens, prompt["length"])

        source = {"type": "base64", "media_type": "image/" + file.suffix[1:], "data": in_base64(file)}
        blocks = [{"type": "text", "text": text[0]}, {"type": "image", "source": source},
                  {"type": "text", "text": text[1]}]
        message = self.claude.messages.create(model="m3", max_tokens=12, messages=[{"role": "user", "content": blocks}],
                                              extra_body={"ignore_eos": True, "temperature": 0})
        self.assertEqual(message.content[0].text, chat.choices[0].message.content)
        tokens = self.claude.messages.count_tokens(model="m3", messages=[{"role": "user", "content": blocks}])
        self.assertEqual(tokens.input_tokens, prompt["length"])

    def test_a_response_goes_on_with_its_picture(self):
        content = [{"type": "input_image", "image_url": data_url(image_file("small444"))},
                   {"type": "input_text", "text": "What is it?"}]
        ask = dict(model="m3", temperature=0, max_output_tokens=6, extra_body={"ignore_eos": True})
        first = self.client.responses.create(input=[{"role": "user", "content": content}], **ask)
        second = self.client.responses.create(input="Sure?", previous_response_id=first.id, **ask)
        self.assertGreater(second.usage.input_tokens, first.usage.input_tokens + first.usage.output_tokens)

    def test_a_tool_shows_a_picture(self):
        call = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
        source = {"type": "base64", "media_type": "image/png", "data": in_base64(image_file("alpha"))}
        result = {"type": "tool_result", "tool_use_id": "a",
                  "content": [{"type": "text", "text": "here"}, {"type": "image", "source": source}]}
        ask = [{"role": "user", "content": "Look"}, {"role": "assistant", "content": [call]},
               {"role": "user", "content": [result]}]
        with_picture = self.claude.messages.count_tokens(model="m3", messages=ask).input_tokens
        result["content"].pop()
        without = self.claude.messages.count_tokens(model="m3", messages=ask).input_tokens
        self.assertEqual(with_picture - without, MANIFEST["images"]["alpha"]["tokens"] + 2)

    def test_streams_say_what_whole_answers_say(self):
        file, text = image_file("small444"), "What is it?"
        ask = dict(model="m3", temperature=0, max_tokens=12, extra_body={"ignore_eos": True},
                   messages=[{"role": "user", "content": [image_part("small444"), {"type": "text", "text": text}]}])
        whole = self.client.chat.completions.create(**ask)
        chunks = list(self.client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(piece.choices[0].delta.content or "" for piece in chunks if piece.choices),
                         whole.choices[0].message.content)
        usage = chunks[-1].usage
        self.assertEqual(usage.prompt_tokens, whole.usage.prompt_tokens)
        self.assertEqual(usage.prompt_tokens_details.model_dump()["image_tokens"], MANIFEST["images"]["small444"]["tokens"])

        content = [{"type": "input_image", "image_url": data_url(file), "detail": "auto"}, {"type": "input_text", "text": text}]
        ask = dict(model="m3", temperature=0, max_output_tokens=12, extra_body={"ignore_eos": True},
                   input=[{"role": "user", "content": content}])
        events = list(self.client.responses.create(**ask, stream=True))
        self.assertEqual("".join(event.delta for event in events if event.type == "response.output_text.delta"),
                         whole.choices[0].message.content)
        self.assertEqual(events[-1].response.usage.input_tokens, whole.usage.prompt_tokens)
        self.assertEqual(events[-1].response.usage.input_tokens_details.model_dump()["image_tokens"],
                         MANIFEST["images"]["small444"]["tokens"])

        source = {"type": "base64", "media_type": "image/jpeg", "data": in_base64(file)}
        blocks = [{"type": "image", "source": source}, {"type": "text", "text": text}]
        with self.claude.messages.stream(model="m3", max_tokens=12, messages=[{"role": "user", "content": blocks}],
                                         extra_body={"ignore_eos": True, "temperature": 0}) as stream:
            self.assertEqual("".join(stream.text_stream), whole.choices[0].message.content)
            usage = stream.get_final_message().usage
        self.assertEqual(usage.input_tokens + (usage.cache_read_input_tokens or 0), whole.usage.prompt_tokens)

    def test_every_role_may_show_a_picture(self):
        """Where the template has a place for it, as the one of the goldens has in every message."""
        call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}

        def tokens(role, *picture):
            content = [{"type": "text", "text": "here"}, *picture]
            messages = [{"role": "user", "content": "Look"}, {"role": "assistant", "content": "", "tool_calls": [call]},
                        {"role": "tool", "tool_call_id": "a", "content": content if role == "tool" else "gone"}]
            if role != "tool":
                messages.insert(0, {"role": role, "content": content})
            return self.chat(messages, max_tokens=1).usage.prompt_tokens

        for role in ("system", "developer", "user", "tool"):
            self.assertEqual(tokens(role, image_part("alpha")) - tokens(role), MANIFEST["images"]["alpha"]["tokens"] + 2, role)
        output = [{"type": "input_text", "text": "here"}, {"type": "input_image", "image_url": data_url(image_file("alpha"))}]
        given = [{"role": "user", "content": "Look"},
                 {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
                 {"type": "function_call_output", "call_id": "a", "output": output}]
        response = self.client.responses.create(model="m3", input=given, max_output_tokens=1)
        self.assertEqual(response.usage.input_tokens_details.model_dump()["image_tokens"], MANIFEST["images"]["alpha"]["tokens"])

    def test_tokenize_and_options(self):
        def count(**options):
            part = {"type": "image_url", "image_url": {"url": data_url(image_file("photo")), **options}}
            return self.server.post("/tokenize", {"messages": [{"role": "user", "content": [part]}]})["count"]

        usual = count()
        self.assertLess(count(max_pixels=50_000), usual)
        self.assertLess(count(max_long_side_pixel=112), usual)
        self.assertGreater(count(max_pixels=12_845_056, min_pixels=1_000_000), usual)
        field, message = self.refusal(data_url(image_file("photo")), max_pixels=99_999_999)
        self.assertEqual(field, "messages[0].content[1].image_url.max_pixels")
        self.assertIn("12845056", message)

    def test_what_is_no_picture_is_refused_by_its_field(self):
        cut = image_file("photo").read_bytes()
        pixels = zlib.compress(b"\0" * (3 * 64 + 1) * 64)
        cases = {
            "bomb": url_of(png(50_000, 50_000, zlib.compress(b"\0" * 100_000))),
            "truncated": url_of(cut[: len(cut) // 2]),
            "lying header": url_of(png(4_000, 4_000, pixels)),
            "no end": url_of(png(64, 64, pixels[:20], tail=False)),
            "text": url_of(b"<html>" + b"x" * 5000),
            "nothing": url_of(b""),
            "two at once": url_of(b"GIF89a" + image_file("alpha").read_bytes()),
            "no base64": "data:image/png;base64,%%%",
            "no URL": "picture.png",
            "http": "http://127.0.0.1/a.png",
            "file": "file:///etc/passwd",
            "too long": data_url(GOLDEN / MANIFEST["refused"]["ratio"]["file"]),
        }
        for name, url in cases.items():
            field, message = self.refusal(url)
            self.assertEqual(field, "messages[0].content[1].image_url.url", name)
            self.assertTrue(message.startswith(field), (name, message))
        parts = [image_part("one")] * 9
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat([{"role": "user", "content": parts}])
        self.assertIn("at most 8", str(caught.exception))
        with self.assertRaises(anthropic.BadRequestError) as refused:
            source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
            self.claude.messages.create(model="m3", max_tokens=1, messages=[
                {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image", "source": source}]}])
        self.assertIn("messages[0].content[1].source.data", str(refused.exception))

    def test_streams_go_on_while_workers_die(self):
        def stream():
            chunks = self.client.chat.completions.create(
                model="m3", messages=[{"role": "user", "content": "Tell me"}], temperature=0, max_tokens=150, stream=True,
                extra_body={"ignore_eos": True})
            return "".join(piece.choices[0].delta.content or "" for piece in chunks if piece.choices)

        alone, done, heard = stream(), threading.Event(), []
        listener = threading.Thread(target=lambda: heard.append(stream()))
        killer = threading.Thread(target=self.kill_workers, args=(done,))
        listener.start(), killer.start()
        refused = 0
        for _ in range(8):
            try:
                self.chat([{"role": "user", "content": [image_part("big")]}], max_tokens=1)
            except openai.BadRequestError:
                refused += 1
        done.set()
        listener.join(), killer.join()
        self.assertEqual(heard, [alone])
        print(f"{refused} of 8 pictures lost their worker")
        self.chat([{"role": "user", "content": [image_part("small444")]}], max_tokens=1)  # the next one has a new one

    def kill_workers(self, done):
        while not done.wait(0.02):
            for folder in pathlib.Path("/proc").glob("[0-9]*"):
                try:
                    if b"media-worker" in (folder / "cmdline").read_bytes() and self.is_of_server(int(folder.name)):
                        os.kill(int(folder.name), signal.SIGKILL)
                except (OSError, ValueError, IndexError):
                    continue

    def is_of_server(self, pid):
        """Whether it was started by the server, or by one of its ranks."""
        while pid > 1 and pid != self.server.process.pid:
            pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        return pid == self.server.process.pid


class Ranks(unittest.TestCase):
    def test_two_ranks_say_what_one_says_to_the_bit(self):
        body = {"messages": messages_of(MANIFEST["prompts"]["three"]), "temperature": 0, "max_tokens": 12,
                "ignore_eos": True, "logprobs": True, "top_logprobs": 5}
        answers = []
        for flags in ((), ("--tensor-parallel-size", "2", "--threads", "1", "--device", "cpu")):
            with Server(sys.argv[1], "--media-timeout", "600", *flags, model=GOLDEN / "model") as server:
                answers.append(server.post("/v1/chat/completions", body)["choices"])
        self.assertEqual(*answers)


class TextAlone(unittest.TestCase):
    def test_a_server_without_vision_says_so(self):
        with Server(sys.argv[1], "--language-model-only", model=GOLDEN / "model") as server:
            with self.assertRaises(urllib.error.HTTPError) as caught:
                server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": [image_part("one")]}]})
            error = json.load(caught.exception)["error"]
            self.assertEqual(caught.exception.code, 400)
            self.assertEqual(error["param"], "messages[0].content[0].type")
            self.assertIn("--language-model-only", error["message"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
