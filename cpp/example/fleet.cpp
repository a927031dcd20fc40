// Lists the functions of an archive that is mapped into memory. For systems with mmap.
#include <fcntl.h>
#include <jaxexp/archive.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <iostream>
#include <string_view>

int main(int count, char** arguments) {
  if (count != 2) {
    std::cerr << "usage: fleet ARCHIVE\n";
    return 2;
  }
  const int file = open(arguments[1], O_RDONLY);
  struct stat about{};
  if (file < 0 || fstat(file, &about) != 0 || about.st_size == 0) {
    std::cerr << arguments[1] << ": cannot be read\n";
    return 2;
  }
  const auto size = static_cast<std::size_t>(about.st_size);
  const void* const bytes = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (bytes == MAP_FAILED) {
    std::cerr << arguments[1] << ": cannot be mapped\n";
    return 2;
  }
  try {
    const jaxexp::Archive archive({static_cast<const std::uint8_t*>(bytes), size});
    for (std::string_view name : archive.names()) {
      const jaxexp::Artifact artifact = archive.artifact(name);
      std::cout << jaxexp::escaped(name) << ": " << jaxexp::escaped(artifact.function_name()) << '(';
      const char* separator = "";
      for (const jaxexp::Value& value : artifact.arguments()) {
        std::cout << separator << value.str();
        separator = ", ";
      }
      std::cout << "), " << artifact.module().size() << " bytes of StableHLO\n";
    }
  } catch (const jaxexp::DeserializationError& error) {
    std::cerr << arguments[1] << ": " << error.what() << '\n';
    return 1;
  }
}
