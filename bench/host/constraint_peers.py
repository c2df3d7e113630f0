#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cases of constraint_cases.py with xgrammar, llguidance and outlines-core: one thread, time that the thread ran. Prints lines for
bench/results.

    python3 -m venv peers && peers/bin/pip install xgrammar llguidance outlines-core numpy
    peers/bin/python constraint_peers.py FOLDER [NAME] [--report]

A schema that takes a peer more than LIMIT_S is given up: it counts as unfinished, and as slower than all others. What was measured
is kept in FOLDER/NAME.jsonl, so that a run which was ended is taken up again; --report prints what is there.
"""
import argparse
import importlib.metadata
import json
import multiprocessing
import pathlib
import resource
import signal
import struct
import sys
import time

LIMIT_S = 20
MEMORY = 8 << 30  # what runs out of it is unfinished too


def read(folder):
    data = (folder / "vocabulary.bin").read_bytes()
    tokens, at = [], 0
    while at < len(data):
        size, = struct.unpack_from("<H", data, at)
        tokens.append(data[at + 2:at + 2 + size])
        at += 2 + size
    cases = [json.loads(line) for line in open(folder / "cases.jsonl")]
    return tokens, cases


def tokenize(ids, text):
    out = []
    while text:
        size = min(len(text), 32)
        while text[:size] not in ids:
            size -= 1
        out.append(ids[text[:size]])
        text = text[size:]
    return out


def clock():
    return time.thread_time_ns() / 1000


# A peer: compile(schema) -> matcher, write_mask(matcher), advance(matcher, token) -> whether the token is allowed.


class XGrammar:
    package = "xgrammar"

    def __init__(self, tokens, ids):
        import xgrammar as xgr
        self.xgr = xgr
        self.info = xgr.TokenizerInfo(tokens + [b"</s>"], vocab_type=xgr.VocabType.RAW, vocab_size=len(tokens) + 1,
                                      stop_token_ids=[len(tokens)])
        self.bits = xgr.allocate_token_bitmask(1, len(tokens) + 1)

    def compile(self, schema):
        compiler = self.xgr.GrammarCompiler(self.info, max_threads=1, cache_enabled=False)
        return self.xgr.GrammarMatcher(compiler.compile_json_schema(schema, any_whitespace=True))

    def write_mask(self, matcher):
        matcher.fill_next_token_bitmask(self.bits)

    def advance(self, matcher, token):
        return matcher.accept_token(token)


class LLGuidance:
    package = "llguidance"

    def __init__(self, tokens, ids):
        import llguidance
        import llguidance.numpy

        class Raw:
            eos_token_id, bos_token_id = len(tokens), None

            def __init__(self):
                self.tokens, self.special_token_ids = tokens + [b"</s>"], [len(tokens)]

            def __call__(self, text):
                return tokenize(ids, text if isinstance(text, bytes) else text.encode())

        self.matcher, self.fill = llguidance.LLMatcher, llguidance.numpy.fill_next_token_bitmask
        self.tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Raw()))
        self.bits = llguidance.numpy.allocate_token_bitmask(1, self.tokenizer.vocab_size)

    def compile(self, schema):
        matcher = self.matcher(self.tokenizer, self.matcher.grammar_from_json_schema(schema))
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def write_mask(self, matcher):
        self.fill(matcher, self.bits, 0)

    def advance(self, matcher, token):
        return matcher.consume_token(token)


class OutlinesCore:
    package = "outlines_core"

    def __init__(self, tokens, ids):
        import numpy
        import outlines_core
        self.core = outlines_core
        self.vocabulary = outlines_core.Vocabulary(len(tokens), {token: [i] for i, token in enumerate(tokens)})
        self.bits = numpy.zeros(len(tokens) // 32 + 1, dtype=numpy.uint32)

    def compile(self, schema):
        regex = self.core.json_schema.build_regex_from_schema(schema)
        return self.core.Guide(self.core.Index(regex, self.vocabulary))

    def write_mask(self, guide):
        guide.write_mask_into(self.bits.ctypes.data, self.bits.size, 4)

    def advance(self, guide, token):
        if not guide.accepts_tokens([token]):
            return False
        guide.advance(token, return_tokens=False)
        return True


def run_case(peer, case, ids):
    """How a case ended, the time to compile it, the times of its masks."""
    schema, document = json.dumps(case["schema"]), tokenize(ids, case["document"].encode())
    start = clock()
    try:
        matcher = peer.compile(schema)
    except Exception as error:
        return "refused", str(error), []
    compile_us, mask_us = clock() - start, []
    for token in document:
        start = clock()
        peer.write_mask(matcher)
        mask_us.append(clock() - start)
        if not peer.advance(matcher, token):
            return "document refused", compile_us, mask_us
    return "done", compile_us, mask_us


def work(peer, cases, ids, pipe):
    """Runs cases one after another in a process of its own, which a case that takes too long ends (SIGPROF)."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for case in cases:
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        pipe.send(run_case(peer, case, ids))
    signal.setitimer(signal.ITIMER_PROF, 0)


def run_all(kind, tokens, cases, ids, kept):
    """Runs what is not in the file `kept` yet."""
    results = read_kept(kept)
    if len(results) == len(cases):
        return
    peer, fork = kind(tokens, ids), multiprocessing.get_context("fork")
    with open(kept, "a") as out:
        while len(results) < len(cases):
            reader, writer = fork.Pipe(duplex=False)
            worker = fork.Process(target=work, args=(peer, cases[len(results):], ids, writer))
            worker.start()
            writer.close()
            try:
                while len(results) < len(cases):
                    results.append(reader.recv())
                    print(json.dumps(results[-1]), file=out, flush=True)
            except EOFError:
                results.append(("unfinished", None, []))
                print(json.dumps(results[-1]), file=out, flush=True)
            worker.join()


def read_kept(kept):
    return [json.loads(line) for line in open(kept)] if kept.exists() else []


def percentiles(times):
    """None: past the limit."""
    times = sorted(times, key=lambda time: float("inf") if time is None else time)
    at = lambda share: times[min(len(times) - 1, int(share * len(times)))]
    return {name: None if at(share) is None else round(at(share), 1) for name, share in
            (("p50", .5), ("p90", .9), ("p99", .99), ("p99.9", .999))}


def report(kind, cases, kept):
    results = read_kept(kept)
    ends = [end for end, _, _ in results]
    for number, (end, why, _) in enumerate(results):
        if end != "done":
            print(f"{kind.package}: case {number}: {end} {why if end == 'refused' else ''}", file=sys.stderr)
    print(json.dumps({
        "case": f"{kind.package.replace('_', '-')} {importlib.metadata.version(kind.package)}",
        "compile_us": percentiles([time for end, time, _ in results if end != "refused"]),
        "mask_us": percentiles([time for _, _, masks in results for time in masks]),
        "cases": len(cases), "tried": len(results), "masks": sum(len(masks) for _, _, masks in results),
        "refused": ends.count("refused"), "document_refused": ends.count("document refused"),
        "unfinished": ends.count("unfinished"), "limit_s": LIMIT_S,
    }), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("name", nargs="?")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    tokens, cases = read(options.folder)
    ids = {token: i for i, token in enumerate(tokens)}
    for kind in (XGrammar, LLGuidance, OutlinesCore):
        if options.name in (None, kind.package):
            kept = options.folder / f"{kind.package}.jsonl"
            if not options.report:
                run_all(kind, tokens, cases, ids, kept)
            report(kind, cases, kept)


if __name__ == "__main__":
    main()
