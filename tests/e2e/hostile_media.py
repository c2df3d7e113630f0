# SPDX-License-Identifier: Apache-2.0
"""Pictures and videos that mean harm, beside streams that mean none. Usage: hostile_media.py PATH_OF_SPARROW [SECONDS]

Each is refused, or harmless, within SECONDS of processor time (the promise is one; a sanitizer or a busy machine gets more
here). Server and workers stay within their memory, and the streams say what they say when nobody else is there.
"""

import base64
import contextlib
import http.client
import json
import os
import pathlib
import signal
import struct
import sys
import threading
import urllib.parse
import zlib

from served import KEY, Server

SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 60
MEDIA_MEMORY, WORKERS, STREAMS = 256 << 20, 3, 4
IMAGES = pathlib.Path(__file__).resolve().parent.parent / "golden" / "vision" / "images"
HEADERS = {"Authorization": "Bearer " + KEY, "Content-Type": "application/json"}
TICKS = os.sysconf("SC_CLK_TCK")


def read(name):
    return (IMAGES / name).read_bytes()


def half(name):
    return read(name)[: len(read(name)) // 2]


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width, height, data, more=b""):
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + more + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def zeros(count):
    """So many zero bytes, compressed: a thousandth of them."""
    packer = zlib.compressobj(9)
    parts = [packer.compress(bytes(1 << 20)) for _ in range(count >> 20)]
    return b"".join([*parts, packer.flush()])


def jpeg_of(width, height):
    """A true JPEG whose frame header has another size."""
    data = bytearray(read("small444.jpg"))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def webp_of(width, height):
    data = bytearray(read("webplossless.webp"))
    at = data.index(b"VP8L") + 9
    bits = (width - 1) | (height - 1) << 14 | int.from_bytes(data[at : at + 4], "little") >> 28 << 28
    data[at : at + 4] = bits.to_bytes(4, "little")
    return bytes(data)


def gif(width, height, frames, endless=False, data=b"\x02\x02\x44\x01\x00"):
    loop = b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00" if endless else b""
    head = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff" + loop
    frame = b"\x21\xf9\x04\x00\x01\x00\x00\x00\x2c" + struct.pack("<HHHHB", 0, 0, width, height, 0) + data
    return head + frame * frames + (b"" if endless else b"\x3b")


def exif(loop):
    """A JPEG whose EXIF directory points at itself, or out of the file."""
    entry = struct.pack("<HHII", 0x8769, 4, 1, 8 if loop else 0xFFFFFFF0)
    body = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 65535) + entry + struct.pack("<I", 8)
    return b"\xff\xd8\xff\xe1" + struct.pack(">H", len(body) + 2) + body + read("small444.jpg")[2:]


def cases():
    """Name: (file, whether it must be refused)."""
    few = zlib.compress(b"\0" * (3 * 64 + 1) * 64)
    true = png(64, 64, few)
    yield "PNG of 50,000 x 50,000", (png(50_000, 50_000, zeros(1 << 20)), True)
    yield "PNG of 2^31 x 1", (png((1 << 31) - 1, 1, few), True)
    yield "GIF of 65,535 x 65,535", (gif(65535, 65535, 1), True)
    yield "JPEG of 65,500 x 65,500", (jpeg_of(65500, 65500), True)
    yield "WebP of 16,384 x 16,384", (webp_of(16384, 16384), True)
    yield "PNG that has less than it says", (png(4000, 4000, few), True)
    yield "WebP that has less than it says", (webp_of(2000, 2000), True)
    yield "JPEG that has less than it says", (jpeg_of(2000, 2000), False)
    yield "PNG that has more than it says", (png(64, 64, zeros(256 << 20)), False)
    yield "a profile of 256 MB", (png(64, 64, few, chunk(b"iCCP", b"p\0\0" + zeros(256 << 20))), False)
    yield "a text of 256 MB", (png(64, 64, few, chunk(b"zTXt", b"t\0\0" + zeros(256 << 20))), False)
    yield "100,000 chunks", (png(64, 64, few, chunk(b"tEXt", b"a\0b") * 100_000), False)
    for name in ("small444.jpg", "photo.png", "webp.webp", "gif.gif", "progressive.jpg", "interlaced.png"):
        yield "half of " + name, (half(name), name.endswith(("png", "webp")))
    yield "GIF of 10,000 frames", (gif(1, 1, 10_000), False)
    yield "GIF without an end", (gif(64, 64, 1, endless=True, data=b"\x02" + b"\xff" + b"\x24" * 255), False)
    yield "GIF of clear codes", (gif(64, 64, 1, True, b"\x02" + (b"\xff" + b"\x24\x49\x92" * 85) * 20_000), False)
    yield "GIF and PNG", (b"GIF89a" + true, True)
    yield "PNG and ZIP", (true + b"PK\x03\x04" + bytes(1000), False)
    yield "JPEG and HTML", (read("small444.jpg") + b"<script>alert(1)</script>", False)
    yield "PDF and JPEG", (b"%PDF-1.4\n" + read("small444.jpg"), True)
    yield "SVG", (b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>", True)
    yield "EXIF that points at itself", (exif(True), False)
    yield "EXIF that points out of the file", (exif(False), False)
    yield "nothing", (b"", True)


class Client:
    def __init__(self, server):
        self.url = urllib.parse.urlsplit(server.url)

    def ask(self, content, tokens=1, **more):
        link = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=600)
        with contextlib.closing(link):
            body = {"messages": [{"role": "user", "content": content}], "max_tokens": tokens, "temperature": 0,
                    "ignore_eos": True, **more}
            link.request("POST", "/v1/chat/completions", json.dumps(body), HEADERS)
            answer = link.getresponse()
            return answer.status, answer.read()

    def picture(self, data):
        url = "data:image/png;base64," + base64.b64encode(data).decode()
        return self.ask([{"type": "image_url", "image_url": {"url": url}}])

    def stream(self, number):
        """All text that a stream sends, however it is cut into events."""
        status, body = self.ask(f"Tell me of {number}", 40, stream=True, seed=number)
        assert status == 200, body
        events = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]
        choices = [event["choices"][0] for event in events if event["choices"]]
        assert choices[-1]["finish_reason"] == "length", choices
        return "".join(choice["delta"].get("content") or "" for choice in choices)


