// SPDX-License-Identifier: Apache-2.0
#include "text/synthetic/synthetic_template.h"

namespace sparrow {

std::string_view synthetic_chat_template() {
  // What differs from the released checkpoint's template is its prose; every marker and newline is in its
  // place, so that tests of prompts and of parsers carry over.
  return R"jinja({#- Chat format of MiniMax-M3 for synthetic models. -#}
{%- set mark = ']<]minimax[>[' -%}
{%- set turn = ']~b]' -%}
{%- set end = '[e~[\n' -%}

{#- What a message shows: its text, and a marker for each picture or film. -#}
{%- macro shown(content) -%}
  {%- if content is string -%}
    {{- content -}}
  {%- elif content is iterable and content is not mapping -%}
    {%- for part in content -%}
      {%- if part is string -%}
        {{- part -}}
      {%- elif part is mapping and part.type in ['image', 'video'] -%}
        {{- ']<]' ~ part.type ~ '[>[' -}}
      {%- elif part is mapping and part.type == 'text' -%}
        {{- part.text -}}
      {%- endif -%}
    {%- endfor -%}
  {%- elif content is not none -%}
    {{- content -}}
  {%- endif -%}
{%- endmacro -%}

{#- An argument of a call, spelled out element by element. Null members are left out. -#}
{%- macro argument(value) -%}
  {%- if value is mapping -%}
    {%- for name, member in value.items() if member is not none -%}
      {{- mark ~ '<' ~ name ~ '>' ~ argument(member) ~ mark ~ '</' ~ name ~ '>' -}}
    {%- endfor -%}
  {%- elif value is iterable and value is not string -%}
    {%- for element in value -%}
      {{- mark ~ '<item>' ~ argument(element) ~ mark ~ '</item>' -}}
    {%- endfor -%}
  {%- elif value is boolean -%}
    {{- 'true' if value else 'false' -}}
  {%- elif value is not none -%}
    {{- value -}}
  {%- endif -%}
{%- endmacro -%}

{%- macro invocation(call) -%}
  {{- mark ~ '<invoke name="' ~ call.name ~ '">' ~ argument(call.arguments) ~ mark ~ '</invoke>\n' -}}
{%- endmacro -%}

{%- macro result(content) -%}
  {%- if content is string -%}
    {{- content -}}
  {%- else -%}
    {%- for part in content -%}
      {%- if part is mapping and part.type in ['image', 'video'] -%}
        {{- ']<]' ~ part.type ~ '[>[' -}}
      {%- elif part is mapping and part.output is defined -%}
        {{- part.output -}}
      {%- elif part is mapping and part.type == 'text' and part.text is defined -%}
        {{- part.text -}}
      {%- else -%}
        {{- part -}}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}

{#- Who speaks first: an operator (root), then a developer or system message; both may be absent. -#}
{%- set rest = messages -%}
{%- set operator = none -%}
{%- set developer = none -%}
{%- if rest and rest[0].role == 'root' -%}
  {%- set operator = rest[0] -%}
  {%- set rest = rest[1:] -%}
{%- endif -%}
{%- if rest and rest[0].role in ['system', 'developer'] -%}
  {%- set developer = rest[0] -%}
  {%- set rest = rest[1:] -%}
{%- endif -%}

{{- ']~!b[' ~ turn ~ 'system\n' -}}
{%- if operator and operator.content -%}
  {{- shown(operator.content) -}}
{%- else -%}
  {{- 'This is a small synthetic model with random weights. It was made to test a server, and it knows nothing.' -}}
{%- endif -%}
{{- '\n\n<thinking_instructions>\n' -}}
{{- 'Thoughts stand between <mm:think> and </mm:think>, before the answer. An answer without thoughts starts right after </mm:think>.\n' -}}
{%- set mode = thinking_mode if thinking_mode is defined else 'adaptive' -%}
{%- if mode == 'enabled' -%}
  {{- 'Mode enabled: think before each answer.\n' -}}
{%- elif mode == 'disabled' -%}
  {{- 'Mode disabled: answer without thoughts.\n' -}}
{%- elif mode == 'adaptive' -%}
  {{- 'Mode adaptive: think where it helps.\n' -}}
{%- endif -%}
{{- '</thinking_instructions>' ~ end -}}

{{- turn ~ 'developer\n' -}}
{%- if developer and developer.content -%}
  {{- shown(developer.content) -}}
{%- else -%}
  {{- model_identity if model_identity is defined else 'You answer questions.' -}}
{%- endif -%}
{%- if tools -%}
  {{- '\n\n# Tools\nThese functions can be called. Each is given as JSON with the schema of its parameters:\n\n<tools>\n' -}}
  {%- for tool in tools -%}
    {{- '<tool>' ~ tool.function | tojson ~ '</tool>\n' -}}
  {%- endfor -%}
  {{- '</tools>\n\nCalls stand together in one block, arguments element by element:\n\n' ~ mark ~ '<tool_call>\n' -}}
  {{- invocation({'name': 'first-tool', 'arguments': {'number': 1, 'list': [{'key': 'value'}]}}) -}}
  {{- invocation({'name': 'second-tool', 'arguments': {'text': 'any'}}) -}}
  {{- mark ~ '</tool_call>' -}}
{%- endif -%}
{{- end -}}

{%- set state = namespace(may_answer=false) -%}
{%- for message in rest -%}
  {%- if message.role == 'user' -%}
    {{- turn ~ 'user\n' ~ shown(message.content) ~ end -}}
  {%- elif message.role == 'assistant' -%}
    {%- set content = shown(message.content) -%}
    {%- set thoughts = '' -%}
    {%- if message.reasoning_content is string -%}
      {%- set thoughts = message.reasoning_content -%}
    {%- elif '</mm:think>' in content -%}
      {%- set before = content.split('</mm:think>')[0].strip('\n') -%}
      {%- set thoughts = before.split('<mm:think>')[-1].strip('\n') -%}
      {%- set content = content.split('</mm:think>')[-1].strip('\n') -%}
    {%- endif -%}
    {{- turn ~ 'ai\n' ~ ('<mm:think>' ~ thoughts if thoughts else '') ~ '</mm:think>' ~ content -}}
    {%- set state.may_answer = true if message.tool_calls else false -%}
    {%- if message.tool_calls -%}
      {{- mark ~ '<tool_call>\n' -}}
      {%- for call in message.tool_calls -%}
        {{- invocation(call.function or call) -}}
      {%- endfor -%}
      {{- mark ~ '</tool_call>' -}}
    {%- endif -%}
    {{- end -}}
  {%- elif message.role == 'tool' -%}
    {%- if not state.may_answer -%}
      {{- raise_exception('A tool message must follow an assistant message with tool calls.') -}}
    {%- endif -%}
    {{- turn ~ 'tool' if loop.first or loop.previtem.role != 'tool' -}}
    {{- '\n<response>' ~ result(message.content) ~ '</response>' -}}
    {{- end if loop.last or loop.nextitem.role != 'tool' -}}
  {%- endif -%}
{%- endfor -%}

{%- if add_generation_prompt -%}
  {{- turn ~ 'ai\n' -}}
  {%- if mode == 'enabled' -%}
    {{- '<mm:think>' -}}
  {%- elif mode == 'disabled' -%}
    {{- '</mm:think>' -}}
  {%- endif -%}
{%- endif -%}
)jinja";
}

}  // namespace sparrow
