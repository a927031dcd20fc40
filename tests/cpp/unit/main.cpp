// The program of all unit tests: `unit --help` says how to choose some.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <fstream>
#include <iterator>

#include "shared.h"

jaxexp::tests::Bytes jaxexp::tests::golden(const std::string& name) {
  std::ifstream file(JAXEXP_GOLDEN "/" + name, std::ios::binary);
  REQUIRE_MESSAGE(file.good(), name);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  return {bytes.begin(), bytes.end()};
}
