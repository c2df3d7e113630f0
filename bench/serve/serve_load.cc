// SPDX-License-Identifier: Apache-2.0
// Loads `sparrow serve` as many clients do, and measures the server from outside: answers, gaps, memory,
// descriptors, blocks. It starts the servers itself.
//   serve_load [SCENARIO...] [--brief] [--warm-up] [--count N] [--json FILE] [--sparrow PROGRAM]
//              [--model FOLDER] [--server-log FILE] [-- FLAGS OF serve]
// Without scenarios, all of them: streams requests soak idle cancel tenants. On a GPU answers are equal to
// the last character with `-- --batch-invariant` only, and the memory of streams is the server's with
// --warm-up only: a step of a new size is captured as a graph, 55 MB of the driver's for 256 streams.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "base/strf.h"
#include "scenarios.h"

namespace {

using namespace sparrow;
using namespace sparrow::load;

struct Arguments {
  std::vector<Scenario> scenarios;
  LoadOptions options;
  std::string json;
};

[[noreturn]] void usage(const std::string& wrong) {
  std::fprintf(
      stderr,
      "serve_load: %s\nusage: serve_load [streams|requests|soak|idle|cancel|tenants ...] [--brief] "
      "[--warm-up]\n  [--count N] [--json FILE] [--sparrow PROGRAM] [--model FOLDER] [--server-log FILE] [-- "
      "FLAGS OF serve]\n",
      wrong.c_str());
  std::exit(2);
}

Arguments parse(int argc, char** argv) {
  Arguments out;
  out.options.program = std::filesystem::canonical("/proc/self/exe").parent_path().parent_path() / "sparrow";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] {
      return i + 1 < argc ? std::string(argv[++i]) : (usage(word + " needs a value"), "");
    };
    if (word == "--") {
      out.options.flags.assign(argv + i + 1, argv + argc);
      break;
    }
    const auto* found = std::find_if(std::begin(kScenarios), std::end(kScenarios),
                                     [&](const Scenario& scenario) { return word == scenario.name; });
    if (found != std::end(kScenarios))
      out.scenarios.push_back(*found);
    else if (word == "--brief")
      out.options.brief = true;
    else if (word == "--warm-up")
      out.options.warm_up = true;
    else if (word == "--count")
      out.options.count = std::atoi(value().c_str());
    else if (word == "--json")
      out.json = value();
    else if (word == "--sparrow")
      out.options.program = value();
    else if (word == "--model")
      out.options.model = value();
    else if (word == "--server-log")
      out.options.server_log = value();
    else
      usage("unknown word " + word);
  }
  if (out.scenarios.empty()) out.scenarios.assign(std::begin(kScenarios), std::end(kScenarios));
  return out;
}

// A random checkpoint, made where there is none yet.
std::filesystem::path make_model(const std::filesystem::path& program, const std::string& preset,
                                 const std::filesystem::path& folder) {
  const std::filesystem::path model = folder / preset;
  const std::string command = strf("'{}' make-model --preset {} --out '{}' >/dev/null 2>&1", program.string(),
                                   preset, model.string());
  if (std::system(command.c_str()) != 0) usage(strf("{} cannot make a model", program.string()));
  return model;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments = parse(argc, argv);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);

  std::string pattern = (std::filesystem::temp_directory_path() / "serve-load-XXXXXX").string();
  if (!::mkdtemp(pattern.data())) usage("cannot make a folder for models");
  LoadOptions& options = arguments.options;
  options.tiny_model = make_model(options.program, "tiny", pattern);
  if (options.model.empty())
    options.model = options.brief ? options.tiny_model : make_model(options.program, "small", pattern);

  JsonWriter json;
  json.begin_array();
  bool ok = true;
  for (const Scenario& scenario : arguments.scenarios) {
    const Report report = scenario.run(options);
    std::fputs(report.table().c_str(), stdout);
    std::fflush(stdout);
    report.write(json);
    ok = ok && report.ok(/*with_goals=*/!options.brief);
  }
  json.end_array();
  if (!arguments.json.empty()) std::ofstream(arguments.json) << json.take() << '\n';
  std::error_code ignored;
  std::filesystem::remove_all(pattern, ignored);
  return ok ? 0 : 1;
}
