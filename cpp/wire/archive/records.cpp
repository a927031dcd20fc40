// Collects what an index will say, and lays it out.
#include "wire/archive/records.h"

#include <algorithm>
#include <stdexcept>

#include "wire/archive/limits.h"
#include "wire/archive/member_name.h"
#include "wire/artifact/stored_digest.h"
#include "wire/base/utf8.h"
#include "wire/exported/limits.h"

namespace jaxexp::wire {
namespace {

void check_text(const Text& text, const char* what, std::size_t most = max_index_text_size) {
  if (text.size() > most)
    throw std::invalid_argument(std::string(what) + " of an archive's member has to be at most " +
                                std::to_string(most) + " bytes, found " + std::to_string(text.size()));
}

}  // namespace

void ArchiveRecords::take(const ArchiveIndex& index) {
  index.check();
  Member::Texts texts;
  for (std::uint32_t i = 0; i < index.size(); ++i) {
    const schema::Member& member = index.member(i);
    const auto place = members_.emplace_hint(members_.end(), member.name()->str(), Member::of(member, texts));
    know(place->first, place->second);
  }
  if (const schema::ArchiveWeights* const weights = index.weights()) weights_.take(*weights);
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

void ArchiveRecords::put(const std::string& name, Member member) {
  check_text(member.summary.fun_name, "the function's name");
  check_text(member.summary.platforms, "the list of platforms", max_index_list_size);
  check_text(member.summary.arguments, "the list of arguments", max_index_list_size);
  check_text(member.summary.results, "the list of results", max_index_list_size);
  check_text(member.summary.writer, "the list of releases", max_index_list_size);
  if (member.summary.jax_version) check_text(*member.summary.jax_version, "the release of JAX", max_index_list_size);
  if (member.metadata) check_text(*member.metadata, "the metadata");
  const auto place = members_.try_emplace(name).first;
  forget(place->first, place->second);
  place->second = std::move(member);
  know(place->first, place->second);
}

void ArchiveRecords::remove(std::string_view name) {
  const auto place = members_.find(name);
  forget(place->first, place->second);
  members_.erase(place);
}

template <class Change>
void ArchiveRecords::change(std::string_view name, const Member& member, const Change& change) {
  const Member::Place& place = member.place;
  if (place.shared)
    change(sharing_, std::pair(place.position, name));
  else
    change(contents_, std::tuple(member.digest, member.size, name));
  for (std::size_t i = 0; i < member.modules.size(); ++i) {
    const Member::Module& module = member.modules[i];
    if (place.apart)
      change(using_, std::pair(module.position, name));
    else if (!place.shared)
      change(modules_, std::tuple(module.digest, module.size, name, i));
  }
}

void ArchiveRecords::know(std::string_view name, const Member& member) {
  change(name, member, [](auto& set, const auto& key) { set.insert(key); });
}

void ArchiveRecords::forget(std::string_view name, const Member& member) {
  change(name, member, [](auto& set, const auto& key) { set.erase(key); });
}

const std::string* ArchiveRecords::of_content(const Digest& digest, std::uint32_t size) const {
  const auto found = contents_.lower_bound({digest, size, {}});
  if (found == contents_.end() || std::get<0>(*found) != digest || std::get<1>(*found) != size) return nullptr;
  return &members_.find(std::get<2>(*found))->first;
}

const Member::Module* ArchiveRecords::module(const Digest& digest, std::uint32_t size) const {
  const auto found = modules_.lower_bound({digest, size, {}, 0});
  if (found == modules_.end() || std::get<0>(*found) != digest || std::get<1>(*found) != size) return nullptr;
  return &members_.find(std::get<2>(*found))->second.modules[std::get<3>(*found)];
}

namespace {

/// The names between two positions, each once, in ascending order.
std::vector<std::string> names_between(const std::set<std::pair<std::uint64_t, std::string_view>>& places,
                                       std::uint64_t begin, std::uint64_t end) {
  std::set<std::string_view> names;
  for (auto place = places.lower_bound({begin, {}}); place != places.end() && place->first < end; ++place)
    names.insert(place->second);
  return {names.begin(), names.end()};
}

}  // namespace

std::vector<std::string> ArchiveRecords::sharing(std::uint64_t position) const {
  return names_between(sharing_, position, position + 1);
}

std::vector<std::string> ArchiveRecords::using_modules(std::uint64_t begin, std::uint64_t end) const {
  return names_between(using_, begin, end);
}

std::vector<ZipMember> ArchiveRecords::files() const {
  std::vector<ZipMember> files;
  for (const auto& [name, member] : members_)
    if (const Member::Place& place = member.place; !place.shared)
      files.push_back({place.apart ? std::string(apart_folder) + name : name, place.size, place.crc32,
                       place.position - place.header});
  append_zip_members(files, weights_.files());
  return files;
}

IndexBytes ArchiveRecords::write(std::string_view writer, std::uint64_t end) const {
  IndexBytes index{};
  std::vector<schema::BlockPlace> places;
  std::string names;
  const auto align = [&] { index.bytes.resize((index.bytes.size() + 7) / 8 * 8); };
  const auto add = [&](std::span<const std::uint8_t> part) {
    const std::size_t position = index.bytes.size();
    if (position + part.size() >= max_buffer_size)
      throw std::length_error("the index of an archive has to be smaller than 2 GiB: shorten names and metadata");
    index.bytes.insert(index.bytes.end(), part.begin(), part.end());
    return std::span(index.bytes).subspan(position);
  };
  const auto part_place = [&](std::span<const std::uint8_t> part) {
    return std::pair(static_cast<std::uint32_t>(index.bytes.size() - part.size()),
                     static_cast<std::uint32_t>(part.size()));
  };

  std::uint32_t number = 0;
  for (auto member = members_.begin(); member != members_.end();) {
    flatbuffers::FlatBufferBuilder fbb(1 << 15);
    const std::string& first_name = member->first;
    const std::uint32_t first = number;
    std::vector<flatbuffers::Offset<schema::Member>> tables;
    for (; member != members_.end() && number - first < members_in_block; ++member, ++number) {
      const Member& m = member->second;
      std::vector<schema::Module> modules;
      for (const Member::Module& module : m.modules)
        modules.emplace_back(module.position, module.size, to_schema(module.digest));
      // Members that follow each other have much in common.
      const auto shared = [&](const std::string& text) { return fbb.CreateSharedString(text); };
      const auto optional = [&](const std::optional<Text>& text) {
        return text ? shared(*text) : flatbuffers::Offset<flatbuffers::String>();
      };
      const auto name = fbb.CreateString(member->first);
      const auto module_vector = fbb.CreateVectorOfStructs(modules);
      const Member::Summary& said = m.summary;
      const auto fun_name = shared(said.fun_name), jax_version = optional(said.jax_version),
                 wrote = shared(said.writer);
      const auto platforms = shared(said.platforms), arguments = shared(said.arguments), results = shared(said.results);
      const auto metadata = optional(m.metadata);
      const auto& [position, size, crc32, header, is_shared, is_apart] = m.place;
      const schema::Place place(position, size, crc32, header, is_shared, is_apart);
      const schema::Digest digest = to_schema(m.digest);
      tables.push_back(schema::CreateMember(fbb, name, &place, &digest, m.size, module_vector, fun_name, jax_version,
                                            wrote, platforms, said.nr_devices, arguments, said.argument_count, results,
                                            said.result_count, metadata, m.own_metadata));
    }
    fbb.Finish(schema::CreateBlock(fbb, fbb.CreateVector(tables)));
    align();
    const auto block = add({fbb.GetBufferPointer(), fbb.GetSize()});
    const auto [position, size] = part_place(block);
    places.emplace_back(to_schema(digest(block)), position, size, first, static_cast<std::uint32_t>(names.size()),
                        static_cast<std::uint32_t>(first_name.size()));
    names += first_name;
  }

  schema::PartPlace weights;
  if (!weights_.empty()) {
    const flatbuffers::DetachedBuffer written = weights_.write();
    align();
    const auto part = add({written.data(), written.size()});
    const auto [position, size] = part_place(part);
    weights = schema::PartPlace(to_schema(digest(part)), position, size);
  }

  flatbuffers::FlatBufferBuilder fbb(1 << 12);
  const auto written_by = fbb.CreateString(writer.data(), writer.size());
  const auto place_vector = fbb.CreateVectorOfStructs(places);
  const auto name_vector = fbb.CreateVector(reinterpret_cast<const std::uint8_t*>(names.data()), names.size());
  fbb.Finish(schema::CreateIndex(fbb, written_by, number, end, place_vector, name_vector,
                                 weights_.empty() ? nullptr : &weights));
  align();
  const auto root = add({fbb.GetBufferPointer(), fbb.GetSize()});
  index.root_position = index.bytes.size() - root.size();
  index.root_size = root.size();
  index.root_digest = digest(root);
  return index;
}

}  // namespace jaxexp::wire
