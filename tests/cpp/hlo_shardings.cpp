// What is read of a compiled module: for each parameter and result, the sharding as numbers of bytes, a line each.
//
//   hlo_shardings FILE      a serialized xla.HloModuleProto
#include "runtime/plugin/hlo_shardings.h"

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "jaxexp/run_error.h"

int main(int count, char** arguments) {
  if (count != 2) return 2;
  std::ifstream file(arguments[1], std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  try {
    const auto found = jaxexp::runtime::read_hlo_shardings(bytes, "hlo");
    for (const auto* const shardings : {&found.parameters, &found.results})
      for (const std::string& sharding : *shardings) {
        for (const char byte : sharding) std::printf("%02x", static_cast<unsigned char>(byte));
        std::puts("");
      }
  } catch (const jaxexp::RunError& error) {
    std::puts(error.what());
    return 1;
  }
  return 0;
}
