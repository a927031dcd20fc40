// From an index's table of a member.
#include "wire/archive/member.h"

#include "wire/artifact/stored_digest.h"

namespace jaxexp::wire {
namespace {

std::string text(const flatbuffers::String* string) { return string ? string->str() : std::string(); }

std::optional<std::string> optional_text(const flatbuffers::String* string) {
  return string ? std::optional(string->str()) : std::nullopt;
}

}  // namespace

Member Member::of(const schema::Member& table) {
  const schema::Place& place = *table.place();
  Member member{
      .summary = {.fun_name = text(table.fun_name()),
                  .jax_version = optional_text(table.jax_version()),
                  .writer = text(table.writer()),
                  .platforms = text(table.platforms()),
                  .nr_devices = table.nr_devices(),
                  .arguments = text(table.arguments()),
                  .argument_count = table.argument_count(),
                  .results = text(table.results()),
                  .result_count = table.result_count()},
      .digest = stored(*table.digest()),
      .size = table.size(),
      .metadata = optional_text(table.metadata()),
      .own_metadata = table.own_metadata(),
      .place = {place.position(), place.size(), place.crc32(), place.header(), place.shared(), place.apart()},
  };
  for (std::uint32_t i = 0; table.modules() && i < table.modules()->size(); ++i) {
    const schema::Module& module = *table.modules()->Get(i);
    member.modules.push_back({module.position(), module.size(), stored(module.digest())});
  }
  return member;
}

}  // namespace jaxexp::wire
