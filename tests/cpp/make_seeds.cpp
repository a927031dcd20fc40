// make_seeds ARTIFACTS MODULES DIMENSIONS FILE...: fills three folders with what fuzz targets begin with. Each artifact is
// written again with a module of a few bytes, once without a trailer and once with one; its own module lies apart.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "rebuild.h"
#include "wire/check.h"
#include "wire/error.h"
#include "wire/verify.h"

int main(int argc, char** argv) try {
  using namespace jaxexp;
  if (argc < 4) return std::fputs("usage: make_seeds ARTIFACTS MODULES DIMENSIONS FILE...\n", stderr), 2;
  const std::filesystem::path folder = argv[1];
  const std::filesystem::path modules = argv[2], dimensions = argv[3];
  for (const auto& path : {folder, modules, dimensions}) std::filesystem::create_directories(path);
  int written = 0;
  const auto write_to = [&](const std::filesystem::path& path, const auto& bytes) {
    if (bytes.size() > 1 << 16) return;
    const std::string text(bytes.begin(), bytes.end());
    std::ofstream(path / ("seed_" + std::to_string(written++)), std::ios::binary) << text;
  };
  const auto write = [&](const auto& bytes) { write_to(folder, bytes); };
  std::set<std::string> texts;
  for (int i = 4; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
    const std::vector<std::uint8_t> bytes(text.begin(), text.end());
    try {
      const auto& root = wire::verify(bytes);
      wire::check(root, bytes.size());
      write(tests::rebuild(root, 8));
      const auto& module = *root.mlir_module_serialized();
      write_to(modules, std::string(reinterpret_cast<const char*>(module.data()), module.size()));
      for (const auto* aval : {root.in_avals(), root.unique_avals()})
        for (std::uint32_t k = 0; aval && k < aval->size(); ++k)
          for (std::uint32_t d = 0; aval->Get(k)->shape() && d < aval->Get(k)->shape()->size(); ++d)
            if (texts.insert(aval->Get(k)->shape()->Get(d)->str()).second)
              write_to(dimensions, aval->Get(k)->shape()->Get(d)->str());
      wire::Notes notes{"seed", {{"key", "[1, null]"}, {"other", "\"\""}}, {"mod(b, 8) == 0"}, {}};
      for (const auto* e = &root; e; e = e->vjp()) notes.functions.push_back({{}, {}});
      notes.functions[0].weak_results = {0};
      write(tests::rebuild(root, 8, &notes));
    } catch (const wire::Error&) {
      write(bytes);  // a hostile file is a seed as it is
    }
  }
  std::printf("%d seeds\n", written);
} catch (const std::exception& error) {
  std::fprintf(stderr, "make_seeds: %s\n", error.what());
  return 1;
}
