// A plugin's own version says little: builds of a day share it, and plugins for the CPU say "cpu".
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "runtime/plugin/client.h"
#include "wire/base/digest.h"
#include "wire/base/protobuf.h"
#include "wire/base/text.h"
#include "wire/compiled/cpu.h"

#ifdef __linux__
#include <link.h>
#elif !defined(_WIN32)
#include <dlfcn.h>

#include "wire/tensors/mapped_file.h"
#endif

namespace jaxexp::runtime {
namespace {

std::string digest_of(std::string_view bytes) {
  return wire::hexadecimal(wire::digest({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}));
}

/// The sizes of the parts of a library that nobody changes, and a digest of every sixteenth part of them: reading all
/// of it takes longer than compiling a small function. They are in memory: the file may be another one by now.
class Build {
 public:
  void add(std::span<const std::uint8_t> bytes) {
    constexpr std::size_t step = 1 << 20, part = 1 << 16;
    (text_ += std::to_string(bytes.size())) += " bytes, ";
    for (std::size_t at = 0; at < bytes.size(); at += step)
      digester_.update(bytes.subspan(at, std::min(part, bytes.size() - at)));
    digester_.update(bytes.last(std::min(part, bytes.size())));
  }
  std::string str() const { return text_ + wire::hexadecimal(digester_.digest()); }

 private:
  std::string text_;
  wire::Digester digester_;
};

#ifdef __linux__

std::string build_at(const void* address) {
  struct Search {
    std::uintptr_t address;
    std::optional<Build> build;
  } search{reinterpret_cast<std::uintptr_t>(address), {}};
  const auto visit = [](dl_phdr_info* library, std::size_t, void* data) {
    Search& found = *static_cast<Search*>(data);
    const std::span parts(library->dlpi_phdr, library->dlpi_phnum);
    const auto has_address = [&](const ElfW(Phdr) & part) {
      return part.p_type == PT_LOAD && found.address - (library->dlpi_addr + part.p_vaddr) < part.p_memsz;
    };
    if (std::ranges::none_of(parts, has_address)) return 0;
    found.build.emplace();
    for (const ElfW(Phdr) & part : parts)
      if (part.p_type == PT_LOAD && (part.p_flags & PF_R) != 0 && (part.p_flags & PF_W) == 0)
        found.build->add({reinterpret_cast<const std::uint8_t*>(library->dlpi_addr + part.p_vaddr), part.p_filesz});
    return 1;
  };
  dl_iterate_phdr(visit, &search);
  if (!search.build) throw RunError(RunError::Reason::unsupported, "nothing says which library the plugin is from");
  return search.build->str();
}

#else

std::string build_at([[maybe_unused]] const void* address) {
#ifndef _WIN32
  Dl_info info{};
  if (dladdr(address, &info) != 0 && info.dli_fname) {
    const wire::MappedFile file = wire::MappedFile::named(info.dli_fname, wire::MappedFile::How::mapped);
    Build build;
    build.add(file.bytes());
    return build.str();
  }
#endif
  throw RunError(RunError::Reason::unsupported, "nothing says which library the plugin is from");
}

#endif

/// The digest of a message whose fields come in any order, as maps in messages do; or of what is no message.
std::string digest_of_fields(std::string_view message) {
  const auto fields = wire::protobuf::fields(message);
  if (!fields) return digest_of(message);
  std::vector<std::string> digests;
  for (const wire::protobuf::Field& field : *fields) {
    const bool may_be_message = field.type == wire::protobuf::Field::with_length;
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

}  // namespace

std::vector<std::pair<std::string, std::string>> Client::identity(const Device& device) const {
  std::call_once(is_build_known_, [this] { build_ = build_at(api().table()); });
  std::vector<std::pair<std::string, std::string>> facts = {
      {"plugin", build_},
      {"version of the PJRT C API", api().version()},
      {"platform", platform()},
      {"platform version", platform_version()},
      {"device", device.kind},
      {"processor", wire::cpu_features()},
      {"plugin options", options()},
      {"target", topology(*this)},
  };
  const auto settings = api().settings();
  facts.insert(facts.end(), settings.begin(), settings.end());
  return facts;
}

}  // namespace jaxexp::runtime
