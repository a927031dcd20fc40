// make_seeds FOLDER FILE...: writes each artifact again with modules of a few bytes, which a fuzzer has no use for,
// once without a trailer and once with one.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "rebuild.h"
#include "wire/check.h"
#include "wire/error.h"
#include "wire/verify.h"

int main(int argc, char** argv) try {
  using namespace jaxexp;
  if (argc < 2) return std::fputs("usage: make_seeds FOLDER FILE...\n", stderr), 2;
  const std::filesystem::path folder = argv[1];
  std::filesystem::create_directories(folder);
  int written = 0;
  const auto write = [&](const std::vector<std::uint8_t>& bytes) {
    if (bytes.size() > 1 << 16) return;
    const std::string text(bytes.begin(), bytes.end());
    std::ofstream(folder / ("seed_" + std::to_string(written++)), std::ios::binary) << text;
  };
  for (int i = 2; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
    const std::vector<std::uint8_t> bytes(text.begin(), text.end());
    try {
      const auto& root = wire::verify(bytes);
      wire::check(root, bytes.size());
      write(tests::rebuild(root, 8));
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
