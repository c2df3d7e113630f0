// SPDX-License-Identifier: Apache-2.0
// Composition root: the command line picks a command, the command's errors become one line and an exit code.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/files/mapped_fault.h"
#include "cli/commands.h"
#include "cli/terminal/terminal_text.h"

namespace {

using namespace sparrow;

// Bad input of any kind ends with 2.
constexpr int kExitBadInput = 2;

constexpr size_t kMaxErrorBytes = 4000;

Result<int> run(const cli::ServeOptions& options) {
  return cli::run_serve(options);
}
Status run(const cli::ChatOptions& options) {
  return cli::run_chat(options);
}
Result<int> run(const cli::GenerateOptions& options) {
  return cli::run_generate(options);
}
Status run(const cli::TraceOptions& options) {
  return cli::run_trace(options);
}
Status run(const cli::MakeModelOptions& options) {
  return cli::run_make_model(options);
}
Status run(const cli::QuantizeOptions& options) {
  return cli::run_quantize(options);
}
Status run(const cli::BenchEngineOptions& options) {
  return cli::run_bench_engine(options);
}
Status run(const cli::BenchStepOptions& options) {
  return cli::run_bench_step(options);
}
Status run(const cli::SimulateOptions& options) {
  return cli::run_simulate(options);
}
Status run(const cli::TokenizeOptions& options) {
  return cli::run_tokenize(options);
}
Status run(const cli::DebugTextOptions& options) {
  return cli::run_debug_text(options);
}
Result<int> run(const cli::PlanCommandOptions& options) {
  return cli::run_plan(options);
}
Result<int> run(const cli::DoctorOptions& options) {
  return cli::run_doctor(options);
}

// Most commands have one way to succeed; some tell by their exit code what they found.
Result<int> exit_code(const Status& status) {
  if (!status.ok()) return status.error();
  return 0;
}
Result<int> exit_code(const Result<int>& code) {
  return code;
}

// What was printed and could not be written, to a full disk say, is no success.
int exit_code_of_printing(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  std::fprintf(stderr, "sparrow: standard output cannot be written: %s\n", std::strerror(errno));
  return kExitBadInput;
}

}  // namespace

int main(int argc, char** argv) {
  // First of all: a worker has no use for what is set up below.
  if (cli::is_media_worker(argc, argv)) return cli::run_as_media_worker();
  report_mapping_faults(kExitBadInput);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of its writer, like a full disk
  const auto parsed = cli::parse_args(argc, argv);
  if (const int* exit_code = std::get_if<int>(&parsed)) return exit_code_of_printing(*exit_code);
  const Result<int> code =
      std::visit([](const auto& options) { return exit_code(run(options)); }, std::get<cli::Command>(parsed));
  if (code.ok()) return exit_code_of_printing(code.value());
  // Files and servers have their say in messages: terminals must not obey them, and one screen is enough.
  const std::string line = cli::terminal_line(excerpt(code.error().message, kMaxErrorBytes));
  std::fprintf(stderr, "sparrow: %s\n", line.c_str());
  return kExitBadInput;
}
