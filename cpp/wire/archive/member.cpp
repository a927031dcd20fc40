// From an index's table of a member.
#include "wire/archive/member.h"

#include "wire/artifact/stored_digest.h"

namespace jaxexp::wire {
namespace {

Text text(const flatbuffers::String* string, Member::Texts& texts) {
  if (!string) return {};
  const auto [place, is_new] = texts.try_emplace(string);
  if (is_new) place->second = string->str();
  return place->second;
}

std::optional<Text> optional_text(const flatbuffers::String* string, Member::Texts& texts) {
  return string ? std::optional(text(string, texts)) : std::nullopt;
}

}  // namespace

Member Member::of(const schema::Member& table, Texts& texts) {
  const schema::Place& place = *table.place();
  Member member{
      .summary = {.fun_name = text(table.fun_name(), texts),
                  .jax_version = optional_text(table.jax_version(), texts),
                  .writer = text(table.writer(), texts),
                  .platforms = text(table.platforms(), texts),
                  .nr_devices = table.nr_devices(),
                  .arguments = text(table.arguments(), texts),
                  .argument_count = table.argument_count(),
                  .results = text(table.results(), texts),
                  .result_count = table.result_count()},
      .digest = stored(*table.digest()),
      .size = table.size(),
      .metadata = optional_text(table.metadata(), texts),
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
