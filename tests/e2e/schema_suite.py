# SPDX-License-Identifier: Apache-2.0
"""Every schema of JSON-Schema-Test-Suite's draft2020-12: answers fit it, or it is refused by name. Usage: schema_suite.py PATH_OF_SPARROW

The suite is the folder SPARROW_SCHEMA_SUITE (scripts/test takes it from the source package of jsonschema). Random weights
answer with five seeds, and jsonschema judges. Exits with 77 without the suite or the package.
"""

import collections
import concurrent.futures
import json
import os
import pathlib
import re
import sys
import urllib.error

SUITE = pathlib.Path(os.environ.get("SPARROW_SCHEMA_SUITE", ""))
if not os.environ.get("SPARROW_SCHEMA_SUITE") or not SUITE.is_dir():
    print("skipped: SPARROW_SCHEMA_SUITE names no folder with the tests of draft2020-12")
    sys.exit(77)
try:
    import jsonschema
except ImportError:
    print("skipped: the jsonschema package is not installed here")
    sys.exit(77)

from served import Server

SEEDS = 5
# What a refusal says when no keyword is at fault.
NO_VALUE_FITS = ["nothing fits", "no text fits"]


def schemas():
    for file in sorted(SUITE.rglob("*.json")):
        for group in json.loads(file.read_text()):
            yield f"{file.relative_to(SUITE)}: {group['description']}", group["schema"]


def keywords(value):
    """All names in a schema, among them its keywords."""
    if isinstance(value, dict):
        return set(value).union(*map(keywords, value.values()))
    return set().union(*map(keywords, value)) if isinstance(value, list) else set()


def ids_of(server, schema):
    """What random weights seldom come upon: the ends of values, and words that patterns ask for."""
    patterns = [schema.get("pattern", ""), *schema.get("patternProperties", {})] if isinstance(schema, dict) else []
    texts = ['"', "}", "]", "@", *re.findall("[A-Za-z]{3,}", re.sub(r"\\p{\w+}|\\.", " ", " ".join(patterns)))]
    return [token for text in texts for token in server.post("/tokenize", {"prompt": text})["tokens"]]


def answers(server, schema, tokens, bias, temperature):
    choices = server.post("/v1/completions", {
        "model": "m3", "prompt": "x", "max_tokens": tokens, "n": SEEDS, "temperature": temperature, "seed": 1,
        "structured_outputs": {"json": schema},
        "logit_bias": {str(token): bias for token in ids_of(server, schema)}})["choices"]
    return [choice["text"] for choice in choices if choice["finish_reason"] == "stop"]


def judge(server, schema):
    """How it went ("held", "refused", "not judged", or "cut": no answer came to an end), and what is wrong."""
    try:
        ended = answers(server, schema, 150, 5, 1) or answers(server, schema, 800, 20, 2)
    except urllib.error.HTTPError as error:
        with error:
            message = json.load(error)["error"]["message"]
        names_it = "at #" in message and any(f"keyword {name} at" in message for name in keywords(schema))
        said = error.code == 400 and (names_it or any(words in message for words in NO_VALUE_FITS))
        return "refused", None if said else f"status {error.code}: {message}"
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    for text in ended:
        try:
            validator.validate(json.loads(text))
        except (ValueError, jsonschema.ValidationError) as error:
            return "held", f"{text!r} does not fit: {error}"
        except re.error:
            return "not judged", None  # ECMAScript's, which Python's expressions have not all of
    return ("held", None) if ended else ("cut", "no answer came to an end")


def main():
    counts, bad = collections.Counter(), []
    with Server(sys.argv[1], "--max-model-len", "1024") as server:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            cases = list(schemas())
            for (name, schema), (outcome, fault) in zip(cases, pool.map(lambda case: judge(server, case[1]), cases)):
                counts[outcome] += 1
                if fault:
                    bad.append(f"{name}\n  {json.dumps(schema)[:300]}\n  {outcome}: {fault}")
    print(f"{len(cases)} schemas: {dict(counts)}")
    print("\n".join(bad))
    assert cases, f"no schemas in {SUITE}"
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
