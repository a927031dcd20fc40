// --check: whether an artifact computes what was recorded in it.
#pragma once

#include <string>
#include <vector>

#include "jaxexp/runtime.h"
#include "runtime/command/arguments.h"

namespace jaxexp::command {

struct Report {
  std::vector<std::string> lines;  // as `jaxexp check` prints them
  bool is_good;                    // whether there are cases, and all results are as recorded
};

/// Makes the calls of the cases of an artifact again. `name` is what the report calls it.
Report check(const Runtime& runtime, const Function& function, const Arguments& arguments, const std::string& name);

}  // namespace jaxexp::command
