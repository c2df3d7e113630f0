#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cases for constraint_bench and constraint_peers.py: 200 schemas as applications write them, a document that fits each, and
a vocabulary of M3's size. Usage: constraint_cases.py FOLDER

FOLDER/vocabulary.bin: for each token its length (2 bytes, little-endian) and its bytes. FOLDER/cases.jsonl: schema and document.
"""
import json
import pathlib
import random
import string
import struct
import sys

VOCABULARY = 200_064
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
WEIGHTS = [12, 9, 8, 8, 7, 7, 6, 6, 6, 4, 4, 3, 3, 2, 2, 2, 2, 2, 1, 1, 1, 1, .2, .1, .2, .1]


def word(rng, low=2, high=11):
    return "".join(rng.choices(LETTERS, WEIGHTS, k=rng.randint(low, high)))


def vocabulary(rng):
    tokens = {bytes([b]): None for b in range(256)}
    for piece in ['{"', '"}', '":', '": ', '", "', '":"', '","', '"]', '["', "},", "},{", "}]", "[{", "[]", "{}", "true", "false",
                  "null", " true", "\\n", '\\"', "\n\n", "\r\n", "://", "  ", "    ", "\t\t", "();", "=>", "==", "</", "/>"]:
        tokens[piece.encode()] = None
    for i in range(1000):
        tokens[str(i).encode()] = None
    while len(tokens) < VOCABULARY:
        kind = rng.random()
        if kind < .45:
            text = " " + word(rng)
        elif kind < .65:
            text = word(rng)
        elif kind < .75:
            text = rng.choice(["", " "]) + word(rng).capitalize()
        elif kind < .78:
            text = word(rng, 1, 6).upper()
        elif kind < .90:
            text = "".join(chr(rng.choice([rng.randint(0x4E00, 0x9FFF), rng.randint(0x400, 0x4FF), rng.randint(0xAC00, 0xD7A3)]))
                           for _ in range(rng.randint(1, 3)))
        elif kind < .94:
            text = word(rng, 1, 5) + rng.choice(string.punctuation) + word(rng, 0, 4)
        elif kind < .97:
            text = "".join(rng.choices(string.punctuation + " \n\t", k=rng.randint(2, 5)))
        elif kind < .985:
            text = rng.choice("\n ") * rng.randint(1, 24) + word(rng, 0, 4)
        else:
            tokens[("é日本語словоé"[rng.randint(0, 6):].encode())[rng.randint(0, 3):][:rng.randint(2, 7)] + word(rng, 0, 2).encode()] = None
            continue
        tokens[text.encode()] = None
    return list(tokens)


def text(rng, low=1, high=9):
    return " ".join(word(rng) for _ in range(rng.randint(low, high)))


def value(rng, depth, defs):
    """A schema, and a value that fits it."""
    kind = rng.random()
    if depth > 0 and kind < .16:
        return record(rng, depth - 1, defs)
    if depth > 0 and kind < .30:
        schema, _ = value(rng, 0, defs)
        items = [fit(rng, schema) for _ in range(rng.randint(1, 3))]
        limits = rng.choice([{}, {"minItems": 1}, {"minItems": 1, "maxItems": 5}])
        return {"type": "array", "items": schema, **limits}, items
    schema = rng.choice([
        {"type": "string"}, {"type": "string"}, {"type": "string"},
        {"type": "string", "maxLength": rng.choice([40, 120, 500])},
        {"type": "string", "minLength": 1},
        {"enum": [word(rng) for _ in range(rng.randint(2, 8))]},
        {"type": "string", "enum": [word(rng) for _ in range(rng.randint(2, 8))]},
        {"type": "integer"}, {"type": "number"}, {"type": "boolean"}, {"type": "boolean"},
        {"type": "integer", "minimum": 0, "maximum": rng.choice([5, 100, 65535])},
        {"type": "number", "minimum": 0, "maximum": 1},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {"type": "string", "format": rng.choice(["date", "date-time", "uuid", "email"])},
        {"type": "string", "pattern": rng.choice(["^[a-z][a-z0-9_]{1,20}$", "^[A-Z]{2}-[0-9]{4}$", "^#[0-9a-f]{6}$"])},
        {"const": word(rng)},
    ])
    return schema, fit(rng, schema)


def fit(rng, schema):
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    if "anyOf" in schema:
        return fit(rng, rng.choice(schema["anyOf"]))
    kind = schema["type"]
    if kind == "null":
        return None
    if kind == "boolean":
        return rng.random() < .5
    if kind == "integer":
        return rng.randint(schema.get("minimum", -500), schema.get("maximum", 5000))
    if kind == "number":
        return round(rng.random(), 3) if "minimum" in schema else round(rng.uniform(-50, 500), 2)
    if "format" in schema:
        return {"date": "2024-03-17", "date-time": "2024-03-17T09:30:00Z", "uuid": "3f2b8c1e-5a70-4b6d-9c11-0a2b3c4d5e6f",
                "email": "anna.miller@example.org"}[schema["format"]]
    if "pattern" in schema:
        return {"^[a-z]": "order_state_7", "^[A-Z]": "EU-2041", "^#[0-9": "#00ff7a"}[schema["pattern"][:6]]
    return text(rng)[:schema.get("maxLength", 200)]


def record(rng, depth, defs):
    properties, document, required = {}, {}, []
    for _ in range(rng.randint(2, 7)):
        name = rng.choice([word(rng, 3, 9), word(rng, 3, 6) + "_" + word(rng, 3, 6)])
        schema, member = value(rng, depth, defs)
        properties[name] = schema
        if rng.random() < .8:
            required.append(name)
        elif rng.random() < .4:
            continue
        document[name] = member
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}, document


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(19)
    with open(folder / "vocabulary.bin", "wb") as out:
        for token in vocabulary(rng):
            out.write(struct.pack("<H", len(token)) + token)
    with open(folder / "cases.jsonl", "w") as out:
        for _ in range(200):
            schema, document = record(rng, rng.randint(0, 3), {})
            line = {"schema": schema, "document": json.dumps(document, separators=(",", ":"), ensure_ascii=False)}
            out.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
