// The words of python/jaxexp/_api/cases/report.py.
#include "runtime/command/check.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "runtime/cases/checked.h"
#include "runtime/cases/machine.h"
#include "runtime/cases/words.h"

namespace jaxexp::command {
namespace {

using runtime::Checked, runtime::Verdict;

constexpr std::array<std::string_view, 4> verdicts = {"equal", "close", "differs", "failed"};
const std::string indented(11, ' ');

bool is_good(const Checked& one) { return one.verdict() <= Verdict::close; }

}  // namespace

Report check(const Runtime& runtime, const Function& function, const Arguments& arguments, const std::string& name) {
  const Cases cases = function.artifact().cases();
  if (cases.all.empty()) return {{name + ": no cases"}, false};
  const runtime::CheckOptions options{arguments.tolerance, arguments.max_drawn_bytes, arguments.stable};
  const std::filesystem::path file = arguments.artifact;
  const auto all = runtime::checked(function, cases, file, options);
  const auto good = static_cast<std::size_t>(std::ranges::count_if(all, is_good));
  Report report{{}, good == all.size()};
  report.lines.push_back(name + ": " + runtime::with_commas(good) + " of " + runtime::counted(all.size(), "case") +
                         " as recorded");
  const auto checked = runtime::environment(runtime);
  runtime::Environment recorded;
  for (const Checked& one : all) {
    std::string verdict(verdicts[static_cast<std::size_t>(one.verdict())]);
    verdict.resize(7, ' ');
    report.lines.push_back("  " + verdict + "  " + one.str());
    for (const std::string& line : one.lines()) report.lines.push_back(indented + line);
    if (is_good(one)) continue;
    recorded = {one.recorded->begin(), one.recorded->end()};
    report.lines.push_back(indented + "recorded with " + runtime::in_short(recorded, checked));
  }
  if (!report.is_good) report.lines.push_back(indented + "checked with " + runtime::in_short(checked, recorded));
  return report;
}

}  // namespace jaxexp::command
