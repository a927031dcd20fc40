// Fuzz target: any bytes are MLIR bytecode as far as the check looks, or refused with one error that can be shown.
#include <string>

#include "target.h"
#include "wire/bytecode.h"
#include "wire/error.h"

namespace {

using namespace jaxexp;

/// What the check says; empty where it says nothing.
std::string verdict(std::span<const std::uint8_t> module) {
  try {
    wire::check_bytecode(module, {nullptr, "module"});
    return {};
  } catch (const wire::Error& error) {
    for (const std::string& text : {error.path, error.expected, error.found})
      tests::require(!text.empty() && text.size() < 1000 && tests::is_utf8(text), "an error's texts can be shown");
    return error.path + "|" + error.expected + "|" + error.found;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tests::require(verdict({data, size}) == verdict({data, size}), "a second look finds the same");
  return 0;
}
