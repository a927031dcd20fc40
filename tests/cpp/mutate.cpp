// Finds the parts of a flat buffer, damaged or not, by the schema's type tables, and changes them.
#include "mutate.h"

#include <flatbuffers/minireflect.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>
#include <string_view>
#include <vector>

#include "archive_generated.h"
#include "executables.h"
#include "executables_generated.h"
#include "exported_generated.h"
#include "index.h"
#include "seal.h"
#include "trailer_generated.h"
#include "wire/artifact/trailer.h"

namespace jaxexp::tests {
namespace {

using Bytes = std::vector<std::uint8_t>;
using flatbuffers::TypeCode;
using flatbuffers::TypeTable;

constexpr std::size_t most_tables = 1 << 10;  // to look at, of buffers that refer to many

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()() { return next_random(state_); }
  std::size_t below(std::size_t end) { return end == 0 ? 0 : static_cast<std::size_t>((*this)() % end); }
  bool one_in(std::size_t n) { return below(n) == 0; }
  template <class Container>
  const auto& of(const Container& container) {
    return *(std::begin(container) + static_cast<std::ptrdiff_t>(below(std::size(container))));
  }

 private:
  std::uint64_t state_;
};

/// A place in the buffer that has a meaning.
struct Place {
  enum class Kind : std::uint8_t { number, offset, length, text, vtable_entry, vtable_size, vtable_offset } kind;
  std::uint8_t width = 4;
  std::uint32_t at = 0;
  // Of an offset: what it leads to. Of a vtable's offset: the type of the table.
  const TypeTable* type = nullptr;  // null for strings and vectors of numbers
  bool repeating = false;
  bool string = false;
  std::uint8_t element = 0;  // the width of a vector's elements
};

std::uint32_t as32(std::size_t number) { return static_cast<std::uint32_t>(number); }

bool is_struct(const TypeTable& type, const TypeCode& code) {
  return type.type_refs[code.sequence_ref]()->st == flatbuffers::ST_STRUCT;
}

class Parts {
 public:
  Parts(std::span<const std::uint8_t> bytes, const TypeTable* root) : bytes_(bytes) {
    add_offset({Place::Kind::offset, 4, 0, root});
    while (!tables_.empty() && visited_.size() < most_tables) {
      const auto [at, type] = tables_.back();
      tables_.pop_back();
      table(at, *type);
    }
  }

  std::vector<Place> places;
  std::vector<std::size_t> offsets;  // those of `places` that are offsets

 private:
  bool holds(std::size_t at, std::size_t size) const { return at <= bytes_.size() && size <= bytes_.size() - at; }

  template <class Number>
  Number load(std::size_t at) const {
    Number number;
    std::memcpy(&number, bytes_.data() + at, sizeof number);
    return number;
  }

  /// As far as numbers are changed.
  static std::uint8_t width_of(const TypeCode& code) {
    const auto type = static_cast<flatbuffers::ElementaryType>(code.base_type);
    return static_cast<std::uint8_t>(std::min<std::size_t>(flatbuffers::InlineSize(type, nullptr), 4));
  }

  void add_offset(const Place& place) {
    if (!holds(place.at, 4)) return;
    offsets.push_back(places.size());
    places.push_back(place);
    const std::size_t target = std::size_t{place.at} + load<std::uint32_t>(place.at);
    if (!holds(target, 4)) return;
    if (!place.repeating && place.type) return tables_.push_back({target, place.type});
    places.push_back({Place::Kind::length, 4, as32(target)});
    const std::size_t length = std::min<std::size_t>(load<std::uint32_t>(target), 64);
    if (place.string && !place.repeating) {
      if (length > 0 && holds(target + 4, length))
        places.push_back({Place::Kind::text, static_cast<std::uint8_t>(length), as32(target + 4)});
      return;
    }
    for (std::size_t i = 0; i < length; ++i) {
      const std::size_t at = target + 4 + i * place.element;
      if (!holds(at, place.element)) return;
      if (place.string || place.type)
        add_offset({Place::Kind::offset, 4, as32(at), place.type, false, place.string});
      else
        places.push_back({Place::Kind::number, place.element, as32(at)});
    }
  }

