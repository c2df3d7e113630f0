// SPDX-License-Identifier: Apache-2.0
// Objects and arrays. Members come in the order in which they are declared, then others; what is optional may
// be left out.
#include <algorithm>

#include "base/strf.h"
#include "text/constraint/automaton.h"
#include "text/constraint/regex/regex.h"
#include "text/constraint/schema/compiler.h"
#include "text/constraint/schema/decimal_range.h"
#include "text/constraint/vocabulary.h"
#include "text/output/tool_markup.h"

namespace sparrow {
namespace {

constexpr size_t kMaxMembers = 1'000, kMaxPatterns = 6;
constexpr int kMaxNameChars = 64;
constexpr int64_t kMaxCounted = 200;  // a count that members of a set of names are held to

int limit_of(const std::optional<int64_t>& count) {
  return count && *count < Grammar::kNoLimit ? static_cast<int>(*count) : Grammar::kNoLimit;
}

std::string tag(std::string_view name) {
  return strf("{}<{}>", kMarkerByte, name);
}

bool allows_all(const Json& schema) {
  return schema.is_bool() ? schema.as_bool().value() : schema.is_object() && schema.size() == 0;
}

// A name that can be a tag, whatever it is.
NodeId any_tag_name(Grammar& grammar) {
  const CodePoints inside =
      CodePoints::not_spaces().without({{0, ' '}, {'<', '<'}, {'>', '>'}, {0x7F, 0x9F}});
  const CodePoints first = inside.without({{'/', '/'}});
  return grammar.sequence({one_of(grammar, first, Spelling::kRaw),
                           grammar.repeat(one_of(grammar, inside, Spelling::kRaw), 0, kMaxNameChars - 1)});
}

// Its closing tag has the name that the opening one turns out to have.
NodeId element_of_any(Grammar& grammar, NodeId name, NodeId value) {
  return grammar.sequence({grammar.literal(strf("{}<", kMarkerByte)), name, grammar.literal(">"), value,
                           grammar.literal(strf("{}</{}", kMarkerByte, kSameNameByte))});
}

// Whether members that are not declared are written in a call: where something is said about them, and where
// nothing is declared.
bool opens(const Facets& facets) {
  bool named = false, said = false;
  for (const Facet& facet : facets) {
    const auto properties = member(facet.schema, "properties"),
               patterns = member(facet.schema, "patternProperties"),
               other = member(facet.schema, "additionalProperties");
    named |= properties && properties->size() > 0;
    const bool patterned = patterns && patterns->size() > 0;
    if (!patterned && other && other->is_bool() && !other->as_bool().value()) return false;
    said |= patterned || other;
  }
  return said || !named;
}

}  // namespace

struct SchemaCompiler::Member {
  std::string name;
  bool required;
  NodeId text;  // key and value
};

// Members that are not declared: keys of one kind, and their values.
struct SchemaCompiler::KeyClass {
  NodeId text;
};

// What is said about the member called `name`.
Result<Facets> SchemaCompiler::member_facets(const Facets& facets, const std::string& name) {
  Facets found;
  for (const Facet& facet : facets) {
    bool declared = false;
    if (const auto properties = member(facet.schema, "properties"); properties && member(*properties, name)) {
      found.push_back(part_of(facet, "properties", name));
      declared = true;
    }
    if (const auto patterns = member(facet.schema, "patternProperties"))
      for (size_t i = 0; i < patterns->size(); ++i)
        if (SPARROW_TRY(matches(facet, "patternProperties", std::string(patterns->key(i)), name))) {
          found.push_back(part_of(facet, "patternProperties", patterns->key(i)));
          declared = true;
        }
    if (!declared && member(facet.schema, "additionalProperties"))
      found.push_back(part_of(facet, "additionalProperties"));
  }
  return found;
}

Result<std::vector<SchemaCompiler::Member>> SchemaCompiler::members(const Facets& facets) {
  std::vector<std::string> names;
  std::set<std::string> required, known;
  for (const Facet& facet : facets) {
    const auto properties = member(facet.schema, "properties");
    for (size_t i = 0; properties && i < properties->size(); ++i)
      if (known.insert(std::string(properties->key(i))).second) names.emplace_back(properties->key(i));
  }
  for (const Facet& facet : facets) {
    const auto list = member(facet.schema, "required");
    if (list && !list->is_array()) return refuse(facet, "required", "is no list");
    for (size_t i = 0; list && i < list->size(); ++i) {
      const std::string name(list->element(i).string_view());
      required.insert(name);
      if (known.insert(name).second) names.push_back(name);
    }
  }
  if (names.size() > kMaxMembers)
    return refuse(facets[0], "properties", strf("has more than {} members", kMaxMembers));
  std::vector<Member> result;
  for (const std::string& name : names) {
    const bool allowed = SPARROW_TRY(allows_name(facets, name));
    const Facets said = SPARROW_TRY(member_facets(facets, name));
    const NodeId value = SPARROW_TRY(this->value(said));
    if (required.contains(name) && unfit_.empty() && (!allowed || value == g_.nothing()))
      unfit_ = !allowed || said.empty() ? below(facets[0].pointer, "required") : said[0].pointer;
    if (required.contains(name) && style_ == ValueStyle::kToolCall && !can_be_tag(name))
      return refuse(facets[0], "required",
                    strf("names {}, and no element of a call can be called so", excerpt(name, 60)));
    NodeId text = g_.nothing();
    if (allowed && style_ == ValueStyle::kJson)
      text = g_.sequence({g_.literal(json_quoted(name) + ":"), space_, value});
    else if (allowed && can_be_tag(name))
      text = g_.sequence({g_.literal(tag(name)), value, g_.literal(tag("/" + name))});
    result.push_back({name, required.contains(name), text});
  }
  return result;
}

// Names that no member has, by the patterns that they match: one class of them for each set of patterns.
Result<std::vector<SchemaCompiler::KeyClass>> SchemaCompiler::other_members(
    const Facets& facets, const std::vector<Member>& named) {
  struct NamePattern {
    const Facet* facet;
    std::string text;
    NodeId node;
  };
  std::vector<NamePattern> patterns;
  std::vector<NodeId> wanted{}, names;
  for (const Facet& facet : facets) {
    if (const auto own = member(facet.schema, "propertyNames"); own && !allows_all(*own)) {
      Facet name = part_of(facet, "propertyNames");
      name.role = Role::kName;
      wanted.push_back(SPARROW_TRY(value({name})));
      if (wanted.back() == g_.nothing()) return std::vector<KeyClass>{};
    }
    const auto own = member(facet.schema, "patternProperties");
    for (size_t i = 0; own && i < own->size(); ++i) {
      const std::string pattern(own->key(i));
      auto node = add_regex(g_, pattern, {.spelling = spelling_, .search = true});
      if (!node.ok())
        return refuse(facet, "patternProperties", strf("cannot be read: {}", node.error().message));
      patterns.push_back({&facet, pattern, node.value()});
    }
  }
  if (patterns.size() > kMaxPatterns)
    return refuse(*patterns[0].facet, "patternProperties", "has too many patterns");
  std::vector<std::string> spelled_names;
  for (const Member& one : named) spelled_names.push_back(spelled(one.name, spelling_));
  const NodeId any_name =
      style_ == ValueStyle::kJson ? g_.repeat(one_of(g_, CodePoints::all(), spelling_), 0) : any_tag_name(g_);
  std::vector<KeyClass> result;
  for (unsigned set = 0; set < 1u << patterns.size(); ++set) {
    std::vector<NodeId> parts = wanted, none_of{g_.words(spelled_names)};
    Facets inner;
    for (const Facet& facet : facets) {
      bool matched = false;
      for (size_t i = 0; i < patterns.size(); ++i)
        if (patterns[i].facet == &facet && (set >> i & 1)) {
          inner.push_back(part_of(facet, "patternProperties", patterns[i].text));
          matched = true;
        }
      if (!matched && member(facet.schema, "additionalProperties"))
        inner.push_back(part_of(facet, "additionalProperties"));
    }
    for (size_t i = 0; i < patterns.size(); ++i) (set >> i & 1 ? parts : none_of).push_back(patterns[i].node);
    const NodeId value = SPARROW_TRY(this->value(inner));
    if (value == g_.nothing()) continue;
    if (parts.empty() || style_ == ValueStyle::kToolCall) parts.push_back(any_name);
    const NodeId key = g_.both(std::move(parts), std::move(none_of));
    if (style_ == ValueStyle::kJson)
      result.push_back({g_.sequence({g_.literal("\""), key, g_.literal("\":"), space_, value})});
    else
      result.push_back({element_of_any(g_, key, value)});
  }
  return result;
}

Result<bool> SchemaCompiler::allows_name(const Facets& facets, const std::string& name) {
  for (const Facet& facet : facets)
    if (member(facet.schema, "propertyNames")) {
      const auto document = JsonDocument::parse(json_quoted(name), "name");
      if (!SPARROW_TRY(fits(document.value().root(), {part_of(facet, "propertyNames")}, 0))) return false;
    }
  return true;
}

// An object whose names are free, or cannot be tags, is written as JSON inside a call, which is read as well:
// so its values keep their types. The arguments themselves cannot be.
Result<std::optional<NodeId>> SchemaCompiler::object_as_json(const Facets& facets) {
  if (style_ == ValueStyle::kJson || role_of(facets) == Role::kArguments) return std::optional<NodeId>();
  bool has_tags = true;
  for (const Facet& facet : facets)
    if (const auto properties = member(facet.schema, "properties"))
      for (size_t i = 0; i < properties->size(); ++i) has_tags &= can_be_tag(properties->key(i));
  if (has_tags && !opens(facets)) return std::optional<NodeId>();
  if (!as_json_) as_json_ = std::make_unique<SchemaCompiler>(g_, document_.root().schema, ValueStyle::kJson);
  const NodeId object = SPARROW_TRY(as_json_->object(facets));
  if (unfit_.empty()) unfit_ = as_json_->unfit_;
  return std::optional(g_.both({object, any_tool_text()}));
}

Result<NodeId> SchemaCompiler::object(const Facets& facets) {
  if (const auto node = SPARROW_TRY(object_as_json(facets))) return *node;
  const std::vector<Member> named = SPARROW_TRY(members(facets));
  const auto min = SPARROW_TRY(largest(facets, "minProperties")),
             max = SPARROW_TRY(smallest(facets, "maxProperties"));
  std::vector<NodeId> kinds;
  const bool json = style_ == ValueStyle::kJson;
  if (json || opens(facets))
    for (const KeyClass& one : SPARROW_TRY(other_members(facets, named))) kinds.push_back(one.text);
  const NodeId other = g_.choice(kinds);
  const auto least = min.value_or(0);
  if (least > kMaxCounted) return refuse(facets[0], "minProperties", "is too large");
  if (other != g_.nothing() && least > static_cast<int64_t>(named.size()) + 1)
    return refuse(facets[0], "minProperties",
                  "asks for several members that are not declared, which may be one and the same");
  const int most = limit_of(max);
  // How many there were matters only up to here.
  const auto cap = static_cast<int>(most < kMaxCounted ? most : std::max<int64_t>(least, 1));
  const NodeId comma = json ? g_.sequence({g_.literal(","), gap_}) : g_.empty();
  const NodeId first = json ? gap_ : g_.empty();
  const NodeId end = json ? g_.sequence({gap_, g_.literal("}")}) : g_.empty();
  const NodeId none = json ? g_.literal("}") : g_.empty();
  std::vector<NodeId> after(cap + 1);  // what may follow the members so far, by how many there are
  for (int count = 0; count <= cap; ++count) {
    // A name that is not declared may come twice, so at most one of them counts towards the least.
    const int64_t lacking = std::max<int64_t>(least - count, 0);
    const int room = most == Grammar::kNoLimit ? most : std::max(most - count, 0);
    if (lacking > 1 || count > most) continue;
    const NodeId more = g_.sequence({comma, other});
    const int fewest = static_cast<int>(lacking);
    if (count > 0) {
      after[count] = g_.sequence({g_.repeat(more, fewest, room), end});
      continue;
    }
    const NodeId some =
        room == 0 ? g_.nothing()
                  : g_.sequence(
                        {first, other, g_.repeat(more, 0, room == Grammar::kNoLimit ? room : room - 1), end});
    after[count] = g_.choice({fewest == 0 ? none : g_.nothing(), some});
  }
  for (size_t i = named.size(); i-- > 0;) {
    if (g_.overflows()) return Error{Errc::kInvalidArgument, "the schema is too large"};
    std::vector<NodeId> before(cap + 1);
    for (int count = 0; count <= cap; ++count) {
      const int next = std::min(count + 1, cap);
      const bool full = most < kMaxCounted && count == most;
      const NodeId taken =
          full ? g_.nothing() : g_.sequence({count > 0 ? comma : first, named[i].text, after[next]});
      before[count] = named[i].required ? taken : g_.choice({taken, after[count]});
    }
    after = std::move(before);
  }
  return g_.sequence({g_.literal(json ? "{" : ""), after[0]});
}

// What is said about the element at `index`.
Result<Facets> SchemaCompiler::item_facets(const Facets& facets, size_t index) {
  Facets found;
  for (const Facet& facet : facets) {
    const auto items = member(facet.schema, "items"), prefix = member(facet.schema, "prefixItems");
    const bool old = items && items->is_array();  // a list, before 2020-12
    const auto list = old ? items : prefix;
    const char* name = old ? "items" : "prefixItems";
    if (list && index < list->size())
      found.push_back(part_of(facet, name, std::to_string(index)));
    else if (old && member(facet.schema, "additionalItems"))
      found.push_back(part_of(facet, "additionalItems"));
    else if (!old && items)
      found.push_back(part_of(facet, "items"));
  }
  return found;
}

Result<NodeId> SchemaCompiler::array(const Facets& facets) {
  const auto min = SPARROW_TRY(largest(facets, "minItems")), max = SPARROW_TRY(smallest(facets, "maxItems"));
  const bool json = style_ == ValueStyle::kJson;
  size_t listed = 0;
  for (const Facet& facet : facets)
    for (const char* name : {"prefixItems", "items"})
      if (const auto list = member(facet.schema, name); list && list->is_array())
        listed = std::max(listed, list->size());
  if (listed > kMaxMembers) return refuse(facets[0], "prefixItems", "lists too many elements");
  const int64_t least = min.value_or(0);
  if (least > Grammar::kNoLimit / 2) return refuse(facets[0], "minItems", "is too large");
  const int most = limit_of(max);
  const NodeId comma = json ? g_.sequence({g_.literal(","), gap_}) : g_.empty();
  const NodeId first = json ? gap_ : g_.empty();
  const NodeId end = json ? g_.sequence({gap_, g_.literal("]")}) : g_.empty();
  const NodeId none = json ? g_.literal("]") : g_.empty();
  const auto element = [&](size_t index) -> Result<NodeId> {
    const NodeId value = SPARROW_TRY(this->value(SPARROW_TRY(item_facets(facets, index))));
    if (json) return value;
    return g_.sequence({g_.literal(tag("item")), value, g_.literal(tag("/item"))});
  };
  // What follows the listed elements.
  const NodeId other = SPARROW_TRY(element(listed));
  const auto size = static_cast<int>(listed);
  const auto fewest = static_cast<int>(std::max<int64_t>(least - size, 0));
  const int room = most == Grammar::kNoLimit ? most : std::max(most - size, 0);
  NodeId after;
  if (least > most) return g_.nothing();
  if (size == 0) {
    const int rest = room == Grammar::kNoLimit ? room : room - 1;
    const NodeId some =
        room == 0 ? g_.nothing()
                  : g_.sequence({first, other,
                                 g_.repeat(g_.sequence({comma, other}), std::max(fewest - 1, 0), rest), end});
    after = g_.choice({fewest == 0 ? none : g_.nothing(), some});
  } else {
    after = g_.sequence({g_.repeat(g_.sequence({comma, other}), fewest, room), end});
  }
  for (int i = size; i-- > 0;) {
    const NodeId taken =
        i >= most ? g_.nothing() : g_.sequence({i > 0 ? comma : first, SPARROW_TRY(element(i)), after});
    after = g_.choice({taken, i >= least ? (i > 0 ? end : none) : g_.nothing()});
  }
  return g_.sequence({g_.literal(json ? "[" : ""), after});
}

NodeId SchemaCompiler::any_object() {
  any_value();
  const NodeId pair = g_.sequence({any_string(), g_.literal(":"), space_, g_.rule(any_rule_)});
  const NodeId more = g_.repeat(g_.sequence({g_.literal(","), gap_, pair}), 0);
  return g_.sequence({g_.literal("{"),
                      g_.choice({g_.literal("}"), g_.sequence({gap_, pair, more, gap_, g_.literal("}")})})});
}

NodeId add_elements(Grammar& grammar) {
  const int inside = grammar.add_rule("elements");
  const NodeId text = add_text_without(grammar, kToolMarker);
  const NodeId element = element_of_any(grammar, any_tag_name(grammar), grammar.rule(inside));
  grammar.define(inside, grammar.sequence({text, grammar.repeat(grammar.sequence({element, text}), 0)}));
  return grammar.repeat(element, 0);
}

NodeId SchemaCompiler::any_value() {
  if (style_ == ValueStyle::kToolCall) return any_tool_text();
  if (any_rule_ >= 0) return g_.rule(any_rule_);
  any_rule_ = g_.add_rule("any value");
  const NodeId any = g_.rule(any_rule_);
  const NodeId more = g_.repeat(g_.sequence({g_.literal(","), gap_, any}), 0);
  const NodeId array = g_.sequence(
      {g_.literal("["), g_.choice({g_.literal("]"), g_.sequence({gap_, any, more, gap_, g_.literal("]")})})});
  const NodeId number = add_number(g_, {});
  g_.define(any_rule_,
            g_.choice({g_.words({"null", "true", "false"}), number, any_string(), array, any_object()}));
  return any;
}

}  // namespace sparrow
