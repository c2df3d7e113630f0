#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what Python's jinja2, set up as Hugging Face's transformers sets it up, makes of our templates.

    tools/make_jinja_goldens.py            writes tests/golden/jinja/cases.json
    tools/make_jinja_goldens.py --check    compares the recorded answers with jinja2's; exit 1 if any differs

The templates in tests/golden/jinja/templates are our own, composed in the styles that model families use.
"""
import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "golden" / "jinja"
NOW = datetime.datetime(2024, 7, 26, 13, 5, 9)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_pass"), [], [], body).set_lineno(line)

    def _pass(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


ENV = environment()

TOOL = {"type": "function", "function": {
    "name": "find_route", "description": "Plan a <trip> & say \"go\"; été 旅",
    "parameters": {"type": "object", "properties": {
        "stops": {"type": "array", "items": {"type": "string"}, "description": "in order"},
        "limit": {"type": "integer", "default": 3},
        "mode": {"type": "string", "enum": ["walk", "ride"], "default": "walk"},
        "where": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": ["number", "null"]}},
                  "required": ["lat"]},
        "when": {"oneOf": [{"type": "string"}, {"type": "integer"}]}},
        "required": ["stops"]}}}
PING = {"type": "function", "function": {"name": "ping", "description": "", "parameters": {}}}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def call(name, arguments, id="abcdefghi"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


ARGUMENTS = {"stops": ["Köln", "\"Bonn\""], "limit": 2, "ratio": 0.1, "big": 1e22, "fast": True, "none": None,
             "where": {"lat": -0.0, "lon": [1, 2.5]}, "": ""}

CONVERSATIONS = {
    "hello": [user("Hi")],
    "system": [{"role": "system", "content": " Be brief. \n"}, user("  Hi \n there ")],
    "turns": [user("A"), assistant("B"), user("C"), assistant(" D "), user("E")],
    "inline reasoning": [user("A"), assistant("<muse>\nx\n</muse>\n\nB"), user("C")],
    "reasoning last": [user("A"), assistant("B", reasoning_content="because\n")],
    "one call": [user("A"), assistant("", tool_calls=[call("find_route", ARGUMENTS)]),
                 {"role": "tool", "name": "find_route", "tool_call_id": "abcdefghi", "content": "{\"ok\": true}"},
                 assistant("done"), user("more")],
    "two calls": [user("A"), assistant(None, reasoning_content="hm",
                                       tool_calls=[call("find_route", {"stops": []}), call("ping", {}, "123456789")]),
                  {"role": "tool", "tool_call_id": "abcdefghi", "content": "r1"},
                  {"role": "tool", "tool_call_id": "123456789", "content": "r2"}],
    "parts": [user([{"type": "text", "text": " see "}, {"type": "image"}, {"type": "text", "text": "this"}]),
              assistant([{"type": "text", "text": "yes"}]), user("q")],
    "same role twice": [user("A"), user("B")],
    "assistant last": [user("A"), assistant("B")],
    "unicode": [user("Grüße 👩‍🚀 \u200b \u2028 end"), assistant("日本語\r\nzwei\tdrei")],
    "empty": [],
}

VARIABLES = [
    {"bos_token": "<s>", "eos_token": "</s>"},
    {"bos_token": "", "eos_token": "<e>", "enable_thinking": False, "reasoning_effort": "high"},
    {"bos_token": "<s>", "eos_token": "</s>", "enable_thinking": True, "model_identity": "M"},
]

# Small templates, one for each thing that can go wrong. A pair is a template and its variables.
SNIPPETS = [
    # Whitespace.
    "a\n  {% if true %}  \n  b\n  {% endif %}\nc\n", "a {%- if true -%}  \n b {%- endif -%} \n c", "x\n{# note #}\ny",
    "x\n   {#- note -#}  \n y", "  {%+ if true %}a{% endif +%}\n b", "{% if true %}\n\n\na{% endif %}", "a\n\n", "a\n",
    "{{ 'a' }}\n{{ 'b' }}\n", "\t{% set x = 1 %}\n\t{{ x }}", "{% raw %}{{ x }} {% if %}{% endraw %}!",
    "a {%- raw -%} {{ y }} {%- endraw -%} b", "  {% raw %}\n  z {% endraw %}\n q", "a\r\nb\rc{{ '\r\n' }}",
    "{{- ' a ' -}}  b  {{ 'c' -}}\n d", "a{% if true %} {% endif %}b", "   {{ 1 }}   {% if 1 %} {% endif %}  z",
    "{#\n multi\n line\n#}\nafter", "{{ '{{' }}{{ '%}' }}{{ \"}}\" }}", "{{ {'a': {'b': {}}} }}",
    "{% for i in [1,2] -%}\n  {{ i }}\n{%- endfor %}", "line {% set a = 1 %}\nnext", "a{#-#}b", "\n\n{% if 1 %}x{% endif %}",
    # Values and how they print.
    "{{ 1.0 }} {{ 1e16 }} {{ 1e-5 }} {{ 123456789.123 }} {{ 0.1 + 0.2 }} {{ 1e22 }} {{ 5e-324 }} {{ 1/3 }} {{ 100000.0 * 1e10 }}",
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}",
    "{{ true }} {{ none }} {{ [1, 'a', none, 2.0, true] }} {{ (1,) }} {{ () }} {{ {'k': [1], 2: \"it's\"} }}",
    "{{ \"it's\" }} {{ [\"it's\", 'say \"x\"', 'both \\' and \"', 'a\\nb\\t\\\\'] }}",
    ("{{ x }} {{ [x] }}", {"x": "é\u200b\u00ad\U0001f600\x7f\x00"}), "{{ 'a' 'b' \"c\" }}", "{{ '\\u00e9\\x41\\101\\q' }}",
    "{{ 10_000 + 0x1F + 0b11 + 0o17 }}", ("{{ n }} {{ n|tojson }} {{ [n] }} {{ n == n }} {{ n > 5 }}", {"n": 18446744073709551615}),
    ("{{ n }} {{ n is integer }} {{ n is number }}", {"n": -123456789012345678901234567890}), "{{ 9223372036854775807 }}",
    "{{ range(5) }} {{ range(2, 9, 3)|list }} {{ range(3)[-1] }} {{ range(3)|length }}",
    "{{ {'a': 1}.items() }} {{ {'a': 1}.keys() }} {{ {'a': 1}.values() }}", "{{ +3 }} {{ -(-3) }} {{ - 2 ** 2 }} {{ 2 - -1 }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 2 > 5 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1,2] < [1,3] }}",
    "{{ 'a' * 3 }} {{ [0] * 2 }} {{ 2 * 'ab' }} {{ 'x' * -1 }}|", "{{ 1 ~ 2 ~ none ~ [1] }} {{ 1 + 2 ~ 3 }} {{ 'a' + 'b' ~ 'c' }}",
    "{{ 'a' in 'cat' }} {{ 'a' not in ['b'] }} {{ 1 in {1: 2} }} {{ 'x' in undefined_thing }}",
    "{{ not true or true and false }} {{ 1 and 0 or 'z' }} {{ none or [] }} {{ 'a' and 'b' }}",
    "{{ 'y' if 1 else 'n' }} {{ 'y' if 0 }}| {{ 'a' if 0 else 'b' if 0 else 'c' }}", "{{ (1, 2) + (3,) }} {{ [1] + [2] }}",
    "{{ 'abcdef'[1:4] }} {{ 'abc'[-1] }} {{ 'abc'[::-1] }} {{ [1,2,3,4][::2] }} {{ [1,2,3][:-1] }} {{ [1,2,3][5:] }} {{ 'aé日😀z'[1:4] }}",
    "{{ [1,2,3][-9:2] }} {{ [1,2,3][2:0:-1] }} {{ 'abc'[10:] }}| {{ (1,2,3)[1:] }}",
    "{% set a = [[1,2],[3,4]] %}{{ a[1][0] }} {{ a.1.0 }} {{ {'x': {'y': 5}}.x['y'] }}",
    "{{ {'a': 1, 'a': 2} }} {{ {1: 'x', 1.0: 'y', true: 'z'} }}", "{{ 3 is sameas 3 }} {{ none is sameas none }}",
    # Undefined.
    "{{ nothing }}|{{ nothing|default('d') }}|{{ ''|default('d') }}|{{ ''|default('d', true) }}|{{ none|d('x', boolean=true) }}",
    "{{ nothing is defined }} {{ nothing is undefined }} {{ nothing == none }} {{ nothing == other }} {{ [nothing] }}",
    "{% for x in nothing %}{{ x }}{% else %}none{% endfor %} {{ nothing|length }} {{ nothing|list }} {{ 'a' ~ nothing }}",
    "{{ {}.missing }}| {{ none.thing }}| {{ [].first }}| {{ 'abc'.nope is defined }} {{ [1][5] }}| {{ {}['k'] is undefined }}",
    "{{ nothing.attr }}", "{{ nothing + 1 }}", "{{ nothing < 1 }}", "{{ nothing() }}", "{{ {}.a.b }}", "{{ nothing|tojson }}",
    "{{ {'items': 1}.items is callable }} {{ {'items': 1}['items'] }} {{ {'get': 2}.get('get') }}",
    "{% if nothing %}a{% else %}b{% endif %} {{ nothing is iterable }} {{ nothing is string }} {{ nothing|upper }}|",
    # Scopes.
    "{% set x = 1 %}{% for i in [1,2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(x=1, y='a') %}{% for i in [1,2,3] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns.y }}{{ ns.z is defined }}",
    "{% if true %}{% set x = 5 %}{% endif %}{{ x }}", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}|",
    "{% set x = 'out' %}{% macro m() %}{{ x }}{% set x = 'in' %}{{ x }}{% endmacro %}{{ m() }}{{ x }}",
    "{% macro m() %}{{ later }}{% endmacro %}{% set later = 'L' %}{{ m() }}", "{% for i in [1] %}{% set q = 1 %}{% endfor %}{{ q is defined }}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }},{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}",
    "{% for i in [1] %}{% macro g() %}{{ i }}{% endmacro %}{{ g() }}{% endfor %}", "{% set a, b = 1, [2] %}{{ a }}{{ b }}",
    "{% set x %}  block {{ 1 + 1 }} {% endset %}[{{ x }}]", "{% set x | trim | upper %}  ab {% endset %}[{{ x }}]",
    "{% set ns = namespace() %}{% set ns.a %}hey{% endset %}{{ ns.a }}", "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a + ns.b }}",
    "{% set x = {} %}{% set x.a = 1 %}", "{% for m in [1,2,3] %}{% set last = m %}{% endfor %}{{ last }}|",
    # Loops.
    "{% for x in 'abc' %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }}{{ ', ' if not loop.last }}{% endfor %}",
    "{% for k in {'a': 1, 'b': 2} %}{{ k }}{% endfor %}", "{% for x in [1,2,3,4] if x is even %}{{ loop.index }}:{{ x }} of {{ loop.length }} {% endfor %}",
    "{% for x in [1,2,3,4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in [] %}a{% else %}empty{% endfor %}", "{% for a, b in [[1, 2], (3, 4)] %}{{ a }}{{ b }} {% endfor %}",
    "{% for x in [1,1,2] %}{{ loop.changed(x) }}{{ loop.cycle('a', 'b') }}{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}",
    "{% for i in [1,2] %}{% for j in [1,2] %}{{ loop.index }}{{ i }}{{ j }} {% endfor %}{{ loop.index }}{% endfor %}",
    "{% for n in [{'v': 1, 'c': [{'v': 2, 'c': []}]}] recursive %}{{ n.v }}@{{ loop.depth }}[{{ loop(n.c) }}]{% endfor %}",
    "{% for x in [3,1,2]|sort %}{{ x }}{% endfor %} {% for x in [1,2,3]|reverse %}{{ x }}{% endfor %}",
    "{% for x in range(3) %}{% for y in range(x) %}{% break %}{% endfor %}{{ x }}{% endfor %}",
    "{% for a, b in [[1]] %}{{ a }}{% endfor %}", "{% for x in none %}{% endfor %}", "{% for x in 5 %}{% endfor %}",
    # Macros.
    "{% macro m(a, b='d', c=a) %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}{{ m() }}",
    "{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, z=4) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}", "{% macro box(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call box('b') %}in{% endcall %}",
    "{% macro each(l) %}{% for i in l %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(x) each([1,2]) %}[{{ x }}]{% endcall %}",
    "{% macro m() %} x {% endmacro %}[{{ m()|trim }}]{{ m() is string }}{{ m.name }}", "{% filter upper %}ab{{ 'c' }}{% endfilter %}",
    "{% macro m(xs) %}{{ xs|join('-') }}{% endmacro %}{{ m(*[[1,2]]) }} {{ m(**{'xs': 'ab'}) }}", "{% generation %}a{% set q = 1 %}{% endgeneration %}{{ q is defined }}",
    # Filters.
    "{{ [1,[2,'é'],{'a':none,'b':true,'c':1.5}]|tojson }}", "{{ {'a':[1,{'b':2}],'c':[],'d':{}}|tojson(indent=2) }}", "{{ {'b':1,'a':2}|tojson(sort_keys=true) }}",
    "{{ 'é<>&\\'\"\\n\\t\\\\\\x01/'|tojson }} {{ 'é😀'|tojson(ensure_ascii=true) }}", "{{ [1,2]|tojson(separators=(',', ':')) }} {{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }}",
    "{{ [1, [2, 3]]|tojson(indent='--') }} {{ (1, 2)|tojson }} {{ 'x'|tojson(indent=4) }} {{ 1e400|tojson }}", "{{ [[], {}, [[]]]|tojson(indent=0) }}",
    "{{ range(2)|tojson }}", "{{ 'ab cd'|title }} {{ 'hELLO wORLD'|capitalize }} {{ 'a-b (c)'|title }} {{ 'é'|upper }} {{ 'straße'|upper }} {{ 'ÀÉ'|lower }}",
    "{{ '  x '|trim }}| {{ 'xxaxx'|trim('x') }} {{ 5|trim }} {{ none|trim }}", "{{ [1,2,3]|join }} {{ [1,2]|join(', ') }} {{ [{'a': 1}, {'a': 2}]|join('|', attribute='a') }} {{ 'abc'|join('.') }}",
    "{{ 'aXbX'|replace('X', '--') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ 'ab'|replace('', '.') }} {{ 12|replace(1, 3) }}",
    "{{ [3,1,2]|sort }} {{ ['b','A','c']|sort }} {{ ['b','A']|sort(case_sensitive=true) }} {{ [1,2,3]|sort(reverse=true) }} {{ [{'n': 2}, {'n': 1}]|sort(attribute='n') }}",
    "{{ [1,2,3]|first }} {{ [1,2,3]|last }} {{ 'abc'|first }} {{ []|first }}| {{ {'a': 1}|first }} {{ [1,2]|max }} {{ ['b','A']|min }}",
    "{{ [{'a': 1, 'r': 'u'}, {'a': 2, 'r': 'v'}]|selectattr('r', 'equalto', 'u')|list }} {{ [{'a': 0}, {'a': 2}]|selectattr('a')|map(attribute='a')|list }}",
    "{{ [1,2,3,4]|select('odd')|list }} {{ [1,2,3,4]|reject('odd')|list }} {{ [0,1,'']|select|list }} {{ [{'a': 1}, {}]|rejectattr('a', 'defined')|list }}",
    "{{ ['a','b']|map('upper')|join }} {{ [{'x': {'y': 1}}]|map(attribute='x.y')|list }} {{ [{'x': 1}, {}]|map(attribute='x', default=0)|list }} {{ [[1,2],[3]]|map('first')|list }}",
    "{{ ['1', '2']|map('int')|sum }} {{ [1,2.5]|sum }} {{ [{'a': 2}, {'a': 3}]|sum(attribute='a') }} {{ [1,1,2]|unique|list }} {{ none|map('upper')|list }}",
    "{{ '42'|int }} {{ '4.7'|int }} {{ 'x'|int }} {{ 'x'|int(7) }} {{ 3.9|int }} {{ '0x1f'|int(base=16) }} {{ ' 12_3 '|int }} {{ '1.5'|float }} {{ 'y'|float }} {{ 2|float }} {{ none|int }}",
    "{{ 2.5|round }} {{ 3.5|round }} {{ 2.675|round(2) }} {{ 7|round }} {{ 1.21|round(1, 'ceil') }} {{ 1.29|round(1, 'floor') }} {{ -3|abs }} {{ -2.5|abs }}",
    "{{ {'b': 1, 'a': 2}|dictsort }} {{ {'b': 1, 'a': 2}|dictsort(by='value') }} {{ {'a': 1}|items|list }} {{ {'a': 1}|list }} {{ 'ab'|list }}",
    "{{ 'a\\nb\\n\\nc'|indent }}| {{ 'a\\nb'|indent(2, true) }}| {{ 'a\\n\\nb'|indent(1, blank=true) }}| {{ 'a\\nb'|indent('> ') }}",
    "{{ '%s is %d or %.2f or %5s|%-5s|%05d %%' | format('x', 3, 2.5, 'r', 'l', 42) }} {{ '%s' % 'a' }} {{ '%s-%s' % (1, 2) }} {{ '%(k)s' % {'k': 'v'} }} {{ '%r %x' % ('q', 255) }}",
    "{{ 'hello big world'|truncate(11) }} {{ 'hello big world'|truncate(8, true) }} {{ 'foo bar baz'|wordcount }} {{ 'a b&c'|urlencode }} {{ '<a href=\"x\">'|e }} {{ 'x'|center(5) }}|",
    "{{ [1,2,3,4,5]|batch(2)|list }} {{ [1,2,3]|batch(2, 0)|list }} {{ 'abc'|reverse }} {{ [1,2,3]|reverse|list }} {{ 'abc'|length }} {{ 'é😀'|length }} {{ {'a':1}|count }}",
    "{{ [{'t': 'x', 'v': 1}, {'t': 'y', 'v': 2}, {'t': 'x', 'v': 3}]|groupby('t')|list|length }} {% for k, l in [{'t': 2}, {'t': 1}]|groupby('t') %}{{ k }}{{ l }}{% endfor %}",
    "{{ 1|string + 'a' }} {{ 'x'|safe }} {{ 5|default(1) }} {{ 'a'|attr('upper') is defined }} {{ {'a': 1}|attr('a') is defined }} {{ [1]|string }}", "{{ 1|nosuchfilter }}",
    "{% if false %}{{ 1|nosuchfilter }}{% endif %}ok", "{{ 1 is nosuchtest }}", "{{ 'x' if true else 1|nosuchfilter }}", "{{ none|length }}", "{{ [1,'a']|sort }}", "{{ 'a'|sum }}",
    # Methods.
    "{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a b c'.split(' ', 1) }} {{ 'a b c'.rsplit(' ', 1) }} {{ 'a b c'.rsplit(maxsplit=1) }} {{ ''.split() }} {{ ''.split(',') }}",
    "{{ ' x '.strip() }}| {{ 'xyx'.strip('x') }} {{ ' x'.lstrip() }} {{ 'x '.rstrip() }}| {{ '\\n\\nx\\n'.strip('\\n') }} {{ 'abcba'.strip('ab') }}",
    "{{ 'Hello'.upper() }} {{ 'Hello'.lower() }} {{ 'hello world'.title() }} {{ \"they're\".title() }} {{ 'hELLO'.capitalize() }} {{ 'aB'.swapcase() }}",
    "{{ 'hello'.startswith('he') }} {{ 'hello'.endswith(('x', 'lo')) }} {{ 'hello'.find('l') }} {{ 'hello'.rfind('l') }} {{ 'hello'.find('z') }} {{ 'hello'.index('e') }} {{ 'hello'.count('l') }} {{ 'éa'.find('a') }}",
    "{{ 'hello'.replace('l', 'L') }} {{ 'hello'.replace('l', 'L', 1) }} {{ ','.join(['a', 'b']) }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'x'.partition('=') }}",
    "{{ 'pre-x'.removeprefix('pre-') }} {{ 'x.py'.removesuffix('.py') }} {{ '5'.zfill(3) }} {{ '-5'.zfill(4) }} {{ 'a'.ljust(3, '.') }} {{ 'a'.rjust(3) }} {{ 'ab'.center(5, '*') }} {{ 'abc'.center(6, '*') }}",
    "{{ 'abc'.isalpha() }} {{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }} {{ 'AB'.isupper() }} {{ 'ab'.islower() }} {{ ''.isalpha() }} {{ 'Ab Cd'.istitle() }} {{ '½'.isnumeric() }}",
    "{{ 'a\\nb\\r\\nc'.splitlines() }} {{ 'a\\n'.splitlines(true) }} {{ 'a\\tb'.expandtabs(4) }} {{ 'abc'.index('z') }}", "{{ '{} {1}'.format(1, 2) }}",
    "{{ '{0}-{1}-{name}'.format('a', 2, name='n') }} {{ '{:>5}|{:<5}|{:^5}|{:05d}|{:.2f}|{:,}|{:x}|{!r}'.format('a', 'b', 'c', 42, 3.14159, 1234567, 255, 'q') }} {{ '{{}}'.format() }}",
    "{{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 2) }} {{ {'a': 1}.keys()|list }} {{ {'a': 1}.values()|list }} {{ {'a': {'b': 1}}.copy() }}",
    "{{ [1,2,1].count(1) }} {{ [1,2].index(2) }} {{ [1].append(2) }}", "{{ [1].append is defined }} {{ {'a': 1}.pop is defined }}", "{{ {}.update({'a': 1}) }}", "{{ ''.__class__ }}|{{ ''.__class__ is defined }}",
    "{{ ''.__class__.__mro__ }}", "{{ ' '.join([1]) }}", "{{ 'a'.split('') }}", "{{ 'abc'.upper(1) }}", "{{ 5.nope }}|", "{{ none.x.y }}", "{{ 'x'() }}",
    # Tests.
    "{{ 1 is number }} {{ true is number }} {{ true is integer }} {{ true is boolean }} {{ 1.0 is float }} {{ 'a' is string }} {{ [] is sequence }} {{ {} is mapping }} {{ {} is iterable }} {{ 1 is iterable }} {{ none is none }}",
    "{{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 1 is eq 1 }} {{ 2 is gt 1 }} {{ 1 is in [1] }} {{ 'a' is lower }} {{ 'A' is upper }} {{ 1 is ne(2) }} {{ 2 is ge 2 }} {{ 1 is lessthan 2 }}",
    "{{ 'upper' is filter }} {{ 'odd' is test }} {{ none is not none }} {{ not none is none }} {{ 1 is not defined }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ range is callable }}",
    "{{ 'a' is string and 1 is number }} {{ x is defined and x.y or 'z' }} {{ 1 is eq 1 if true else 2 }}", "{{ 'abc' is sequence }} {{ range(2) is sequence }} {{ {}.items() is sequence }} {{ {}.items() is iterable }}",
    # Functions and errors.
    "{{ strftime_now('%Y-%m-%d %H:%M:%S') }} {{ strftime_now('%d %b %Y, %A %j %%') }}", "{{ raise_exception('no such luck') }}", "{{ dict(a=1, b=2) }} {{ dict([('x', 1)]) }} {{ dict({'a': 1}, b=2) }}",
    "{{ range(200000) }}", "{{ 1 / 0 }}", "{{ 1 % 0 }}", "{{ 'a' + 1 }}", "{{ 1 + 'a' }}", "{{ [] + {} }}", "{{ 'a' < 1 }}", "{{ 1 in 1 }}", "{{ 1 in 'a' }}", "{{ {[]: 1} }}", "{{ -'a' }}",
    "{% if %}", "{% endif %}", "{{ 1 + }}", "{{ (1 }}", "{{ 'abc }}", "{% for x %}{% endfor %}", "{% set = 1 %}", "{{ a b }}", "{# open", "{% raw %}", "{% if 1 %}", "{{ ) }}", "{% nosuchtag %}", "{{ 1 is defined is defined }}",
    "{% break %}", "{% macro m(a=1, b) %}{% endmacro %}", "{{ f(a=1, 2) }}", "{% set 1 = 2 %}", "{{ [1, 2 }}", "{{ {'a' 1} }}", "{{ @ }}", "{{ x.1y }}", "{% for x in [1] %}{% else %}{% else %}{% endfor %}", "{{}}", "{{ 'a' if }}",
    "{{ 007 }}", "{{ 1.e5 }}", "{{ 'a'|upper|lower|title }} {{ -1|abs }} {{ 'a' ~ 'b'|upper }} {{ (1, 2,) }} {{ [1, 2,] }} {{ {'a': 1,} }}", "{{ 1, 2 }}", "{% print 1, 'a' %}", "{% if 1: %}a{% endif %}",
]


def cases():
    for path in sorted((FOLDER / "templates").glob("*.jinja")):
        for name, messages in CONVERSATIONS.items():
            for v, variables in enumerate(VARIABLES):
                for tools in (None, [TOOL, PING]) if v == 0 else (None,):
                    for prompt in (True, False) if v == 0 else (True,):
                        yield {"name": f"{path.stem}, {name}, variables {v}" + (", tools" if tools else "")
                                       + ("" if prompt else ", no prompt"),
                               "file": path.name, "messages": messages, "tools": tools, "kwargs": variables,
                               "add_generation_prompt": prompt}
    for i, snippet in enumerate(SNIPPETS):
        source, variables = snippet if isinstance(snippet, tuple) else (snippet, {})
        yield {"name": f"snippet {i}: {source[:60]!r}", "template": source, "messages": [], "tools": None,
               "kwargs": variables, "add_generation_prompt": True}


def source_of(case):
    return case["template"] if "template" in case else (FOLDER / "templates" / case["file"]).read_bytes().decode()


COMPILED = {}


def answer(case):
    source = source_of(case)
    try:
        if source not in COMPILED:
            COMPILED[source] = ENV.from_string(source)
        return {"prompt": COMPILED[source].render(
            messages=case["messages"], tools=case["tools"], documents=None,
            add_generation_prompt=case["add_generation_prompt"], **case["kwargs"])}
    except Exception as e:  # whatever Python raises, a template must not get past it
        return {"error": f"{type(e).__name__}: {e}"}


def main():
    path = FOLDER / "cases.json"
    if sys.argv[1:] == ["--check"]:
        recorded = json.loads(path.read_text())["cases"]
        wrong = [c["name"] for c in recorded if ("prompt" in c) != ("prompt" in answer(c))
                 or c.get("prompt") != answer(c).get("prompt")]
        print(f"{len(recorded)} cases, {len(wrong)} differ from jinja2 {jinja2.__version__}", *wrong, sep="\n")
        sys.exit(1 if wrong or not recorded else 0)
    made = [{**case, **answer(case)} for case in cases()]
    head = {"made_by": "tools/make_jinja_goldens.py", "jinja2": jinja2.__version__,
            "python": sys.version.split()[0], "now": NOW.isoformat()}
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in made)
    path.write_text(json.dumps(head)[:-1] + ', "cases": [\n' + lines + "\n]}\n")
    print(f"{len(made)} cases, {sum('error' in c for c in made)} of them errors")


main()
