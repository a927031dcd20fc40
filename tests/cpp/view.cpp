// A pass over all tables that remembers what it has seen.
#include "view.h"

#include <concepts>
#include <cstdlib>
#include <type_traits>

#include "fields.h"
#include "wire/base/flat_map.h"

namespace jaxexp::tests {
namespace {

/// Visits a table or string once and remembers its content, as shared parts may be referred to over and over.
class View {
 public:
  template <class T>
  Content table(const T& table) {
    const std::uint64_t key = reinterpret_cast<std::uintptr_t>(&table) << 5 | number_of<T>();
    if (const auto [known, is_new] = seen_.insert(key); !is_new) return known;
    Content content;
    content.tables = 1;
    std::size_t fields = 0;
    each_field(table, [&](const auto& field) { this->field(field, content), ++fields; });
    if (fields != field_count<T>()) std::abort();  // fields.h is older than the schema
    return seen_.insert(key).first = content;
  }

 private:
  template <class T>
  static std::uint64_t number_of() {
    if constexpr (std::same_as<T, schema::PyTreeDef>)
      return 1;
    else if constexpr (std::same_as<T, schema::AbstractDevice>)
      return 2;
    else if constexpr (std::same_as<T, schema::AbstractMesh>)
      return 3;
    else if constexpr (std::same_as<T, schema::PartitionSpecOneAxis>)
      return 4;
    else if constexpr (std::same_as<T, schema::PartitionSpec>)
      return 5;
    else if constexpr (std::same_as<T, schema::NamedSharding>)
      return 6;
    else if constexpr (std::same_as<T, schema::AbstractValue>)
      return 7;
    else if constexpr (std::same_as<T, schema::Sharding>)
      return 8;
    else if constexpr (std::same_as<T, schema::Effect>)
      return 9;
    else if constexpr (std::same_as<T, schema::DisabledSafetyCheck>)
      return 10;
    else {
      static_assert(std::same_as<T, schema::Exported>);
      return 11;
    }
  }
  static constexpr std::uint64_t string_number = 0;

  template <class Number>
    requires(std::is_arithmetic_v<Number> || std::is_enum_v<Number>)
  void field(Number number, Content& content) {
    content.mix(static_cast<std::uint64_t>(number));
  }

  void field(flatbuffers::Optional<std::uint32_t> number, Content& content) {
    content.mix(number ? std::uint64_t{*number} + 1 : 0);
  }

  void field(const flatbuffers::String* string, Content& content) {
    if (!string) return content.mix(1);
    const std::uint64_t key = reinterpret_cast<std::uintptr_t>(string) << 5 | string_number;
    if (const auto [known, is_new] = seen_.insert(key); !is_new) return content.add(known);
    Content text;
    text.bytes = string->size();
    for (const char c : string->string_view()) text.mix(static_cast<unsigned char>(c));
    if (string->c_str()[string->size()] != '\0') std::abort();
    content.add(text);
    seen_.insert(key).first = text;
  }

  template <class Element>
  void field(const flatbuffers::Vector<Element>* vector, Content& content) {
    if (!vector) return content.mix(2);
    content.mix(vector->size());
    content.elements = std::min(content.elements + vector->size(), Content::most);
    for (std::uint32_t i = 0; i < vector->size(); ++i) field(vector->Get(i), content);
  }

  template <class T>
    requires(std::is_base_of_v<flatbuffers::Table, T>)
  void field(const T* table, Content& content) {
    if (!table) return content.mix(3);
    content.add(this->table(*table));
  }

  wire::FlatMap<Content> seen_;
};

}  // namespace

Content view(const schema::Exported& root) { return View().table(root); }

}  // namespace jaxexp::tests