class Processes:
    """What the server and its workers take, by /proc."""

    def __init__(self, server):
        self.pid = server.process.pid
        self.stopping, self.worker_peak = threading.Event(), 0
        self.thread = threading.Thread(target=self.watch)

    def workers(self):
        found = []
        for task in pathlib.Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += [int(pid) for pid in (task / "children").read_text().split()]
        return found

    def seconds(self):
        """Of processors, the server's own and those of its children."""
        total = 0
        for pid in [self.pid, *self.workers()]:
            with contextlib.suppress(OSError):
                fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                total += sum(int(value) for value in fields[11 : 15 if pid == self.pid else 13])
        return total / TICKS

    def peak(self, pid):
        with contextlib.suppress(OSError):
            for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmHWM"):
                    return int(line.split()[1]) << 10
        return 0

    def watch(self):
        while not self.stopping.wait(0.01):
            self.worker_peak = max([self.worker_peak, *map(self.peak, self.workers())])

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join()


def check(name, must_be_refused, status, body):
    assert status == 400 or (status == 200 and not must_be_refused), (name, status, body)
    if status == 400:
        error = json.loads(body)["error"]
        assert error["param"] == "messages[0].content[0].image_url.url", (name, body)


def one_after_another(client, processes, hostile):
    """How long each takes the processors."""
    slowest = (0, "")
    for name, (data, must_be_refused) in hostile.items():
        before = processes.seconds()
        check(name, must_be_refused, *client.picture(data))
        taken = processes.seconds() - before
        slowest = max(slowest, (taken, name))
        assert taken <= SECONDS, f"{name}: {taken} s of processor time"
    status, body = client.ask([{"type": "video", "video": ["data:image/png;base64,AAAA"] * 10_000}])
    assert status == 400, body
    print(f"{len(hostile)} files; most processor time: {slowest[0]:.2f} s, {slowest[1]}")


def all_at_once(client, processes, hostile):
    """Beside streams, and with workers that are killed."""
    quiet = [client.stream(i) for i in range(STREAMS)]
    heard, done, failures, killed = [None] * STREAMS, threading.Event(), [], [0]

    def listen(i):
        heard[i] = client.stream(i)

    def attack(part):
        try:
            for name, (data, _) in part:
                check(name, False, *client.picture(data))
        except BaseException as error:  # told by the main thread
            failures.append(error)

    def kill():
        while not done.wait(0.2):
            for pid in processes.workers()[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed[0] += 1

    files = list(hostile.items())
    attackers = [threading.Thread(target=attack, args=(files[i::3],)) for i in range(3)]
    threads = [*attackers, *(threading.Thread(target=listen, args=(i,)) for i in range(STREAMS))]
    killer = threading.Thread(target=kill)
    for thread in [killer, *threads]:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    killer.join()
    assert not failures, failures
    assert heard == quiet, "a stream said something else"
    print(f"{STREAMS} streams unharmed; {killed[0]} workers killed")


def main():
    hostile = dict(cases())
    flags = ("--media-timeout", "600", "--media-memory", str(MEDIA_MEMORY), "--media-workers", str(WORKERS),
             "--max-media-pixels", "8M")
    with Server(sys.argv[1], *flags, model=IMAGES.parent / "model") as server:
        client = Client(server)
        status, body = client.picture(read("photo.png"))
        assert status == 200, body
        with Processes(server) as processes:
            before = processes.peak(processes.pid)
            one_after_another(client, processes, hostile)
            all_at_once(client, processes, hostile)
            assert client.picture(read("webp.webp"))[0] == 200
            grown = processes.peak(processes.pid) - before
            print(f"the server grew by {grown >> 20} MB, no worker had more than {processes.worker_peak >> 20} MB")
            sanitized = b"__asan_" in pathlib.Path(sys.argv[1]).read_bytes()
            # Of a worker: its inputs and outputs, and 18 bytes for each pixel that a file may have.
            assert sanitized or (grown < MEDIA_MEMORY and processes.worker_peak < 512 << 20)
    print("ok")


if __name__ == "__main__":
    main()
