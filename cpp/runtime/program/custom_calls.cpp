// No function of the C API tells which custom calls a plugin has. So a module of one call is compiled, and what the
// compiler says about it is read.
#include "runtime/program/custom_calls.h"

#include <algorithm>
#include <string>

#include "runtime/plugin/executable.h"
#include "runtime/program/compile_options.h"

namespace jaxexp::runtime {
namespace {

/// What compilers replace by code of their own, and cannot be asked about: some crash when the operands are others.
constexpr std::string_view own[] = {
    "AllocateBuffer",
    "ApproxTopK",
    "AssumeGatherIndicesInBound",
    "Cholesky",
    "CreateBuffer",
    "Eigh",
    "LuDecomposition",
    "MoveToDevice",
    "MoveToHost",
    "PadToStatic",
    "PartialReduce",
    "Pin",
    "ProductOfElementaryHouseholderReflectors",
    "Qr",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "Sharding",
    "SliceToDynamic",
    "TopK",
    "Unpin",
    "X64Combine",
    "X64SplitHigh",
    "X64SplitLow",
    "annotate_device_placement",
    "shape_assertion",
    "tpu_custom_call",
};
constexpr std::string_view own_prefixes[] = {"__", "chlo.", "mhlo.", "mosaic_gpu", "stablehlo.", "xla.", "local_xla."};

bool is_own(std::string_view target) {
  return std::ranges::find(own, target) != std::end(own) ||
         std::ranges::any_of(own_prefixes, [&](std::string_view prefix) { return target.starts_with(prefix); });
}

/// A name as MLIR writes it.
std::string symbol(std::string_view name) {
  std::string text = "@\"";
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' || c == '.')
      text += c;
    else
      (text += '\\') += {"0123456789ABCDEF"[byte >> 4], "0123456789ABCDEF"[byte & 15]};
  }
  return text + '"';
}

/// Whether the compiler says that there is no such target, of one of the two kinds that there are.
bool is_missing(std::string_view target, std::string_view kind, const std::shared_ptr<const Client>& client) {
  const std::string text = "module { func.func @main() -> tensor<f32> { %0 = stablehlo.custom_call " + symbol(target) +
                           "() {" + std::string(kind) +
                           ", has_side_effect = true} : () -> tensor<f32> return %0 : tensor<f32> } }";
  try {
    const int device = client->devices().front().id;
    const Executable executable(client, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()},
                                compile_options({&device, 1}, false));
    return false;
  } catch (const RunError& error) {
    const std::string_view said = error.what();
    return said.find("No FFI handler registered") != said.npos ||
           said.find("No registered implementation") != said.npos;
  }
}

}  // namespace

std::vector<std::string_view> missing_custom_calls(const std::vector<std::string_view>& targets,
                                                   const std::shared_ptr<const Client>& client) {
  constexpr std::size_t enough = 8;  // each takes a compilation or two
  std::vector<std::string_view> missing;
  for (const std::string_view target : targets) {
    if (missing.size() == enough) break;
    if (!is_own(target) && is_missing(target, "api_version = 4 : i32, backend_config = {}", client) &&
        is_missing(target, "api_version = 2 : i32", client))
      missing.push_back(target);
  }
  return missing;
}

}  // namespace jaxexp::runtime
