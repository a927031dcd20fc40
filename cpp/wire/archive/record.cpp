// Records of members that have everything in common take a hundred bytes and their names.
#include "wire/archive/record.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <string>
#include <utility>

namespace jaxexp::wire {
namespace {

/// Metadata up to this size are in the record; longer ones may be those of many members, which share them.
constexpr std::size_t short_metadata = 64;

bool is_long(const Member& member) { return member.metadata && member.metadata->size() > short_metadata; }

}  // namespace

Summaries::Shared Summaries::shared(const Member::Summary& summary) {
  std::string all;
  for (const Text* const text :
       {&summary.fun_name, &summary.writer, &summary.platforms, &summary.arguments, &summary.results})
    all += text->str();
  const std::size_t hash = SeededHash()(all);
  const auto [begin, end] = known_.equal_range(hash);
  const auto found = std::find_if(begin, end, [&](const auto& known) { return *known.second == summary; });
  return found != end ? found->second : known_.emplace(hash, std::make_shared<const Member::Summary>(summary))->second;
}

Record::Record(std::string_view name, const Member& member, Summaries::Shared summary)
    : summary(std::move(summary)),
      digest(member.digest),
      place(member.place),
      size(member.size),
      own_metadata(member.own_metadata),
      long_metadata_(is_long(member) ? std::make_unique<const Text>(*member.metadata) : nullptr),
      name_size_(static_cast<std::uint32_t>(name.size())),
      module_count_(static_cast<std::uint32_t>(member.modules.size())),
      metadata_size_(static_cast<std::uint16_t>(member.metadata && !long_metadata_ ? member.metadata->size() : 0)),
      has_metadata_(member.metadata.has_value()) {
  std::uninitialized_copy(member.modules.begin(), member.modules.end(), module());
  char* const end = std::ranges::copy(name, const_cast<char*>(text())).out;
  if (metadata_size_ != 0) std::ranges::copy(member.metadata->str(), end);
}

Record::Owner Record::make(std::string_view name, const Member& member, Summaries& summaries) {
  static_assert(sizeof(Record) % alignof(Member::Module) == 0 && alignof(Record) >= alignof(Member::Module));
  auto shared = summaries.shared(member.summary);
  const std::size_t behind = member.modules.size() * sizeof(Member::Module) + name.size() +
                             (member.metadata && !is_long(member) ? member.metadata->size() : 0);
  void* const memory = ::operator new(sizeof(Record) + behind);
  try {
    return Owner(new (memory) Record(name, member, std::move(shared)));
  } catch (...) {
    ::operator delete(memory);
    throw;
  }
}

void Record::Deleter::operator()(Record* record) const {
  record->~Record();
  ::operator delete(record);
}

Member Record::member() const {
  const auto said = metadata();
  return {.summary = *summary,
          .digest = digest,
          .size = size,
          .metadata = long_metadata_ ? std::optional(*long_metadata_)
                                     : (said ? std::optional<Text>(std::string(*said)) : std::nullopt),
          .own_metadata = own_metadata,
          .place = place,
          .modules = {modules().begin(), modules().end()}};
}

}  // namespace jaxexp::wire