  void table(std::size_t at, const TypeTable& type) {
    if (std::ranges::find(visited_, at) != visited_.end()) return;
    visited_.push_back(at);
    places.push_back({Place::Kind::vtable_offset, 4, as32(at), &type});
    const std::int64_t vtable = static_cast<std::int64_t>(at) - load<std::int32_t>(at);
    if (vtable < 0 || !holds(static_cast<std::size_t>(vtable), 4)) return;
    const auto start = static_cast<std::size_t>(vtable);
    places.push_back({Place::Kind::vtable_size, 2, as32(start)});
    const std::size_t size = load<std::uint16_t>(start);
    for (std::size_t slot = 0; slot < type.num_elems; ++slot) {
      const std::size_t entry = start + 4 + 2 * slot;
      if (entry + 2 > start + size || !holds(entry, 2)) break;
      places.push_back({Place::Kind::vtable_entry, 2, as32(entry)});
      const std::size_t offset = load<std::uint16_t>(entry);
      if (offset == 0) continue;
      const TypeCode& code = type.type_codes[slot];
      const bool of_tables = code.base_type == flatbuffers::ET_SEQUENCE;
      const bool of_strings = code.base_type == flatbuffers::ET_STRING;
      if (of_tables && is_struct(type, code)) continue;  // a digest
      if (of_tables || of_strings || code.is_repeating) {
        const TypeTable* inner = of_tables ? type.type_refs[code.sequence_ref]() : nullptr;
        add_offset({Place::Kind::offset, 4, as32(at + offset), inner, code.is_repeating != 0, of_strings,
                    of_tables || of_strings ? std::uint8_t{4} : width_of(code)});
      } else if (holds(at + offset, width_of(code))) {
        places.push_back({Place::Kind::number, width_of(code), as32(at + offset)});
      }
    }
  }

  std::span<const std::uint8_t> bytes_;
  std::vector<std::pair<std::size_t, const TypeTable*>> tables_;
  std::vector<std::size_t> visited_;
};

class Mutation {
 public:
  Mutation(std::uint8_t* data, std::size_t size, std::size_t max_size, Random& random, const TypeTable* root)
      : data_(data), size_(size), max_size_(max_size), random_(random), parts_({data, size}, root) {}

  std::size_t operator()() {
    if (parts_.places.empty()) return size_;
    if (random_.one_in(8) && copy()) return size_;
    if (random_.one_in(12) && spread()) return size_;
    const Place& place = random_.of(parts_.places);
    switch (place.kind) {
      case Place::Kind::number: number(place); break;
      case Place::Kind::offset: offset(place); break;
      case Place::Kind::length: length(place); break;
      case Place::Kind::text: text(place); break;
      case Place::Kind::vtable_entry: vtable_entry(place); break;
      case Place::Kind::vtable_size:
        store<std::uint16_t>(place.at, static_cast<std::uint16_t>(random_.below(80)));
        break;
      case Place::Kind::vtable_offset: vtable_offset(place); break;
    }
    return size_;
  }

 private:
  template <class Number>
  Number load(std::size_t at) const {
    Number number;
    std::memcpy(&number, data_ + at, sizeof number);
    return number;
  }
  template <class Number>
  void store(std::size_t at, Number number) {
    std::memcpy(data_ + at, &number, sizeof number);
  }

  void number(const Place& place) {
    static constexpr std::uint32_t values[] = {
        0, 1, 2, 3, 4, 5, 8, 9, 10, 29, 30, 127, 128, 255, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF};
    std::uint32_t value = 0;
    std::memcpy(&value, data_ + place.at, place.width);
    switch (random_.below(4)) {
      case 0: value = random_.of(values); break;
      case 1: value += 1; break;
      case 2: value -= 1; break;
      default: value ^= std::uint32_t{1} << random_.below(8 * place.width); break;
    }
    std::memcpy(data_ + place.at, &value, place.width);
  }

