// SPDX-License-Identifier: Apache-2.0
#include "engine/sim/cost_model.h"

#include <algorithm>

#include "base/files/mapped_file.h"
#include "base/json/json.h"
#include "base/json/json_writer.h"
#include "base/json/known_fields.h"
#include "engine/memory/graph_rows.h"

namespace sparrow {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 36;  // so many blocks can be numbered
constexpr double kLongestStepUs = 1e12;            // eleven days: clocks can add some of them

Result<Curve> read_curve(const Json& object) {
  SPARROW_TRY(expect_fields(object, std::vector<std::string>{"at", "us"}));
  Curve curve;
  const auto read = [](const Json& list, std::vector<double>& into) -> Status {
    SPARROW_TRY(list.expect_array());
    for (size_t i = 0; i < list.size(); ++i) into.push_back(SPARROW_TRY(list.element(i).as_number()));
    return Ok{};
  };
  const Json at = SPARROW_TRY(object.at("at")), us = SPARROW_TRY(object.at("us"));
  SPARROW_TRY(read(at, curve.at));
  SPARROW_TRY(read(us, curve.us));
  if (curve.at.size() != curve.us.size() || curve.at.empty())
    return us.error("must be as many numbers as `at` has, and at least one");
  for (size_t i = 1; i < curve.at.size(); ++i)
    if (curve.at[i] <= curve.at[i - 1]) return at.error("must ascend");
  for (const double value : curve.us)
    if (value < 0) return us.error("must not be negative");
  return curve;
}

void write_curve(JsonWriter& out, const Curve& curve) {
  out.begin_object().key("at").begin_array();
  for (const double x : curve.at) out.number(x);
  out.end_array().key("us").begin_array();
  for (const double us : curve.us) out.number(us);
  out.end_array().end_object();
}

}  // namespace

double Curve::operator()(double x) const {
  if (at.empty()) return 0;
  if (at.size() == 1 || x <= at.front()) return us.front();
  const auto above = std::upper_bound(at.begin() + 1, at.end() - 1, x) - at.begin();
  const double share = (x - at[above - 1]) / (at[above] - at[above - 1]);
  const double rise = us[above] - us[above - 1];
  return share > 1 && rise < 0 ? us[above] : us[above - 1] + share * rise;
}

std::array<double, CostModel::kTerms.size()> CostModel::terms_of(const StepShape& shape) {
  return {shape.context,
          shape.selected,
          static_cast<double>(shape.sequences),
          shape.prompt_context,
          shape.pairs,
          shape.selected_pairs,
          static_cast<double>(shape.prompts),
          static_cast<double>(shape.logit_rows)};
}

double CostModel::curve_rows(const StepShape& shape) {
  return static_cast<double>(shape.prompts > 0 ? shape.rows : graph_rows(shape.rows));
}

double CostModel::step_us(const StepShape& shape) const {
  const Curve& curve = shape.prompts > 0 && !prompt_rows.at.empty() ? prompt_rows : rows;
  double us = curve(curve_rows(shape)) + exchanges * exchange(static_cast<double>(shape.rows));
  const auto terms = terms_of(shape);
  for (size_t i = 0; i < terms.size(); ++i) us += us_of[i] * terms[i];
  return std::min(us, kLongestStepUs);
}

Result<CostModel> CostModel::parse(std::string_view json, std::string_view source) {
  const JsonDocument document = SPARROW_TRY(JsonDocument::parse(json, source));
  const Json root = document.root(std::string(source));
  SPARROW_TRY(expect_fields(
      root, std::vector<std::string>{"name", "gpus", "groups", "cache_tokens", "rows", "prompt_rows", "us_of",
                                     "exchange", "exchanges", "host_us"}));
  const auto time_of = [](const Json& object, std::string_view key) -> Result<double> {
    const double us = SPARROW_TRY(object.number_or(key, 0));
    if (us < 0) return object.at(key)->error("must not be negative");
    return us;
  };
  CostModel model;
  model.name = SPARROW_TRY(root.string_or("name", ""));
  model.gpus = static_cast<int>(SPARROW_TRY(root.int_or("gpus", 1, 1, 1 << 20)));
  model.groups = static_cast<int>(SPARROW_TRY(root.int_or("groups", 1, 1, 1 << 10)));
  model.cache_tokens = SPARROW_TRY(root.int_or("cache_tokens", 0, 0, kMostTokens));
  model.rows = SPARROW_TRY(read_curve(SPARROW_TRY(root.at("rows"))));
  if (const auto curve = root.find("prompt_rows")) model.prompt_rows = SPARROW_TRY(read_curve(*curve));
  if (const auto terms = root.find("us_of")) {
    SPARROW_TRY(expect_fields(*terms, std::vector<std::string>(kTerms.begin(), kTerms.end())));
    for (size_t i = 0; i < kTerms.size(); ++i) model.us_of[i] = SPARROW_TRY(time_of(*terms, kTerms[i]));
  }
  model.exchanges = static_cast<int>(SPARROW_TRY(root.int_or("exchanges", 0, 0, 1 << 20)));
  const auto exchange = root.find("exchange");
  if (exchange) model.exchange = SPARROW_TRY(read_curve(*exchange));
  if (exchange && !root.find("exchanges")) return exchange->error("must not stand without exchanges");
  if (!exchange && model.exchanges > 0) return root.at("exchanges")->error("must not stand without exchange");
  model.host_us = SPARROW_TRY(time_of(root, "host_us"));
  return model;
}

Result<CostModel> CostModel::read(const std::filesystem::path& file) {
  const MappedFile mapped = SPARROW_TRY(MappedFile::open(file));
  const auto bytes = mapped.bytes();
  return parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file.string());
}

std::string CostModel::json() const {
  JsonWriter out(JsonWriter::Style::kSpaced);
  out.begin_object().key("name").string(name).key("gpus").integer(gpus).key("groups").integer(groups);
  out.key("cache_tokens").integer(cache_tokens).key("rows");
  write_curve(out, rows);
  if (!prompt_rows.at.empty()) write_curve(out.key("prompt_rows"), prompt_rows);
  out.key("us_of").begin_object();
  for (size_t i = 0; i < kTerms.size(); ++i) out.key(kTerms[i]).number(us_of[i]);
  out.end_object();
  if (!exchange.at.empty()) {
    out.key("exchanges").integer(exchanges).key("exchange");
    write_curve(out, exchange);
  }
  out.key("host_us").number(host_us).end_object();
  return out.take() + "\n";
}

}  // namespace sparrow
