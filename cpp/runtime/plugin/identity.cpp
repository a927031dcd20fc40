// A plugin's own version says little: builds of a day share it, and plugins for the CPU say "cpu".
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "runtime/plugin/client.h"
#include "runtime/plugin/protobuf.h"
#include "wire/base/digest.h"
#include "wire/base/hexadecimal.h"
#include "wire/compiled/cpu.h"

#ifndef _WIN32
#include <dlfcn.h>
#endif

namespace jaxexp::runtime {
namespace {

std::string digest_of(std::string_view bytes) {
  return wire::hexadecimal(wire::digest({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}));
}

/// The size of a library, and a digest of every sixteenth part of it: reading all of it takes longer than compiling a
/// small function.
std::string build_of(const std::string& path) {
  constexpr std::streamoff step = 1 << 20, part = 1 << 16;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file.tellg();
  wire::Digester digester;
  std::vector<char> bytes(part);
  const auto add = [&](std::streamoff at) {
    file.seekg(at);
    file.read(bytes.data(), std::min(part, size - at));
    digester.update({reinterpret_cast<const std::uint8_t*>(bytes.data()), static_cast<std::size_t>(file.gcount())});
  };
  for (std::streamoff at = 0; at < size; at += step) add(at);
  add(std::max<std::streamoff>(size - part, 0));
  if (!file) throw RunError(RunError::Reason::argument, "the plugin " + path + " cannot be read");
  return std::to_string(size) + " bytes, " + wire::hexadecimal(digester.digest());
}

/// The library that an address is in.
std::string library_of(const void* address) {
#ifndef _WIN32
  Dl_info info{};
  if (dladdr(address, &info) != 0 && info.dli_fname) return info.dli_fname;
#else
  static_cast<void>(address);
#endif
  throw RunError(RunError::Reason::unsupported, "nothing says which file the plugin is from");
}

/// The digest of a message whose fields come in any order, as maps in messages do; or of what is no message.
std::string digest_of_fields(std::string_view message) {
  const auto fields = protobuf::fields(message);
  if (!fields) return digest_of(message);
  std::vector<std::string> digests;
  for (const protobuf::Field& field : *fields) {
    const bool may_be_message = field.type == protobuf::Field::with_length;
    digests.push_back(std::to_string(field.number) + ' ' + std::to_string(field.value) + ' ' +
                      (may_be_message ? digest_of_fields(field.bytes) : digest_of(field.bytes)));
  }
  std::ranges::sort(digests);
  std::string all;
  for (const std::string& digest : digests) (all += digest) += '\n';
  return digest_of(all);
}

std::string topology(const Client& client) {
  const Api& api = client.api();
  if (!api.has(&PJRT_Api::PJRT_Client_TopologyDescription) || !api.has(&PJRT_Api::PJRT_TopologyDescription_Serialize))
    return "not said";
  try {
    auto* const topology =
        JAXEXP_PJRT_CALL(api, PJRT_Client_TopologyDescription, "describe its topology", .client = client.get())
            .topology;
    const auto bytes =
        JAXEXP_PJRT_CALL(api, PJRT_TopologyDescription_Serialize, "serialize its topology", .topology = topology);
    const std::string digest = digest_of_fields({bytes.serialized_bytes, bytes.serialized_bytes_size});
    bytes.serialized_topology_deleter(bytes.serialized_topology);
    return digest;
  } catch (const RunError&) {
    return "not said";  // plugins that have the function may still not implement it
  }
}

/// The flags in an environment variable, in alphabetical order.
std::string flags(const char* variable) {
  const char* const value = std::getenv(variable);
  std::istringstream words(value ? value : "");
  std::vector<std::string> sorted{std::istream_iterator<std::string>(words), {}};
  std::ranges::sort(sorted);
  std::string text;
  for (const std::string& word : sorted) (text += text.empty() ? "" : " ") += word;
  return text;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> Client::identity(const Device& device) const {
  return {
      {"plugin", build_of(library_of(api().table()))},
      {"version of the PJRT C API", api().version()},
      {"platform", platform()},
      {"platform version", platform_version()},
      {"device", device.kind},
      {"processor", wire::cpu_features()},
      {"XLA_FLAGS", flags("XLA_FLAGS")},
      {"LIBTPU_INIT_ARGS", flags("LIBTPU_INIT_ARGS")},
      {"plugin options", options()},
      {"target", topology(*this)},
  };
}

}  // namespace jaxexp::runtime
