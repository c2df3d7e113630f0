#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what Hugging Face `tokenizers` does, as the truth for tests/text/tokenizer/tokenizer_golden_test.cc.

    build/venv/bin/python tools/make_tokenizer_goldens.py                 # writes tests/golden/tokenizer
    build/venv/bin/python tools/make_tokenizer_goldens.py --cases-only --seed 7 --out DIR

The second form reads the tokenizers that are recorded already and writes fresh strings for them. Files:
  *.tokenizer.json   small tokenizers: one for each known pattern, one pattern of nobody's, one with every flag set
  cases.json         [[text or {"hex": bytes that are not UTF-8}, digests], ...]: CRC-32 of the ids (int32, little
                     endian), for each tokenizer in order: 8 hex digits with all added tokens, 8 without special ones
  decode.json        [[tokenizer, ids, text, text without special tokens], ...]
  classes.json       [[first, last, classes], ...] runs of code points, classes as in CharClasses
"""
import argparse
import glob
import json
import os
import random
import re
import struct
import sys
import unicodedata
import zlib

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

LETTERS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
CAPITALS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
TAIL = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (r"[^\r\n\p{L}\p{N}]?" + LETTERS + TAIL + r"|[^\r\n\p{L}\p{N}]?" + CAPITALS + TAIL +
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
OTHER = r"\p{Han}+|\s?\p{L}{1,5}|\p{N}|[^\S\n]+|\n|[^\s\p{L}\p{N}]{2}"

NAMES = ["m3", "m3_no_slash", "cl100k", "gpt2", "other", "flags"]


def root():
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def m3_tokens():
    """The added tokens, from the one place that lists them."""
    text = open(os.path.join(root(), "src/text/m3_tokens.h"), encoding="utf-8").read()
    body = text[text.index("kM3AddedTokens = {"):text.index("};")]
    tokens = [json.loads(part) for part in re.findall(r'"(?:[^"\\]|\\.)*"', body)]
    assert len(tokens) == 61, len(tokens)
    return tokens


def corpus():
    lines = []
    for pattern in ["src/**/*.h", "src/**/*.cc", "*.md", "docs/*.md"]:
        for path in sorted(glob.glob(os.path.join(root(), pattern), recursive=True)):
            lines += open(path, encoding="utf-8").read().splitlines(keepends=True)
    return lines + [s + "\n" for s in PROSE] * 40


PROSE = [
    "The quick brown fox jumps over the lazy dog, doesn't it? I'd say they've won; we'll see what I'm told.",
    "Le cœur a ses raisons que la raison ne connaît point : voilà l'été à Besançon.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich; Straße, Übermaß und Äpfel.",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío. ¿Verdad? ¡Sí!",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. ПРИВЕТ, Мир!",
    "Η αλεπού πηδάει πάνω από το σκυλί. Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία.",
    "我能吞下玻璃而不伤身体。今天的天气很好,我们去公园吧!2024年12月31日。",
    "いろはにほへと ちりぬるを わかよたれそ。コーヒーを飲みますか?東京タワーは333メートルです。",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ومغلف بجلد أزرق. ١٢٣٤",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה. שָׁלוֹם",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश करने वाले विष्णुवतार। १२३",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน ๑๒๓",
    "Tiếng Việt có dấu: Một người uống rượu thì sẽ vui vẻ. Đường phố Hà Nội.",
    "ᚠᛇᚻ᛫ᛒᛦᚦ᛫ᚠᚱᚩᚠᚢᚱ ქართული ენა Հայերեն լեզու አማርኛ ቋንቋ ᠮᠣᠩᠭᠣᠯ",
    "ǅ ǈ ǋ title case; ʰ ʲ modifier letters; ⅷ Ⅻ ½ ² ³ ① numbers; ﬁ ﬂ ligatures; ＡＢＣ ｆｕｌｌ",
]
CODE = [
    "def f(x: int) -> str:\n    return f\"{x!r}\"  # comment\n\n\nclass A(B):\n\tpass\n",
    "for (int i = 0; i < n; ++i) {\r\n\tsum += a[i] * b[i];\r\n}\r\n",
    "SELECT * FROM users WHERE id IN (1,22,333,4444,55555) AND name LIKE '%O''Brien%';",
    "<div class=\"a b\"><p>Hello&nbsp;World</p><!-- x --></div>\n",
    "{\"key\": [1, 2.5, -3e10, null, true], \"nested\": {\"a\": \"b\\n\"}}",
    "https://example.com/a/b/c?d=e&f=%20g#h /usr/local/bin/../lib //// ///\n//\n",
    "git commit -m 'fix: don\\'t'; ls -la | grep -v \"^d\" > /dev/null 2>&1",
    "template <typename T> T&& fwd(std::remove_reference_t<T>& t) noexcept { return static_cast<T&&>(t); }",
    "\\begin{equation} \\int_0^\\infty e^{-x^2} dx = \\frac{\\sqrt{\\pi}}{2} \\end{equation}",
]
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🇩🇪", "🇯🇵", "🏳️‍🌈", "❤️", "✨", "1️⃣", "🧑🏿‍💻", "☺", "🫠", "\u200d", "\ufe0f", "🤦🏼‍♂️"]
SPACES = [" ", "  ", "\t", "\n", "\r", "\r\n", "\n\n", "\v", "\f", "\x85", "\xa0", "\u1680", "\u2003", "\u2028", "\u2029",
          "\u202f", "\u205f", "\u3000", "\u180e", "\u200b", "\ufeff", "\x1c", "\x1f"]
SHORTS = ["'s", "'S", "'t", "'T", "'re", "'RE", "'rE", "'ve", "'m", "'M", "'ll", "'Ll", "'d", "'D", "'\u017f", "'", "''", "’s", "'x",
          "'l", "'r", "'v", "'\u212a"]
BROKEN = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\xaf", b"\x80", b"\xf5", b"\xe2\x28\xa1", b"\xf4\x90\x80\x80",
          b"\xf0\x9f", b"\xc3\x28", b"\xef\xbf\xbd", b"\xfe\xff", b"\xe0\x80\x80"]


def pools():
    """Assigned characters by category; Python's tables are older than everybody else's, so all agree on these."""
    by_category = {}
    for c in range(0x110000):
        category = unicodedata.category(chr(c))
        if category not in ("Cn", "Cs", "Co"):
            by_category.setdefault(category, []).append(chr(c))
    return by_category


class Strings:
    def __init__(self, seed, specials, lines):
        self.r = random.Random(seed)
        self.specials = specials
        self.lines = lines
        self.pools = pools()
        self.categories = sorted(self.pools)

    def char(self, category=None):
        return self.r.choice(self.pools[category or self.r.choice(self.categories)])

    def slice(self, text, most=60):
        a = self.r.randrange(len(text))
        return text[a:a + self.r.randint(1, most)]

    def prose(self):
        return self.slice(self.r.choice(PROSE))

    def code(self):
        return self.slice(self.r.choice(CODE) if self.r.random() < 0.3 else "".join(self.window()))

    def window(self):
        a = self.r.randrange(len(self.lines))
        return self.lines[a:a + 3]

    def script_mix(self):
        return "".join(self.slice(self.r.choice(PROSE), 8) for _ in range(self.r.randint(2, 6)))

    def categories_mix(self):
        few = self.r.sample(self.categories, self.r.randint(1, 4))
        return "".join(self.char(self.r.choice(few)) for _ in range(self.r.randint(1, 16)))

    def cases_mix(self):
        """Letters of every kind next to each other: where the patterns give characters back."""
        kinds = ["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me"]
        ascii_too = {"Lu": "ABXYZ", "Ll": "abxyz"}
        out = []
        for _ in range(self.r.randint(2, 14)):
            kind = self.r.choice(kinds)
            easy = self.r.random() < 0.5 and kind in ascii_too
            out.append(self.r.choice(ascii_too[kind]) if easy else self.char(kind))
            if self.r.random() < 0.15:
                out.append(self.r.choice([" ", "'", "1", "-", "/", "\n", "'s", "'LL"]))
        return "".join(out)

    def spaces_mix(self):
        parts = SPACES + ["a", "B", "!", "1", "中", "/", "\u0301", " a", "\n"]
        return "".join(self.r.choice(parts) for _ in range(self.r.randint(1, 14)))

    def shorts_mix(self):
        words = ["I", "you", "WE", "日本", "été", "x1", "1", " ", "é", "ß", "Ω", "\u0301", "don"]
        return "".join(self.r.choice(words) + self.r.choice(SHORTS) for _ in range(self.r.randint(1, 6)))

    def numbers_mix(self):
        digits = self.pools["Nd"] + self.pools["No"] + self.pools["Nl"]
        out = [self.r.choice("0123456789") if self.r.random() < 0.7 else self.r.choice(digits) for _ in range(self.r.randint(1, 12))]
        out.insert(self.r.randrange(len(out)), self.r.choice(["", ".", ",", " ", "a", "\n"]))
        return "".join(out)

    def symbols_mix(self):
        parts = list("!?.,;:/\\|@#$%^&*()[]{}<>~`+-=_\"'") + ["//", "\n", "\r\n", " ", "  ", "…", "—", "«", "\u0301", "/\n"]
        return "".join(self.r.choice(parts) for _ in range(self.r.randint(1, 16)))

    def emoji_mix(self):
        return "".join(self.r.choice(EMOJI + ["a", " ", "\n", "Ab"]) for _ in range(self.r.randint(1, 10)))

    def control_mix(self):
        return "".join(chr(self.r.choice([self.r.randrange(32), 127, self.r.randrange(128, 160), 65, 32])) for _ in range(self.r.randint(1, 12)))

    def special_mix(self):
        out = []
        for _ in range(self.r.randint(1, 4)):
            token = self.r.choice(self.specials)
            if self.r.random() < 0.25:
                token = self.slice(token, 30)
            out += [token, self.r.choice(["", " ", "\n", "text", self.prose(), "]", "<", "[", "_", "é", "  "])]
        return "".join(out)

    def broken(self):
        out = b""
        for _ in range(self.r.randint(1, 5)):
            out += self.r.choice([self.prose().encode()[:20], self.r.choice(BROKEN), bytes([self.r.randrange(256)]),
                                  self.r.choice(EMOJI).encode()[:self.r.randint(1, 8)]])
        return out

    def long(self):
        return "".join(self.r.choice([self.prose, self.code, self.special_mix, self.spaces_mix])() for _ in range(30))

    def case(self, i):
        kinds = [self.prose, self.code, self.script_mix, self.categories_mix, self.cases_mix, self.spaces_mix, self.shorts_mix,
                 self.numbers_mix, self.symbols_mix, self.emoji_mix, self.control_mix, self.special_mix, self.broken, self.cases_mix]
        return self.long() if i % 400 == 399 else kinds[i % len(kinds)]()


def byte_level(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "isolated", invert=False)
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train(pre_tokenizer, vocab_size, lines, normalizer=None, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def add_m3(tokenizer):
    tokens = m3_tokens()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in tokens[:50]])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in tokens[50:]])
    return tokenizer


def flagged_tokens():
    return [AddedToken("<word>", single_word=True, normalized=False), AddedToken("<left>", lstrip=True, normalized=False),
            AddedToken("<right>", rstrip=True, normalized=False), AddedToken("<both>", lstrip=True, rstrip=True, normalized=False),
            AddedToken("norm", single_word=True, normalized=True), AddedToken("<a><b>", normalized=True),
            AddedToken("<a>", special=True, normalized=False), AddedToken("ing", normalized=True), AddedToken("<é>", normalized=False)]


def make_tokenizers():
    lines = corpus()
    flags = train(byte_level(CL100K), 600, lines, normalizers.NFC(), ignore_merges=True)
    flags.add_tokens(flagged_tokens())
    return {
        "m3": add_m3(train(byte_level(O200K), 2500, lines)),
        "m3_no_slash": add_m3(train(byte_level(O200K.replace(r"[\r\n/]*", r"[\r\n]*")), 1000, lines)),
        "cl100k": add_m3(train(byte_level(CL100K), 1500, lines)),
        "gpt2": add_m3(train(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True), 1500, lines)),
        "other": add_m3(train(byte_level(OTHER), 800, lines)),
        "flags": flags,
    }


def digest(ids):
    return f"{zlib.crc32(struct.pack(f'<{len(ids)}i', *ids)):08x}"


def cases(loaded, seed, count):
    specials = m3_tokens() + [t.content for t in flagged_tokens()] * 3
    strings = Strings(seed, specials, corpus())
    # Every special token, alone and between letters, first.
    texts = specials + ["a" + t + "b" for t in specials] + [""]
    texts += [strings.case(i) for i in range(count - len(texts))]
    out = []
    for text in texts:
        plain = text if isinstance(text, str) else text.decode("utf-8", "replace")
        # The oracle's normal forms date from an old Unicode: it leaves newer marks where they stand.
        if normalizers.NFC().normalize_str(plain) != unicodedata.normalize("NFC", plain):
            continue
        digests = ""
        for tokenizer in loaded:
            for as_text in (False, True):
                tokenizer.encode_special_tokens = as_text
                digests += digest(tokenizer.encode(plain, add_special_tokens=False).ids)
        out.append([text if isinstance(text, str) else {"hex": text.hex()}, digests])
    return out


def decodes(loaded, seed, count):
    r = random.Random(seed + 1)
    out = []
    for i in range(count):
        which = i % len(loaded)
        tokenizer = loaded[which]
        size = tokenizer.get_vocab_size()
        low = size - 61 if r.random() < 0.5 else 0  # added tokens are the last ones
        ids = [r.randrange(r.choice([0, low]), r.choice([300, size])) if low < 300 else r.randrange(low, size) for _ in range(r.randint(1, 12))]
        ids += [r.randrange(300) for _ in range(r.randint(0, 6))]
        r.shuffle(ids)
        # The oracle reads letters of added tokens as its alphabet for bytes and mangles this one.
        if tokenizer.token_to_id("<é>") in ids:
            continue
        out.append([NAMES[which], ids, tokenizer.decode(ids, skip_special_tokens=False), tokenizer.decode(ids, skip_special_tokens=True)])
    return out


def classes():
    bits = {r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]": 1, r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]": 2, r"\p{L}": 4, r"\p{N}": 8, r"\s": 16, r"[\r\n]": 32}
    found = [0] * 0x110000
    for pattern, bit in bits.items():
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        for base in range(0, 0x110000, 4096):
            text = "".join(chr(c) + "\uffff" for c in range(base, base + 4096) if not 0xD800 <= c <= 0xDFFF)
            for piece, _ in split.pre_tokenize_str(text) if text else []:
                if len(piece) == 1 and piece != "\uffff":
                    found[ord(piece)] |= bit
    runs = []
    for c, value in enumerate(found):
        if value and runs and runs[-1][1] == c - 1 and runs[-1][2] == value:
            runs[-1][1] = c
        elif value:
            runs.append([c, c, value])
    return runs


def write(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        f.write("[" + ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows) + "]\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.join(root(), "tests/golden/tokenizer"))
    parser.add_argument("--seed", type=int, default=20261115)
    parser.add_argument("--count", type=int, default=21000)
    parser.add_argument("--cases-only", action="store_true")
    args = parser.parse_args()
    recorded = os.path.join(root(), "tests/golden/tokenizer")
    os.makedirs(args.out, exist_ok=True)
    if not args.cases_only:
        for name, tokenizer in make_tokenizers().items():
            tokenizer.save(os.path.join(args.out, name + ".tokenizer.json"), pretty=False)
        recorded = args.out
        write(os.path.join(args.out, "classes.json"), classes())
        json.dump({"tokenizers": tokenizers.__version__, "python": sys.version.split()[0], "seed": args.seed},
                  open(os.path.join(args.out, "versions.json"), "w"))
    loaded = [Tokenizer.from_file(os.path.join(recorded, name + ".tokenizer.json")) for name in NAMES]
    write(os.path.join(args.out, "cases.json"), cases(loaded, args.seed, args.count))
    write(os.path.join(args.out, "decode.json"), decodes(loaded, args.seed, 900))


if __name__ == "__main__":
    main()
