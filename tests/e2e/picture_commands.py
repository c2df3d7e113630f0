# SPDX-License-Identifier: Apache-2.0
"""Pictures from the command line, and what flags of `serve` do about them: the model and the numbers of the vision goldens.
Usage: picture_commands.py PATH_OF_SPARROW"""

import array
import base64
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import urllib.error

from served import Server

SPARROW = sys.argv[1]
GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden" / "vision"
MANIFEST = json.loads((GOLDEN / "manifest.json").read_text())
TOLERANCE = 1e-4  # of f32


class Tensors:
    """A safetensors file of f32 and i32."""

    def __init__(self, path):
        self.data = pathlib.Path(path).read_bytes()
        self.begin = 8 + struct.unpack("<Q", self.data[:8])[0]
        self.table = json.loads(self.data[8 : self.begin])

    def __getitem__(self, name):
        entry = self.table[name]
        begin, end = (self.begin + offset for offset in entry["data_offsets"])
        return array.array({"F32": "f", "I32": "i"}[entry["dtype"]], self.data[begin:end])

    def rows(self, name, which):
        columns = self.table[name]["shape"][-1]
        values = self[name]
        return [value for row in which for value in values[row * columns : (row + 1) * columns]]


def error_of(own, golden):
    assert len(own) == len(golden), (len(own), len(golden))
    return (sum((a - b) ** 2 for a, b in zip(own, golden)) / sum(b * b for b in golden)) ** 0.5


def chat_of(prompt):
    """As `trace --messages` reads it: media are files."""
    images, clips = iter(prompt["images"]), iter(prompt["clips"])

    def part_of(part):
        if part["type"] == "image":
            return {"type": "image", "image": MANIFEST["images"][next(images)]["file"]}
        if part["type"] == "video":
            clip = MANIFEST["clips"][next(clips)]
            said = {key: clip[key] for key in ("fps", "frames_indices", "total_num_frames") if clip[key]}
            return {"type": "video", "video": clip["frames"], **said}
        return part

    return [{**message, "content": [part_of(part) for part in message["content"]]
             if isinstance(message["content"], list) else message["content"]} for message in prompt["messages"]]


def run(*arguments):
    return subprocess.run([SPARROW, *map(str, arguments)], capture_output=True, text=True, timeout=600)


def data_url(path, kind="image/png"):
    return f"data:{kind};base64," + base64.b64encode(path.read_bytes()).decode()


