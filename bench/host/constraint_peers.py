#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cases of constraint_cases.py with xgrammar, llguidance and outlines-core, one thread, time that the thread ran.

    python3 -m venv peers && peers/bin/pip install xgrammar llguidance outlines-core
    peers/bin/python constraint_peers.py FOLDER [NAME]
"""
import json
import pathlib
import struct
import sys
import time


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


def report(name, compile_us, mask_us, refused):
    def line(what, times):
        times = sorted(times)
        at = lambda share: times[min(len(times) - 1, int(share * len(times)))]
        print(f"{name:12} {what:8} n {len(times):6}  p50 {at(.5):9.1f}  p90 {at(.9):9.1f}  p99 {at(.99):9.1f}  p99.9 {at(.999):9.1f}")
    line("compile", compile_us)
    line("mask", mask_us)
    print(f"{name:12} {refused} cases refused, or not followed to the end", flush=True)


def xgrammar(tokens, cases, ids):
    import xgrammar as xgr
    info = xgr.TokenizerInfo(tokens + [b"</s>"], vocab_type=xgr.VocabType.RAW, vocab_size=len(tokens) + 1, stop_token_ids=[len(tokens)])
    bitmask = xgr.allocate_token_bitmask(1, len(tokens) + 1)
    compile_us, mask_us, refused = [], [], 0
    for case in cases:
        compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        start = clock()
        try:
            grammar = compiler.compile_json_schema(json.dumps(case["schema"]), any_whitespace=True)
        except Exception:
            refused += 1
            continue
        compile_us.append(clock() - start)
        matcher = xgr.GrammarMatcher(grammar)
        for token in tokenize(ids, case["document"].encode()):
            start = clock()
            matcher.fill_next_token_bitmask(bitmask)
            mask_us.append(clock() - start)
            if not matcher.accept_token(token):
                refused += 1
                break
    report("xgrammar", compile_us, mask_us, refused)


def llguidance(tokens, cases, ids):
    import llguidance as llg
    import llguidance.numpy as masks

    class Raw:
        eos_token_id, bos_token_id = len(tokens), None

        def __init__(self):
            self.tokens, self.special_token_ids = tokens + [b"</s>"], [len(tokens)]

        def __call__(self, text):
            return tokenize(ids, text if isinstance(text, bytes) else text.encode())

    tokenizer = llg.LLTokenizer(llg.TokenizerWrapper(Raw()))
    bitmask = masks.allocate_token_bitmask(1, tokenizer.vocab_size)
    compile_us, mask_us, refused = [], [], 0
    for case in cases:
        start = clock()
        try:
            grammar = llg.LLMatcher.grammar_from_json_schema(json.dumps(case["schema"]))
            matcher = llg.LLMatcher(tokenizer, grammar)
            if matcher.is_error():
                raise ValueError(matcher.get_error())
        except Exception:
            refused += 1
            continue
        compile_us.append(clock() - start)
        for token in tokenize(ids, case["document"].encode()):
            start = clock()
            masks.fill_next_token_bitmask(matcher, bitmask, 0)
            mask_us.append(clock() - start)
            if not matcher.consume_token(token):
                refused += 1
                break
    report("llguidance", compile_us, mask_us, refused)


def outlines(tokens, cases, ids):
    from outlines_core import Guide, Index, Vocabulary
    from outlines_core.json_schema import build_regex_from_schema
    vocabulary = Vocabulary(len(tokens), {token: [i] for i, token in enumerate(tokens)})
    compile_us, mask_us, refused = [], [], 0
    began = clock()
    for case in cases:
        if clock() - began > 300e6:  # minutes for one schema are not rare
            break
        start = clock()
        try:
            guide = Guide(Index(build_regex_from_schema(json.dumps(case["schema"])), vocabulary))
        except Exception:
            refused += 1
            continue
        compile_us.append(clock() - start)
        for token in tokenize(ids, case["document"].encode()):
            start = clock()
            allowed = guide.get_tokens()
            mask_us.append(clock() - start)
            if token not in allowed:
                refused += 1
                break
            guide.advance(token, return_tokens=False)
    report("outlines", compile_us, mask_us, refused)


def main():
    tokens, cases = read(pathlib.Path(sys.argv[1]))
    ids = {token: i for i, token in enumerate(tokens)}
    for peer in (xgrammar, llguidance, outlines):
        if len(sys.argv) < 3 or sys.argv[2] == peer.__name__:
            peer(tokens, cases, ids)


if __name__ == "__main__":
    main()