  void offset(const Place& place) {
    if (random_.one_in(4)) {
      const std::uint32_t now = load<std::uint32_t>(place.at), end = as32(size_ - place.at) & ~3u,
                          somewhere = as32(4 * random_.below(size_ / 4 + 1));
      const std::uint32_t values[] = {0, 4, 0x7FFFFFFC, 0xFFFFFFFC, end, somewhere, now + 4, now + 1};
      return store(place.at, random_.of(values));
    }
    // To where another offset leads: mostly one of the same type, and forward as offsets go.
    for (int attempt = 0; attempt < 8; ++attempt) {
      const Place& other = parts_.places[random_.of(parts_.offsets)];
      const std::size_t target = std::size_t{other.at} + load<std::uint32_t>(other.at);
      const bool alike = other.type == place.type && other.repeating == place.repeating && other.string == place.string;
      if (target > place.at && (alike || random_.one_in(16))) return store(place.at, as32(target - place.at));
    }
  }

  void length(const Place& place) {
    const std::uint32_t now = load<std::uint32_t>(place.at), fitting = as32(size_ - place.at - 4) / 4,
                        small = as32(random_.below(32)), large = 0x7FFFFFFF;
    const std::uint32_t values[] = {0,       1,         now + 1, now - 1, now / 2, now * 2,
                                    now + 4, large / 2, large,   ~0u,     fitting, small};
    store(place.at, random_.of(values));
  }

  void text(const Place& place) {
    using namespace std::string_view_literals;
    static constexpr std::string_view texts[] = {"\0"sv,
                                                 "\x80",
                                                 "\xC0\x80",
                                                 "\xED\xA0\x80",
                                                 "\xF4\x90\x80\x80",
                                                 "\xEF\xBB\xBF",
                                                 "-1",
                                                 "0",
                                                 "a",
                                                 "a+b",
                                                 "9999999999",
                                                 "18446744073709551616",
                                                 "(",
                                                 "floordiv(a,0)",
                                                 "cpu",
                                                 "'",
                                                 "\n",
                                                 "..."};
    const std::string_view chosen = random_.of(texts);
    const std::size_t at = random_.below(place.width);
    for (std::size_t i = 0; i < chosen.size() && at + i < place.width; ++i)
      data_[place.at + at + i] = static_cast<std::uint8_t>(chosen[i]);
  }

  void vtable_entry(const Place& place) {
    const std::uint32_t now = load<std::uint16_t>(place.at), some = as32(random_.below(120));
    const std::uint32_t values[] = {0, 0, 4, 5, 6, now + 1, now + 2, now + 4, now - 4, 0xFFFC, 0xFFFF, some};
    store(place.at, static_cast<std::uint16_t>(random_.of(values)));
  }

  void vtable_offset(const Place& place) {
    const Place& other = random_.of(parts_.places);
    if (other.kind == Place::Kind::vtable_size && random_.one_in(2))
      return store(place.at, static_cast<std::int32_t>(place.at) - static_cast<std::int32_t>(other.at));
    const std::uint32_t now = load<std::uint32_t>(place.at);
    const std::uint32_t other_place = as32(2 * random_.below(size_) - size_);
    const std::uint32_t values[] = {0, now + 2, now - 2, now + 1, 0 - now, 0x7FFFFFFF, 0x80000000, other_place};
    store(place.at, random_.of(values));
  }

  bool fits(std::size_t at, std::size_t size) const { return at <= size_ && size <= size_ - at; }

  /// Where room for something of this size was appended; 0 where there is none.
  std::size_t append(std::size_t size) {
    const std::size_t at = (size_ + 7) & ~std::size_t{7};
    if (size > max_size_ || at > max_size_ - size) return 0;
    std::memset(data_ + size_, 0, at + size - size_);
    size_ = at + size;
    return at;
  }

  /// Where a copy of a table or vector begins, and of all behind it: references only lead forward, and mostly to what
  /// is near. 0 where there is no room.
  std::size_t copy_of(std::size_t start) {
    const std::size_t rest = size_ - start, copy = append(start % 8 + rest);
    if (copy == 0) return 0;
    std::memcpy(data_ + copy + start % 8, data_ + start, rest);
    return copy + start % 8;
  }

  /// The place that refers to tables or to vectors of some; null where chance finds none.
  const Place* reference(bool repeating) {
    for (int attempt = 0; attempt < 8; ++attempt) {
      const Place& place = parts_.places[random_.of(parts_.offsets)];
      if ((place.type || repeating) && place.at != 0 && (place.repeating || !repeating) && fits(target_of(place), 8))
        return &place;
    }
    return nullptr;
  }

