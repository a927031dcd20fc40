// Fuzz target: the index of an archive, read as it is and with digests that are right: what it says is consistent, and
// written again it says the same.
#include <algorithm>
#include <string>
#include <vector>

#include "errors.h"
#include "index.h"
#include "wire/archive/index.h"
#include "wire/archive/member.h"
#include "wire/archive/records.h"
#include "wire/archive/weights.h"
#include "wire/archive/zip_file.h"
#include "wire/artifact/layout.h"

namespace {

using namespace jaxexp;
using Bytes = std::vector<std::uint8_t>;

/// Members one by one, as a reader looks them up that has not checked the whole index.
void look_up(const wire::ArchiveIndex& index) {
  for (const std::uint32_t number : {0u, index.size() / 2, index.size() - 1, index.size()}) {
    try {
      const auto& member = index.member(number);
      tests::require(number < index.size(), "there is such a member");
      tests::require(wire::wrong_with_name(member.name()->string_view()).empty(), "a name is one");
      static_cast<void>(index.find(member.name()->string_view()));
    } catch (const wire::Error& error) {
      tests::check_error(error);
    }
  }
  for (const char* name : {"", "a", "m/1", "zz"}) {
    try {
      if (const auto number = index.find(name))
        tests::require(index.member(*number).name()->str() == name, "it is found");
    } catch (const wire::Error& error) {
      tests::check_error(error);
    }
  }
}

/// Everything that an index says which was accepted.
void show(const wire::ArchiveIndex& index, std::uint64_t end) {
  std::string previous;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> own;
  for (std::uint32_t i = 0; i < index.size(); ++i) {
    const auto& member = index.member(i);
    const std::string name = member.name()->str();
    tests::require(i == 0 || previous < name, "names ascend");
    tests::require(wire::wrong_with_name(name).empty() && tests::is_utf8(name), "names are relative paths");
    tests::require(index.find(name) == i, "a member is found by its name");
    previous = name;
    for (const auto* text : {member.fun_name(), member.jax_version(), member.writer(), member.platforms(),
                             member.arguments(), member.results(), member.metadata()})
      if (text) tests::require(tests::is_utf8(text->string_view()), "texts are UTF-8");
    const auto& place = *member.place();
    const std::uint64_t position = place.position();
    tests::require(position % 64 == 0 && position >= place.header() && position + place.size() <= end,
                   "it is in the file");
    if (!place.shared()) own.emplace_back(position - place.header(), position + place.size());
    for (std::uint32_t k = 0; member.modules() && k < member.modules()->size(); ++k)
      tests::require(member.modules()->Get(k)->position() + member.modules()->Get(k)->size() <= end, "a module too");
  }
  if (const auto* weights = index.weights()) {
    for (const wire::schema::WeightsFile& file : wire::files_of(*weights)) {
      tests::require(file.position() % 64 == 0 && file.position() >= file.header() && file.size() <= end &&
                         file.position() <= end - file.size(),
                     "a file of weights is in the file");
      own.emplace_back(file.position() - file.header(), file.position() + file.size());
    }
    for (const wire::schema::WeightsTensor* tensor : *weights->tensors()) {
      tests::require(wire::find_tensor(*weights, wire::stored(tensor->digest())) == tensor, "a tensor is found");
      tests::require(tensor->position() <= end && tensor->size() <= end - tensor->position(), "it is in the file");
    }
  }
  std::ranges::sort(own);
  for (std::size_t i = 1; i < own.size(); ++i)
    tests::require(own[i - 1].second <= own[i].first, "bytes have one owner");
  std::vector<wire::ZipMember> files = index.files(0);
  tests::require(files.size() == own.size(), "each owner is a file");
  tests::require(wire::zip_end(files, end, "comment").size() > 22, "and has a place in the directory");
}

wire::IndexBytes write(const wire::ArchiveIndex& index, std::uint64_t end) {
  wire::ArchiveRecords records;
  records.take(index);
  tests::require(records.size() == index.size() && records.names().size() == index.size(),
                 "all members are taken over");
  return records.write(index.writer(), end);
}

bool read(const Bytes& bytes) {
  const auto buffer = tests::IndexBuffer::find(bytes);
  if (!buffer) return false;
  const std::uint64_t end = buffer->end();
  try {
    const wire::ArchiveIndex index({{buffer->position, buffer->bytes}}, buffer->root_bytes,
                                   wire::digest(buffer->root_bytes), end, buffer->size());
    look_up(index);
    index.check();
    show(index, end);
    const wire::IndexBytes written = write(index, end);
    const wire::ArchiveIndex again(written.bytes,
                                   std::span(written.bytes).subspan(written.root_position, written.root_size),
                                   written.root_digest, end);
    again.check();
    show(again, end);
    tests::require(write(again, end).bytes == written.bytes, "what was written is written again");
    return true;
  } catch (const wire::Error& error) {
    tests::check_error(error);
    return false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, data + size);
  bytes.shrink_to_fit();
  read(bytes);
  tests::seal_index(bytes);
  if (!read(bytes)) return 0;
  // Sealed and read: then each bit of a block counts.
  for (const auto block : tests::IndexBuffer::find(bytes)->blocks()) {
    const auto position = static_cast<std::size_t>(block.data() - bytes.data());
    const std::size_t bit = (position * 31 + size * 17) % (8 * block.size());
    Bytes damaged = bytes;
    damaged[position + bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
    tests::require(!read(damaged), "a changed bit is noticed");
  }
  return 0;
}
