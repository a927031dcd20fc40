// Adds records to a file of executables, as the runtime does, until it is killed or has added all.
//
//   append FILE NAME COUNT SIZE      each with so many bytes of code, which are the length of the name
#include <cstdlib>
#include <string>
#include <vector>

#include "target.h"
#include "wire/compiled/records.h"

int main(int argc, char** argv) {
  using namespace jaxexp;
  tests::require(argc == 5, "usage: append FILE NAME COUNT SIZE");
  const std::string name = argv[2];
  const std::vector<std::uint8_t> code(std::strtoull(argv[4], nullptr, 10), static_cast<std::uint8_t>(name.size()));
  for (long left = std::strtol(argv[3], nullptr, 10); left > 0; --left)
    wire::append_executable(argv[1], {{"name", name}}, {{"call", std::string(1000, 'x')}}, code);
}