  std::size_t target_of(const Place& place) const { return std::size_t{place.at} + load<std::uint32_t>(place.at); }

  /// One of the places that refer to tables (or to vectors) gets a copy of its own.
  bool copy() {
    const Place* const place = reference(false);
    if (!place) return false;
    const std::size_t target = target_of(*place), moved = copy_of(target);
    if (moved == 0) return false;
    // The table's own vtable, which may lie in front of it, stays where it is.
    if (!place->repeating) store(moved, load<std::uint32_t>(target) + as32(moved - target));
    store(place->at, as32(moved - place->at));
    return true;
  }

  /// A vector becomes a longer or shorter one, whose elements are all the same.
  bool spread() {
    const Place* const place = reference(true);
    if (!place) return false;
    const std::size_t vector = target_of(*place), width = place->element;
    if (load<std::uint32_t>(vector) == 0) return false;
    const std::size_t length = random_.below(random_.one_in(4) ? 200 : 12);
    const std::size_t made = append(4 + length * width);
    if (made == 0) return false;
    store(made, as32(length));
    const bool of_offsets = place->type || place->string;
    const std::size_t old = vector + 4 + load<std::uint32_t>(vector + 4);
    const std::size_t element = of_offsets && fits(old, 4) ? copy_of(old) : 0;
    if (element != 0 && place->type) store(element, load<std::uint32_t>(old) + as32(element - old));
    for (std::size_t i = 0; i < length; ++i) {
      const std::size_t at = made + 4 + i * width;
      if (of_offsets)
        store(at, as32(element == 0 ? 4 : element - at));
      else
        std::memcpy(data_ + at, data_ + vector + 4, std::min<std::size_t>(width, 4));
    }
    store(place->at, as32(made - place->at));
    return true;
  }

  std::uint8_t* data_;
  std::size_t size_;
  std::size_t max_size_;
  Random& random_;
  Parts parts_;
};

/// Changes one of the two flat buffers of an artifact with a trailer; the footer's sizes follow.
std::size_t mutate_with_trailer(std::uint8_t* data, std::size_t size, std::size_t max_size, Random& random) {
  constexpr std::size_t footer = wire::TrailerWriter::footer_size;
  Bytes bytes(data, data + size);
  const Sizes sizes = sizes_of(bytes);
  const auto at = [&](std::size_t place) { return bytes.begin() + static_cast<std::ptrdiff_t>(place); };
  Bytes artifact(bytes.begin(), at(size - footer - sizes.content)),
      content(at(size - footer - sizes.content), at(size - footer));
  std::size_t metadata = sizes.metadata;
  const std::size_t room = max_size - std::min(max_size, size);
  const auto change = [&](Bytes& part, const TypeTable* root) {
    const std::size_t before = part.size();
    part.resize(before + room);
    part.resize(Mutation(part.data(), before, before + room, random, root)());
    part.resize((part.size() + 3) / 4 * 4);
  };
  switch (random.below(5)) {
    case 0: metadata = 4 * random.below(size / 4 + 1); break;
    case 1:
    case 2: change(content, wire::schema::TrailerTypeTable()); break;
    default: change(artifact, wire::schema::ExportedTypeTable()); break;
  }
  artifact.insert(artifact.end(), content.begin(), content.end());
  artifact.resize(artifact.size() + footer);
  seal(artifact, std::min(metadata, artifact.size()), content.size());
  if (artifact.size() > max_size) return size;
  std::ranges::copy(artifact, data);
  return artifact.size();
}

/// The root or a block of an archive's index.
std::size_t mutate_index(std::uint8_t* data, std::size_t size, std::size_t max_size, Random& random) {
  const auto index = IndexBuffer::find({data, size});
  if (!index) return mutate_bytes(data, size, max_size, random());
  const auto blocks = index->blocks();
  if (!blocks.empty() && !random.one_in(3)) {
    const auto block = random.of(blocks);
    const auto at = static_cast<std::size_t>(block.data() - data);
    Mutation(data + at, block.size(), block.size(), random, wire::schema::BlockTypeTable())();
  } else {
    const std::size_t root = size - index->root_bytes.size();
    size = root + Mutation(data + root, size - root, max_size - root, random, wire::schema::IndexTypeTable())();
  }
  if (random.one_in(2)) return size;
  Bytes bytes(data, data + size);
  seal_index(bytes);
  std::ranges::copy(bytes, data);
  return size;
}

/// A record of a file of executables: its description, its sizes, another place, a copy at the end.
std::size_t mutate_executables(std::uint8_t* data, std::size_t size, std::size_t max_size, Random& random) {
  const auto records = records_of({data, size});
  if (records.empty()) return mutate_bytes(data, size, max_size, random());
  const RecordPlace record = random.of(records);
  const std::size_t description = record.at + 64, end = record.code_at + (record.code_size + 63) / 64 * 64;
  const auto put = [&](std::size_t at, std::uint64_t number, std::size_t width) {
    std::memcpy(data + record.at + at, &number, width);
  };
  switch (random.below(8)) {
    case 0: {
      const std::uint64_t sizes[] = {0, 1, record.description_size + 1, record.code_at - description, 1 << 24, ~0u};
      put(8, random.of(sizes), 4);
      break;
    }
    case 1: {
      const std::uint64_t sizes[] = {0, 1, record.code_size + 1, size - record.code_at, size, ~std::uint64_t{0}};
      put(16, random.of(sizes), 8);
      break;
    }
    case 2: return record.at + random.below(size - record.at);
    case 3: {
      if (end - record.at > max_size - std::min(size, max_size)) break;
      std::memmove(data + size, data + record.at, end - record.at);
      return size + end - record.at;
    }
    default: {
      const std::size_t before = record.description_size, room = max_size - std::min(max_size, size);
      Bytes part(data + description, data + description + before);
      part.resize(before + room);
      part.resize(Mutation(part.data(), before, part.size(), random, wire::schema::ExecutableTypeTable())());
      const std::size_t grown = part.size();
      part.resize((grown + 63) / 64 * 64);
      part.insert(part.end(), data + record.code_at, data + size);
      if (part.size() > max_size - description) break;
      std::ranges::copy(part, data + description);
      put(8, grown, 4);
      return description + part.size();
    }
  }
  return size;
}

}  // namespace

