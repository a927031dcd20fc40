// Makes a module static, and says why where it cannot.
//
//   make_static FILE RESULT SHAPE...      the shapes of the main function's arguments, as in "4,6", or "-" for a scalar
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "jaxexp/run_error.h"
#include "runtime/refine/refine.h"
#include "wire/base/error.h"

using jaxexp::runtime::refine::Shape;

namespace {

Shape shape_of(const std::string& text) {
  Shape shape;
  if (text == "-") return shape;
  for (std::size_t at = 0; at < text.size();) {
    char* end = nullptr;
    shape.push_back(std::strtoll(text.c_str() + at, &end, 10));
    at = static_cast<std::size_t>(end - text.c_str()) + 1;
  }
  return shape;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) return 2;
  std::ifstream file(arguments[1], std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<Shape> shapes;
  for (int i = 3; i < count; ++i) shapes.push_back(shape_of(arguments[i]));
  try {
    const auto found = jaxexp::runtime::refine::with_shapes(
        {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, {nullptr, "module"}, shapes);
    std::ofstream out(arguments[2], std::ios::binary);
    if (found) out.write(reinterpret_cast<const char*>(found->data()), static_cast<std::streamsize>(found->size()));
    if (!found) std::puts("static");
  } catch (const jaxexp::RunError& error) {
    std::puts(error.what());
    return 1;
  } catch (const jaxexp::wire::Error& error) {
    std::printf("%s: expected %s, found %s\n", error.path.c_str(), error.expected.c_str(), error.found.c_str());
    return 1;
  }
  return 0;
}
