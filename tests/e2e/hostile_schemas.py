# SPDX-License-Identifier: Apache-2.0
"""Schemas, expressions and grammars that cost more than they say. Usage: hostile_schemas.py PATH_OF_SPARROW [SECONDS]

Each is answered within SECONDS (the promise is one; a busy machine gets more here), by 400 where it cannot be held to, while 64
streams go on beside it.
"""

import http.client
import json
import sys
import threading
import time
import urllib.parse

from served import KEY, Server

STREAMS = 64
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 60
HEADERS = {"Authorization": "Bearer " + KEY, "Content-Type": "application/json"}


def nested(depth, inner="{}"):
    return '{"items":' * depth + inner + "}" * depth


def members(count):
    return {"type": "object", "properties": {f"member_{i}": {"type": "string", "pattern": f"^x{i}.*{i}$"} for i in range(count)}}


# What must be refused, as text of a field of a request.
REFUSED = {
    "1 MB of members": json.dumps({"json": members(17_000)}),
    "1 MB in one name": json.dumps({"json": {"properties": {"x" * 1_000_000: {}}}}),
    "1 MB of values": json.dumps({"json": {"enum": [f"value {i}" for i in range(70_000)]}}),
    "10,000 levels": '{"json":%s}' % nested(10_000),
    "10,000 levels in a string": json.dumps({"json": nested(10_000)}),
    "a reference that leads nowhere": '{"json":{"$ref":"#/$defs/a"}}',
    "a reference elsewhere": '{"json":{"$ref":"http://127.0.0.1/schema"}}',
    "a value that needs itself": '{"json":{"type":"object","properties":{"x":{"$ref":"#"}},"required":["x"]}}',
    "no length": '{"json":{"type":"string","minLength":5,"maxLength":2}}',
    "two beginnings": '{"json":{"allOf":[{"type":"string","pattern":"^a"},{"pattern":"^b"}]}}',
    "two types": '{"json":{"allOf":[{"type":"string"},{"type":"integer"}]}}',
    "no integer": '{"json":{"type":"integer","exclusiveMinimum":3,"exclusiveMaximum":4}}',
    "an exclusive or of 512": json.dumps({"json": {"oneOf": [{"pattern": f"a{i}"} for i in range(512)]}}),
    "eight levels of alternatives": json.dumps({"json": {"allOf": [
        {"anyOf": [{"properties": {f"p{i}_{k}": {"type": "string"}}} for k in range(64)]} for i in range(8)]}}),
    "70,000 parentheses": json.dumps({"regex": "(" * 70_000 + "a" + ")" * 70_000}),
    "a long expression": json.dumps({"regex": "(a|b)" * 50_000}),
    "thousands that may be left out": json.dumps({"regex": "a?" * 16_000 + "a" * 16_000}),
    "members that are counted": json.dumps({"json": {"maxProperties": 199, "properties": {f"p{i}": {} for i in range(1000)}}}),
    "objects, one of them": json.dumps({"json": {"oneOf": [
        {"type": "object", "properties": {"k": {"const": i}}, "required": [f"m{k}" for k in range(20)] + ["k"]} for i in range(512)]}}),
    "parts that have to agree": r'{"regex":"(?=.*a.{20})(?=.*b.{21})(?=.*c.{22}).*"}',
    "20,000 sets of letters": json.dumps({"regex": r"\pL" * 20_000}),
    "30,000 sets of other signs": json.dumps({"regex": r"\W" * 30_000}),
    "a look ahead": '{"regex":"(?=(a+)+)b"}',
    "a backreference": '{"regex":"(a+)\\\\1"}',
    "left recursion": r'{"grammar":"root ::= root \"a\" | \"b\""}',
    "a rule without an end": r'{"grammar":"root ::= \"a\" root"}',
    "10,000 rules": json.dumps({"grammar": "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(10_000)) + '\nroot ::= r0'}),
    "an unknown keyword": '{"json":{"frobnicate":1}}',
}
# What other engines choke on and an automaton does not.
TAKEN = {
    "nested repeats": r'{"regex":"(a+)+(a|a)*(a*)*b"}',
    "repeats of repeats": '{"regex":"((((a{0,1000}){0,1000}){0,1000}){0,1000}b{0,9}c{0,1000}){0,1000}"}',
    "exponential states": r'{"regex":"(.*[aeiou].{20,40}){4}"}',
    "many counters": r'{"regex":"(a.{0,300}b){3}"}',
    "many items": '{"json":{"type":"array","items":{"type":"integer"},"minItems":1000000}}',
    "a tree": '{"json":{"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"l":{"$ref":"#/$defs/n"},"r":{"$ref":"#/$defs/n"}}}}}}',
    "20,000 values": json.dumps({"json": {"enum": [i + 0.5 for i in range(20_000)]}}),
    "a password's rules": '{"regex":"(?=.*[0-9])(?=.*[a-z])(?=.*[A-Z])(?=.*[!@#])(?!.*aaa)(?!.*bbb).{8,64}"}',
    "900 members": json.dumps({"json": members(900)}),
}


class Streams:
    """Healthy clients: what they are sent is counted."""

    def __init__(self, server):
        self.url = urllib.parse.urlsplit(server.url)
        self.events = [0] * STREAMS
        self.stopping = False
        self.threads = [threading.Thread(target=self.read, args=(i,)) for i in range(STREAMS)]
        for thread in self.threads:
            thread.start()

    def read(self, index):
        while not self.stopping:
            connection = http.client.HTTPConnection(self.url.hostname, self.url.port)
            connection.request("POST", "/v1/completions", json.dumps(
                {"model": "m3", "prompt": f"stream {index}", "max_tokens": 2000, "ignore_eos": True, "stream": True,
                 **({"structured_outputs": {"regex": "[a-z ]{9000}"}} if index % 4 == 0 else {})}), HEADERS)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            for line in response:
                self.events[index] += line.startswith(b"data: {")
                if self.stopping:
                    break
            connection.close()

    def total(self):
        return sum(self.events)

    def stop(self):
        self.stopping = True
        for thread in self.threads:
            thread.join()


def ask(url, constraint):
    connection = http.client.HTTPConnection(url.hostname, url.port)
    start = time.monotonic()
    connection.request("POST", "/v1/completions",
                       '{"model":"m3","prompt":"x","max_tokens":40,"structured_outputs":%s}' % constraint, HEADERS)
    response = connection.getresponse()
    body = json.load(response)
    connection.close()
    return response.status, body, time.monotonic() - start


def main():
    bad, slowest = [], (0, "")
    with Server(sys.argv[1], "--max-num-seqs", "128") as server:
        streams = Streams(server)
        try:
            while not all(streams.events):
                time.sleep(0.05)
            for name, constraint in [*REFUSED.items(), *TAKEN.items()]:
                before = streams.total()
                status, body, seconds = ask(streams.url, constraint)
                slowest = max(slowest, (seconds, name))
                message = body.get("error", {}).get("message", "")
                print(f"{name}: {status} after {seconds:.2f} s, {streams.total() - before} events of others: {message[:150]}")
                if status != (400 if name in REFUSED else 200) or seconds > SECONDS:
                    bad.append(name)
            before = list(streams.events)
            deadline = time.monotonic() + 120
            while any(now == then for now, then in zip(streams.events, before)) and time.monotonic() < deadline:
                time.sleep(0.05)
            if any(now == then for now, then in zip(streams.events, before)):
                bad.append("a stream stands still")
        finally:
            streams.stop()
    print(f"slowest: {slowest[1]}, {slowest[0]:.2f} s; wrong: {bad}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
