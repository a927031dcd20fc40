// make_seeds FOLDER FILE...: writes each artifact again with modules of a few bytes, which a fuzzer has no use for.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
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
  for (int i = 2; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
    std::vector<std::uint8_t> bytes(text.begin(), text.end());
    try {
      const auto& root = wire::verify(bytes);
      wire::check(root, bytes.size());
      bytes = tests::rebuild(root, 8);
    } catch (const wire::Error&) {
      // A hostile file is a seed as it is.
    }
    if (bytes.size() > 1 << 16) continue;
    const auto path = folder / ("seed_" + std::to_string(written++));
    std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  std::printf("%d seeds\n", written);
} catch (const std::exception& error) {
  std::fprintf(stderr, "make_seeds: %s\n", error.what());
  return 1;
}
