// The wire format of protocol buffers: https://protobuf.dev/programming-guides/encoding. The messages are those of
// https://github.com/openxla/xla/blob/main/xla/service/hlo.proto and xla/xla_data.proto.
#include "runtime/plugin/hlo_shardings.h"

#include <cstdint>

#include "jaxexp/run_error.h"

namespace jaxexp::runtime {
namespace {

enum HloModule : std::uint64_t { spmd_output_sharding = 12, spmd_parameters_shardings = 14 };
enum OpSharding : std::uint64_t { type = 1, tuple_shardings = 5 };
constexpr std::uint64_t module_with_config_module = 1, tuple = 2;

struct Field {
  std::uint64_t number;
  std::uint64_t value;     // of a varint
  std::string_view bytes;  // of what has a length
};

[[noreturn]] void refuse() {
  throw RunError(RunError::Reason::plugin, "the plugin shows a compiled module that cannot be read");
}

std::vector<Field> fields(std::string_view message) {
  const auto take = [&](std::uint64_t size) {
    if (size > message.size()) refuse();
    const auto taken = message.substr(0, size);
    message.remove_prefix(size);
    return taken;
  };
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<std::uint8_t>(take(1).front());
      value |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    refuse();
  };
  std::vector<Field> found;
  while (!message.empty()) {
    const std::uint64_t tag = varint();
    Field& field = found.emplace_back(Field{tag >> 3, 0, {}});
    switch (tag & 7) {
      case 0: field.value = varint(); break;
      case 1: take(8); break;
      case 2: field.bytes = take(varint()); break;
      case 5: take(4); break;
      default: refuse();
    }
  }
  return found;
}

std::vector<std::string> results_of(std::string_view sharding) {
  std::vector<std::string> parts;
  bool is_tuple = false;
  for (const Field& field : fields(sharding)) {
    if (field.number == type) is_tuple = field.value == tuple;
    if (field.number == tuple_shardings) parts.emplace_back(field.bytes);
  }
  return is_tuple ? parts : std::vector<std::string>{std::string(sharding)};
}

}  // namespace

HloShardings read_hlo_shardings(std::string_view program, std::string_view format) {
  std::string_view module = program;
  if (format == "hlo_with_config") {
    for (const Field& field : fields(program))
      if (field.number == module_with_config_module) module = field.bytes;
  } else if (format != "hlo") {
    throw RunError(RunError::Reason::unsupported,
                   "the plugin shows compiled modules as " + std::string(format) + ", where HLO is expected");
  }
  HloShardings shardings;
  for (const Field& field : fields(module)) {
    if (field.number == spmd_parameters_shardings) shardings.parameters.emplace_back(field.bytes);
    if (field.number == spmd_output_sharding) shardings.results = results_of(field.bytes);
  }
  return shardings;
}

}  // namespace jaxexp::runtime