def parts(*content, tokens=1, **more):
    return {"messages": [{"role": "user", "content": list(content)}], "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True, **more}


def refusal(server, body):
    try:
        server.post("/v1/chat/completions", body)
    except urllib.error.HTTPError as error:
        assert error.code == 400, error.code
        return json.load(error)["error"]
    raise AssertionError("it was taken")


class Commands(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)
        for name in ("images", "clips"):  # paths are relative to the chat's file
            (self.path / name).symlink_to(GOLDEN / name)

    def tearDown(self):
        self.folder.cleanup()

    def trace(self, messages, decode, positions="-1", model=GOLDEN / "model"):
        (self.path / "chat.json").write_text(json.dumps(messages))
        ran = run("trace", "--model", model, "--messages", self.path / "chat.json", "--positions=" + positions,
                  "--decode", decode, "--out", self.path / "out.safetensors")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return Tensors(self.path / "out.safetensors")

    def test_a_traced_chat_is_transformers(self):
        chats, images = Tensors(GOLDEN / "chat.golden.safetensors"), Tensors(GOLDEN / "images.golden.safetensors")
        features, clips = Tensors(GOLDEN / "features.golden.safetensors"), Tensors(GOLDEN / "clips.golden.safetensors")
        for name, prompt in MANIFEST["prompts"].items():
            greedy, positions = chats[name + ".greedy_ids"], chats[name + ".logit_positions"]
            own = self.trace(chat_of(prompt), len(greedy) - 1, ",".join(map(str, positions)))
            self.assertEqual(own["input_ids"], chats[name + ".input_ids"], name)
            self.assertEqual(own["greedy_ids"], greedy, name)
            self.assertLessEqual(error_of(own["logits"], chats[name + ".logits"]), TOLERANCE, name)
            kinds = [part["type"] for message in prompt["messages"] if isinstance(message["content"], list)
                     for part in message["content"] if part["type"] != "text"]
            media = {"image": iter(prompt["images"]), "video": iter(prompt["clips"])}
            for number, kind in enumerate(kinds):
                medium, own_name = next(media[kind]), f"media.{number}."
                pixels, tower = (images, features) if kind == "image" else (clips, clips)
                # Where both clamps of the size rule give another size, that one is ours.
                golden = medium + (".clamped" if medium + ".clamped.features" in tower.table else "")
                self.assertEqual(own[own_name + "grid_thw"], pixels[golden + ".grid_thw"], medium)
                index = tower[medium + ".feature_index"] if golden == medium and medium + ".feature_index" in tower.table \
                    else range(own.table[own_name + "features"]["shape"][0])
                self.assertLessEqual(error_of(own.rows(own_name + "features", index), tower[golden + ".features"]),
                                     TOLERANCE, medium)
                if golden != medium:
                    continue
                rows = pixels[medium + ".patch_index"]
                difference = max(abs(a - b) for a, b in
                                 zip(own.rows(own_name + "pixel_values", rows), pixels[medium + ".pixel_values"]))
                self.assertLessEqual(difference, 2e-6, medium)
                self.assertLessEqual(error_of(own.rows(own_name + "tower", rows), tower[medium + ".tower"]), TOLERANCE, medium)

    def test_generate_and_trace_say_what_a_server_says(self):
        tiny = self.path / "tiny"  # whose template is another
        self.assertEqual(run("make-model", "--preset", "tiny", "--dtype", "f32", "--out", tiny).returncode, 0)
        files = [GOLDEN / MANIFEST["images"][name]["file"] for name in ("small444", "alpha")]
        flags = [flag for file in files for flag in ("--image", file)]
        content = [*({"type": "image", "image": str(file)} for file in files), {"type": "text", "text": "Which?"}]
        images = [{"type": "image_url", "image_url": {"url": data_url(file)}} for file in files]
        for model in (GOLDEN / "model", tiny):
            ran = run("generate", "--model", model, "--prompt", "Which?", *flags, "--max-tokens", 8, "--temperature", 0,
                      "--ignore-eos")
            self.assertEqual(ran.returncode, 0, ran.stderr)
            traced = self.trace([{"role": "user", "content": content}], 7, model=model)
            with Server(SPARROW, "--media-timeout", "600", model=model) as server:
                answer = server.post("/v1/chat/completions", parts(*images, {"type": "text", "text": "Which?"}, tokens=8))
            self.assertEqual(answer["prompt_token_ids"], list(traced["input_ids"]))
            self.assertEqual(answer["choices"][0]["token_ids"], list(traced["greedy_ids"]))
            if model != tiny:  # whose text is no UTF-8 by itself
                self.assertEqual(ran.stdout, answer["choices"][0]["message"]["content"] + "\n")

    def test_what_is_no_picture_is_one_line(self):
        (self.path / "no.png").write_text("no picture")
        ran = run("generate", "--model", GOLDEN / "model", "--prompt", "x", "--image", self.path / "no.png")
        self.assertEqual(ran.returncode, 2, ran.stderr)
        self.assertIn("is not JPEG, PNG, WebP or GIF", ran.stderr.splitlines()[-1])


class Flags(unittest.TestCase):
    IMAGE = {"type": "image_url", "image_url": {"url": data_url(GOLDEN / "images" / "one.png")}}
    CLIP = {"type": "video", "video": [IMAGE["image_url"]["url"]] * 2}

    def test_limits_of_a_prompt(self):
        with Server(SPARROW, "--media-timeout", "600", "--limit-mm-per-prompt", '{"image": 2, "video": 0}',
                    model=GOLDEN / "model") as server:
            server.post("/v1/chat/completions", parts(self.IMAGE, self.IMAGE))
            self.assertIn("at most 2 images", refusal(server, parts(*[self.IMAGE] * 3))["message"])
            self.assertIn("at most 0 videos", refusal(server, parts(self.CLIP))["message"])

    def test_a_server_without_ffmpeg_takes_frames_and_says_what_it_lacks(self):
        path = os.environ["PATH"]
        os.environ["PATH"] = "/nowhere"
        try:
            with Server(SPARROW, "--media-timeout", "600", model=GOLDEN / "model") as server:
                server.post("/v1/chat/completions", parts(self.CLIP))
                file = "data:video/x-matroska;base64," + base64.b64encode(b"\x1a\x45\xdf\xa3 and so on").decode()
                error = refusal(server, parts({"type": "video_url", "video_url": {"url": file}}))
                self.assertIn("apt-get install ffmpeg", error["message"])
                self.assertEqual(error["param"], "messages[0].content[0].video_url.url")
        finally:
            os.environ["PATH"] = path

    def test_a_video_file_is_its_frames(self):
        if not shutil.which("ffmpeg"):
            self.skipTest("ffmpeg is not installed here")
        frames = sorted((GOLDEN / "clips" / "walk").iterdir())
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "walk.mkv"
            subprocess.run(["ffmpeg", "-nostdin", "-loglevel", "error", "-framerate", "2", "-i",
                            GOLDEN / "clips" / "walk" / "%03d.png", "-c:v", "png", file], check=True)
            video = {"type": "video_url", "video_url": {"url": data_url(file, "video/x-matroska")}}
        # Of six frames at two a second the rule takes one each second, and the last.
        seen = [0, 2, 4, 5]
        clip = {"type": "video", "video": [data_url(frames[i]) for i in seen], "fps": 2, "frames_indices": seen}
        every = {"type": "video", "video": [data_url(frame) for frame in frames], "fps": 2}
        with Server(SPARROW, "--media-timeout", "600", model=GOLDEN / "model") as server:
            def ask(part, **more):
                answer = server.post("/v1/chat/completions", parts(part, tokens=8, **more))
                return answer["prompt_token_ids"], answer["choices"][0]["token_ids"]

            self.assertEqual(ask(video), ask(clip))
            self.assertEqual(ask(video, mm_processor_kwargs={"fps": 2}), ask(every))
            self.assertNotEqual(ask(video), ask(every))
            for value in (0, 1e9):
                error = refusal(server, parts(video, mm_processor_kwargs={"fps": value}))
                self.assertEqual(error["param"], "mm_processor_kwargs.fps")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