std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t max_size, std::uint64_t seed) {
  Random random(seed);
  if (are_executables({data, size})) {
    for (std::size_t changes = 1 + random.below(3); changes > 0; --changes)
      size = mutate_executables(data, size, max_size, random);
    return size;
  }
  if (size < 16 || std::equal(data, data + 4, "ML\xEFR")) return mutate_bytes(data, size, max_size, seed);
  const bool has_trailer = size >= 4 + wire::head_size + wire::TrailerWriter::footer_size &&
                           std::equal(wire::mark.begin(), wire::mark.end(), data + 4);
  if (IndexBuffer::find({data, size})) {
    for (std::size_t changes = 1 + random.below(3); changes > 0 && size >= 16; --changes)
      size = mutate_index(data, size, max_size, random);
    return size;
  }
  for (std::size_t changes = 1 + random.below(3); changes > 0; --changes)
    size = has_trailer ? mutate_with_trailer(data, size, max_size, random)
                       : Mutation(data, size, max_size, random, wire::schema::ExportedTypeTable())();
  return size;
}

std::size_t mutate_bytes(std::uint8_t* data, std::size_t size, std::size_t max_size, std::uint64_t seed) {
  Random random(seed);
  for (std::size_t changes = 1 + random.below(4); changes > 0; --changes) {
    const std::size_t at = random.below(size);
    switch (size == 0 ? 4 : random.below(6)) {
      case 0: data[at] ^= static_cast<std::uint8_t>(1u << random.below(8)); break;
      case 1: data[at] = static_cast<std::uint8_t>(random()); break;
      case 2: data[at] = static_cast<std::uint8_t>(data[at] + 4); break;
      case 3: size -= random.below(std::min<std::size_t>(size, 16)); break;
      case 4:
        if (size < max_size) data[size++] = static_cast<std::uint8_t>(random());
        break;
      default: {
        const std::size_t from = random.below(size),
                          length = random.below(std::min<std::size_t>(size - std::max(at, from), 32));
        std::memmove(data + at, data + from, length);
      }
    }
  }
  return size;
}

}  // namespace jaxexp::tests
