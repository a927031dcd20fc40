// Prints what a serialized function takes and returns, and hands its StableHLO on.
#include <jaxexp/artifact.h>

#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string_view>
#include <vector>

namespace {

void print(const char* title, const std::vector<jaxexp::Value>& values) {
  std::cout << title << ":\n";
  for (const jaxexp::Value& value : values) {
    std::cout << "  " << value.str();
    if (value.sharding) std::cout << " over " << value.sharding->str();
    if (!value.op_sharding.empty()) std::cout << " with an xla.OpSharding";
    std::cout << '\n';
  }
}

void print(const char* title, const std::vector<std::string_view>& names) {
  if (names.empty()) return;
  std::cout << title << ':';
  for (std::string_view name : names) std::cout << ' ' << jaxexp::escaped(name);
  std::cout << '\n';
}

void describe(const jaxexp::Artifact& artifact) {
  std::cout << jaxexp::escaped(artifact.function_name()) << ", for " << artifact.nr_devices() << " device(s)\n";
  print("platforms", artifact.platforms());
  print("arguments", artifact.arguments());
  print("results", artifact.results());
  print("ordered effects", artifact.ordered_effects());
  print("unordered effects", artifact.unordered_effects());
  std::cout << "kept arguments: " << artifact.kept_arguments().size() << '\n';
  std::cout << "written by JAX " << jaxexp::escaped(artifact.jax_version().value_or(artifact.writer()))
            << (artifact.has_trailer() ? ", with digests" : "") << '\n';
  int order = 0;
  for (auto vjp = artifact.vjp(); vjp; vjp = vjp->vjp()) ++order;
  std::cout << "VJPs: " << order << '\n';
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::cerr << "usage: signature ARTIFACT [FILE FOR THE MODULE]\n";
    return 2;
  }
  std::ifstream file(arguments[1], std::ios::binary);
  if (!file) {
    std::cerr << arguments[1] << ": cannot be opened\n";
    return 2;
  }
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  try {
    const jaxexp::Artifact artifact({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
    describe(artifact);
    const auto module = artifact.module();
    std::cout << "StableHLO: " << module.size() << " bytes\n";
    if (count > 2) {
      std::ofstream output(arguments[2], std::ios::binary);
      output.write(reinterpret_cast<const char*>(module.data()), static_cast<std::streamsize>(module.size()));
      if (!output.flush()) {
        std::cerr << arguments[2] << ": cannot be written\n";
        return 2;
      }
    }
  } catch (const jaxexp::DeserializationError& error) {
    std::cerr << arguments[1] << ": " << error.what() << '\n';
    return 1;
  }
}
