// A pass over all tables, by the schema's type tables, that remembers what it has seen.
#include "view.h"

#include <flatbuffers/minireflect.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

namespace jaxexp::tests {
namespace {

using flatbuffers::ElementaryType;
using flatbuffers::TypeTable;

/// Visits a table or string once and remembers its content, as shared parts may be referred to over and over.
class View {
 public:
  const Content& table(const std::uint8_t* table, const TypeTable& type) {
    const auto [known, is_new] = seen_.try_emplace({table, &type});
    if (!is_new) return known->second;
    Content content;
    content.tables = 1;
    each_field(table, type,
               [&](std::size_t slot, ElementaryType element, const TypeTable* inner, const Values& values) {
                 content.mix(slot);
                 content.mix(values.count);
                 if (values.is_vector) content.elements = std::min(content.elements + values.count, Content::most);
                 const std::size_t width = flatbuffers::InlineSize(element, inner);
                 for (std::size_t i = 0; i < values.count; ++i) value(element, values.data + i * width, inner, content);
               });
    return known->second = content;
  }

 private:
  void value(ElementaryType element, const std::uint8_t* at, const TypeTable* inner, Content& content) {
    if (inner) return content.add(table(led_to(at), *inner));
    if (element == flatbuffers::ET_STRING) return content.add(string(led_to(at)));
    std::uint64_t number = 0;
    std::memcpy(&number, at, flatbuffers::InlineSize(element, nullptr));
    content.mix(number);
  }

  const Content& string(const std::uint8_t* at) {
    const auto [known, is_new] = seen_.try_emplace({at, nullptr});
    if (!is_new) return known->second;
    const auto& string = *reinterpret_cast<const flatbuffers::String*>(at);
    Content content;
    content.bytes = string.size();
    for (const char c : string.string_view()) content.mix(static_cast<unsigned char>(c));
    if (string.c_str()[string.size()] != '\0') std::abort();
    return known->second = content;
  }

  std::map<std::pair<const std::uint8_t*, const TypeTable*>, Content> seen_;
};

}  // namespace

Content view(const wire::schema::Exported& root) {
  return View().table(reinterpret_cast<const std::uint8_t*>(&root), *root.MiniReflectTypeTable());
}

}  // namespace jaxexp::tests
