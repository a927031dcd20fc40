// Fuzz target: a member of an archive as it is verified, at any address, and with modules that are apart.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "errors.h"
#include "seal.h"
#include "wire/archive/records.h"
#include "wire/archive/verify_member.h"
#include "wire/archive/zip_file.h"
#include "wire/base/digest.h"

namespace {

using namespace jaxexp;
using Bytes = std::vector<std::uint8_t>;

/// What is wrong with a member whose bytes begin at this distance from an aligned address; empty where nothing is.
std::string verified(const wire::ArchiveIndex& index, const Bytes& part, std::size_t shift,
                     const wire::ModuleDigests& modules) {
  const std::unique_ptr<std::uint8_t[]> memory(new std::uint8_t[part.size() + shift]);
  std::memcpy(memory.get() + shift, part.data(), part.size());
  wire::MetadataCache known;
  std::vector<std::uint64_t> aligned;
  try {
    wire::verify_member(index, 0, {memory.get() + shift, part.size()}, modules, known, aligned);
    return "";
  } catch (const wire::Error& error) {
    tests::check_error(error);
    return error.path + "|" + error.expected + "|" + error.found;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes artifact(data, data + size);
  if (artifact.empty()) return 0;
  const auto [metadata, content] = tests::sizes_of(artifact);
  tests::seal(artifact, metadata, content);
  const std::string header = wire::zip_local_header("m", static_cast<std::uint32_t>(size), 0, 0);
  Bytes part(header.begin(), header.end());
  part.insert(part.end(), artifact.begin(), artifact.end());
  for (const bool apart : {false, true}) {
    wire::Member member;
    member.size = member.place.size = static_cast<std::uint32_t>(size);
    member.place.position = member.place.header = static_cast<std::uint16_t>(header.size());
    member.place.apart = apart;
    member.digest = wire::digest(artifact);
    wire::ModuleDigests modules;
    for (std::uint32_t i = 0; i < 1 + size % 3; ++i) {
      member.modules.push_back({header.size() + i, static_cast<std::uint32_t>(size / 2), {}});
      modules[{header.size() + i, static_cast<std::uint32_t>(size / 2)}] = {};
    }
    wire::ArchiveRecords records;
    records.put("m", member);
    const wire::IndexBytes written = records.write("fuzz", part.size());
    const wire::ArchiveIndex index(written.bytes,
                                   std::span(written.bytes).subspan(written.root_position, written.root_size),
                                   written.root_digest, part.size());
    const std::string expected = verified(index, part, 0, modules);
    for (const std::size_t shift : {1u, 4u, 7u})
      tests::require(verified(index, part, shift, modules) == expected, "a member is the same at any address");
  }
  return 0;
}
