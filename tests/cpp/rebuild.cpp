// Copies an artifact table by table, by the schema's type tables. Parts that are shared in the source are copied once.
#include "rebuild.h"

#include <flatbuffers/minireflect.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>

#include "view.h"
#include "wire/artifact/writer.h"

namespace jaxexp::tests {
namespace {

namespace schema = wire::schema;
using flatbuffers::ElementaryType;
using flatbuffers::TypeTable;
using Table = flatbuffers::Table;

/// The kinds of tables that the writer writes once, wherever they are.
const std::map<const TypeTable*, wire::Table>& kinds() {
  static const std::map<const TypeTable*, wire::Table> kinds{
      {schema::PyTreeDefTypeTable(), wire::Table::tree},
      {schema::AbstractValueTypeTable(), wire::Table::aval},
      {schema::AbstractDeviceTypeTable(), wire::Table::device},
      {schema::AbstractMeshTypeTable(), wire::Table::mesh},
      {schema::PartitionSpecOneAxisTypeTable(), wire::Table::axis},
      {schema::PartitionSpecTypeTable(), wire::Table::spec},
      {schema::NamedShardingTypeTable(), wire::Table::named_sharding},
      {schema::ShardingTypeTable(), wire::Table::sharding},
  };
  return kinds;
}

class Rebuild {
 public:
  explicit Rebuild(std::size_t longest_module) : longest_module_(longest_module), writer_(1024) {}

  std::vector<std::uint8_t> operator()(const schema::Exported& root, const wire::Notes* notes) {
    const auto* table = reinterpret_cast<const std::uint8_t*>(&root);
    const wire::Layout layout = writer_.finish(copy(table, *schema::ExportedTypeTable()), notes != nullptr);
    std::optional<wire::TrailerWriter> trailer;
    if (notes) {
      trailer.emplace(*notes, layout.modules);
      writer_.set_end(layout.size + trailer->size());
      for (std::size_t i = 0; i < layout.modules.size(); ++i)
        trailer->set_module_digest(i, wire::digest(layout.modules[i]));
    }
    std::vector<std::uint8_t> bytes(layout.metadata.begin(), layout.metadata.end());
    for (const auto module : layout.modules) {
      std::uint8_t length[4];
      flatbuffers::WriteScalar(length, static_cast<flatbuffers::uoffset_t>(module.size()));
      bytes.insert(bytes.end(), length, length + sizeof length);
      bytes.insert(bytes.end(), module.begin(), module.end());
      bytes.resize(bytes.size() + wire::padding(module.size()));
    }
    if (trailer) {
      bytes.resize(layout.size + trailer->size());
      trailer->finish(layout.metadata, bytes.data() + layout.size);
    }
    return bytes;
  }

 private:
  /// A number, or where the copy of something else is.
  struct Field {
    flatbuffers::voffset_t place;
    std::size_t width;  // of a number
    std::uint32_t value;
  };

  std::uint32_t copy(const std::uint8_t* table, const TypeTable& type) {
    const auto [known, is_new] = copies_.try_emplace({table, &type});
    if (!is_new) return known->second;
    std::vector<Field> fields;
    std::span<const std::uint8_t> module;
    each_field(table, type,
               [&](std::size_t slot, ElementaryType element, const TypeTable* inner, const Values& values) {
                 const auto place = flatbuffers::FieldIndexToOffset(static_cast<flatbuffers::voffset_t>(slot));
                 if (&type == schema::ExportedTypeTable() && place == schema::Exported::VT_MLIR_MODULE_SERIALIZED) {
                   module = {values.data, std::min(values.count, longest_module_)};
                   fields.push_back({place, 4, wire::Writer::module_placeholder});
                 } else if (values.is_vector) {
                   fields.push_back({place, 0, vector(element, inner, values)});
                 } else if (inner || element == flatbuffers::ET_STRING) {
                   fields.push_back({place, 0, led_to_copy(values.data, inner)});
                 } else {
                   std::uint32_t number = 0;
                   const std::size_t width = flatbuffers::InlineSize(element, nullptr);
                   std::memcpy(&number, values.data, width);
                   fields.push_back({place, width, number});
                 }
               });
    const std::uint32_t made = written(type, fields);
    if (module.data()) writer_.module(made, module);
    return known->second = made;
  }

  std::uint32_t led_to_copy(const std::uint8_t* at, const TypeTable* inner) {
    if (inner) return copy(led_to(at), *inner);
    return writer_.string(reinterpret_cast<const flatbuffers::String*>(led_to(at))->string_view()).o;
  }

  std::uint32_t vector(ElementaryType element, const TypeTable* inner, const Values& values) {
    if (inner || element == flatbuffers::ET_STRING) {
      std::vector<wire::Offset<Table>> copies;
      for (std::size_t i = 0; i < values.count; ++i) copies.emplace_back(led_to_copy(values.data + 4 * i, inner));
      return writer_.offsets<Table>(copies).o;
    }
    switch (flatbuffers::InlineSize(element, nullptr)) {
      case 1: return writer_.scalars<std::uint8_t>(std::span(values.data, values.count)).o;
      case 2: return writer_.scalars<std::uint16_t>(numbers<std::uint16_t>(values)).o;
      default: return writer_.scalars<std::uint32_t>(numbers<std::uint32_t>(values)).o;
    }
  }

  template <class Number>
  static std::vector<Number> numbers(const Values& values) {
    std::vector<Number> copy(values.count);
    if (!copy.empty()) std::memcpy(copy.data(), values.data, copy.size() * sizeof(Number));
    return copy;
  }

  std::uint32_t written(const TypeTable& type, const std::vector<Field>& fields) {
    flatbuffers::FlatBufferBuilder& fbb = writer_.fbb();
    const auto make = [&] {
      const auto start = fbb.StartTable();
      for (const auto& [place, width, value] : fields) {
        if (width == 0) fbb.AddOffset(place, wire::Offset<Table>(value));
        if (width == 1) fbb.AddElement(place, static_cast<std::uint8_t>(value));
        if (width == 2) fbb.AddElement(place, static_cast<std::uint16_t>(value));
        if (width == 4) fbb.AddElement(place, value);
      }
      return wire::Offset<Table>(fbb.EndTable(start));
    };
    const auto kind = kinds().find(&type);
    if (kind == kinds().end()) return make().o;
    std::uint32_t there = 0;
    std::array<std::uint32_t, 5> key{};  // no such table has more fields
    for (const Field& field : fields) there |= 1u << field.place, key.at(field.place / 2u - 2u) = field.value;
    return writer_.table<Table>(kind->second, {there, key[0], key[1], key[2], key[3], key[4]}, make).o;
  }

  std::size_t longest_module_;
  wire::Writer writer_;
  std::map<std::pair<const std::uint8_t*, const TypeTable*>, std::uint32_t> copies_;
};

}  // namespace

std::vector<std::uint8_t> rebuild(const schema::Exported& root, std::size_t longest_module, const wire::Notes* notes) {
  return Rebuild(longest_module)(root, notes);
}

}  // namespace jaxexp::tests
