// Gathering what an index says, and laying it out.
#include "wire/archive/records.h"

#include <algorithm>
#include <stdexcept>

#include "wire/archive/limits.h"
#include "wire/archive/member_name.h"
#include "wire/artifact/stored_digest.h"
#include "wire/base/unaligned.h"
#include "wire/base/utf8.h"
#include "wire/exported/limits.h"

namespace jaxexp::wire {
namespace {

schema::Digest to_struct(const Digest& digest) {
  return schema::Digest(flatbuffers::span<const std::uint8_t, 16>(digest));
}

std::string text(const flatbuffers::String* string) { return string ? string->str() : std::string(); }

std::optional<std::string> optional_text(const flatbuffers::String* string) {
  return string ? std::optional(string->str()) : std::nullopt;
}

void check_text(std::string_view text, const char* what) {
  if (text.size() > max_index_text_size)
    throw std::invalid_argument(std::string(what) + " of an archive's member has to be at most " +
                                std::to_string(max_index_text_size) + " bytes, found " + std::to_string(text.size()));
}

}  // namespace

MemberRecord MemberRecord::of(const schema::Member& member) {
  const schema::Place& place = *member.place();
  MemberRecord record;
  record.position = place.position();
  record.stored_size = place.size();
  record.crc32 = place.crc32();
  record.header = place.header();
  record.shared = place.shared();
  record.apart = place.apart();
  record.digest = stored(*member.digest());
  record.size = member.size();
  for (std::uint32_t i = 0; member.modules() && i < member.modules()->size(); ++i) {
    const schema::Module& module = *member.modules()->Get(i);
    record.modules.push_back({module.position(), module.size(), stored(module.digest())});
  }
  record.fun_name = text(member.fun_name());
  record.jax_version = optional_text(member.jax_version());
  record.writer = text(member.writer());
  record.platforms = text(member.platforms());
  record.arguments = text(member.arguments());
  record.results = text(member.results());
  record.nr_devices = member.nr_devices();
  record.argument_count = member.argument_count();
  record.result_count = member.result_count();
  record.metadata = optional_text(member.metadata());
  record.own_metadata = member.own_metadata();
  return record;
}

void ArchiveRecords::take(const ArchiveIndex& index) {
  index.check();
  for (std::uint32_t i = 0; i < index.size(); ++i) {
    const schema::Member& member = index.member(i);
    const auto place = members_.emplace_hint(members_.end(), member.name()->str(), MemberRecord::of(member));
    know(place->first, place->second);
  }
}

void ArchiveRecords::check_name(std::string_view name) const {
  if (const std::string wrong = wrong_with_name(name); !wrong.empty()) throw std::invalid_argument(wrong);
  if (members_.contains(name)) throw std::invalid_argument("the archive has a member of this name; remove it first");
  // No tool could extract both a file and a folder of one name.
  for (std::size_t slash = name.find('/'); slash != std::string_view::npos; slash = name.find('/', slash + 1))
    if (members_.contains(name.substr(0, slash)))
      throw std::invalid_argument("the archive has a member '" + std::string(name.substr(0, slash)) +
                                  "', which cannot be a folder, too");
  const std::string folder = std::string(name) + '/';
  if (const auto next = members_.lower_bound(folder); next != members_.end() && next->first.starts_with(folder))
    throw std::invalid_argument("the archive has a member '" + next->first +
                                "', whose folder would have this name, too");
  if (members_.size() >= max_members)
    throw std::invalid_argument("an archive has at most " + std::to_string(max_members) + " members");
}

void ArchiveRecords::put(const std::string& name, MemberRecord record) {
  check_text(record.fun_name, "the function's name");
  check_text(record.platforms, "the list of platforms");
  if (record.metadata) check_text(*record.metadata, "the metadata");
  MemberRecord& known = members_[name];
  known = std::move(record);
  know(name, known);
}

void ArchiveRecords::remove(std::string_view name) { members_.erase(members_.find(name)); }

void ArchiveRecords::know(const std::string& name, const MemberRecord& record) {
  if (record.shared) return;
  contents_.emplace(record.digest, name);
  if (record.apart) return;
  for (std::size_t i = 0; i < record.modules.size(); ++i)
    modules_.emplace(record.modules[i].digest, std::pair(name, i));
}

const std::string* ArchiveRecords::of_content(const Digest& digest, std::uint32_t size) const {
  const auto [first, last] = contents_.equal_range(digest);
  for (auto found = first; found != last; ++found) {
    const auto member = members_.find(found->second);
    if (member == members_.end() || member->second.shared) continue;
    if (member->second.digest == digest && member->second.size == size) return &member->first;
  }
  return nullptr;
}

const MemberRecord::Module* ArchiveRecords::module(const Digest& digest, std::uint32_t size) const {
  const auto [first, last] = modules_.equal_range(digest);
  for (auto found = first; found != last; ++found) {
    const auto& [name, number] = found->second;
    const auto member = members_.find(name);
    if (member == members_.end() || member->second.shared || member->second.apart) continue;
    if (number >= member->second.modules.size()) continue;
    const MemberRecord::Module& module = member->second.modules[number];
    if (module.digest == digest && module.size == size) return &module;
  }
  return nullptr;
}

std::size_t ArchiveRecords::DigestHash::operator()(const Digest& digest) const {
  return load<std::size_t>(digest.data());
}

std::vector<ZipMember> ArchiveRecords::files() const {
  std::vector<ZipMember> files;
  for (const auto& [name, record] : members_)
    if (!record.shared)
      files.push_back({record.apart ? std::string(apart_folder) + name : name, record.stored_size, record.crc32,
                       record.position - record.header});
  return files;
}

IndexBytes ArchiveRecords::write(std::string_view writer, std::uint64_t end) const {
  IndexBytes index{};
  std::vector<schema::BlockPlace> places;
  std::string names;
  const auto align = [&] { index.bytes.resize((index.bytes.size() + 7) / 8 * 8); };
  const auto add = [&](const flatbuffers::FlatBufferBuilder& fbb) {
    const std::size_t position = index.bytes.size();
    if (position + fbb.GetSize() >= max_buffer_size)
      throw std::length_error("the index of an archive has to be smaller than 2 GiB: shorten names and metadata");
    index.bytes.insert(index.bytes.end(), fbb.GetBufferPointer(), fbb.GetBufferPointer() + fbb.GetSize());
    return std::span(index.bytes).subspan(position);
  };

  std::uint32_t number = 0;
  for (auto member = members_.begin(); member != members_.end();) {
    flatbuffers::FlatBufferBuilder fbb(1 << 15);
    const std::string& first_name = member->first;
    const std::uint32_t first = number;
    std::vector<flatbuffers::Offset<schema::Member>> tables;
    for (; member != members_.end() && number - first < members_in_block; ++member, ++number) {
      const MemberRecord& m = member->second;
      std::vector<schema::Module> modules;
      for (const MemberRecord::Module& module : m.modules)
        modules.emplace_back(module.position, module.size, to_struct(module.digest));
      // Members that follow each other have much in common.
      const auto shared = [&](const std::string& text) { return fbb.CreateSharedString(text); };
      const auto optional = [&](const std::optional<std::string>& text) {
        return text ? shared(*text) : flatbuffers::Offset<flatbuffers::String>();
      };
      const auto name = fbb.CreateString(member->first);
      const auto module_vector = fbb.CreateVectorOfStructs(modules);
      const auto fun_name = shared(m.fun_name), jax_version = optional(m.jax_version), wrote = shared(m.writer);
      const auto platforms = shared(m.platforms), arguments = shared(m.arguments), results = shared(m.results);
      const auto metadata = optional(m.metadata);
      const schema::Place place(m.position, m.stored_size, m.crc32, m.header, m.shared, m.apart);
      const schema::Digest digest = to_struct(m.digest);
      tables.push_back(schema::CreateMember(fbb, name, &place, &digest, m.size, module_vector, fun_name, jax_version,
                                            wrote, platforms, m.nr_devices, arguments, m.argument_count, results,
                                            m.result_count, metadata, m.own_metadata));
    }
    fbb.Finish(schema::CreateBlock(fbb, fbb.CreateVector(tables)));
    align();
    const auto block = add(fbb);
    places.emplace_back(to_struct(digest(block)), static_cast<std::uint32_t>(index.bytes.size() - block.size()),
                        static_cast<std::uint32_t>(block.size()), first, static_cast<std::uint32_t>(names.size()),
                        static_cast<std::uint32_t>(first_name.size()));
    names += first_name;
  }

  flatbuffers::FlatBufferBuilder fbb(1 << 12);
  const auto written_by = fbb.CreateString(writer.data(), writer.size());
  const auto place_vector = fbb.CreateVectorOfStructs(places);
  const auto name_vector = fbb.CreateVector(reinterpret_cast<const std::uint8_t*>(names.data()), names.size());
  fbb.Finish(schema::CreateIndex(fbb, written_by, number, end, place_vector, name_vector));
  align();
  const auto root = add(fbb);
  index.root_position = index.bytes.size() - root.size();
  index.root_size = root.size();
  index.root_digest = digest(root);
  return index;
}

}  // namespace jaxexp::wire
