// --cases: what the recorded calls of an artifact return, for `jaxexp check --results`.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "jaxexp/runtime.h"
#include "runtime/command/arguments.h"

namespace jaxexp::command {

struct Written {
  std::size_t cases, bytes;
  std::vector<std::string> failed;  // a line for each case whose call failed
};

/// Makes the calls of the cases of an artifact again, and writes what they return to the file of --out, in the form
/// that docs/formats/cases.md describes. A call that fails is in the file, too. Without cases there is no file. Throws
/// std::system_error, with the name of the file.
Written write_cases(const Runtime& runtime, const Function& function, const Arguments& arguments);

}  // namespace jaxexp::command
