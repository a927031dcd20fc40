// Writing the trailer of an artifact again, with other notes.
#include "wire/artifact/recorded.h"

#include <string_view>

#include "wire/artifact/layout.h"
#include "wire/artifact/opened.h"
#include "wire/exported/chain.h"
#include "wire/exported/values.h"

namespace jaxexp::wire {
namespace {

std::vector<std::uint32_t> copied(const flatbuffers::Vector<std::uint32_t>* indices) {
  return indices ? std::vector<std::uint32_t>(indices->begin(), indices->end()) : std::vector<std::uint32_t>();
}

Notes notes_of(const Trailer& trailer) {
  const schema::Trailer& content = trailer.content();
  Notes notes{content.writer()->str(), {}};
  for (std::uint32_t i = 0; i < Values::length(content.metadata()); ++i) {
    const schema::Entry& entry = *content.metadata()->Get(i);
    notes.metadata.emplace_back(entry.key()->str(), entry.value()->str());
  }
  if (content.weights()) notes.weights = read_weights(*content.weights());
  if (content.cases()) notes.cases = read_cases(*content.cases());
  notes.sizes = trailer.sizes();
  for (const std::string_view name : trailer.padded()) notes.padded.emplace_back(name);
  for (std::uint32_t i = 0; i < Values::length(content.constraints()); ++i)
    notes.constraints.push_back(content.constraints()->Get(i)->str());
  for (const schema::FunctionNotes* function : *content.functions())
    notes.functions.push_back({copied(function->weak_arguments()), copied(function->weak_results())});
  return notes;
}

}  // namespace

std::vector<std::uint8_t> with_notes(std::span<const std::uint8_t> artifact,
                                     const std::function<void(Notes&)>& change) {
  const Opened opened(artifact);
  if (!opened.trailer())
    throw Error({nullptr, "trailer"}, "a trailer, which notes are in",
                "none: the artifact was written by jax.export, or with trailer=False");
  const Trailer& trailer = *opened.trailer();
  Notes notes = notes_of(trailer);
  change(notes);
  std::vector<std::span<const std::uint8_t>> modules;
  for (const auto& [order, function] : Chain(opened.root())) modules.push_back(opened.module(function, order));
  TrailerWriter writer(notes, modules);
  for (std::size_t order = 0; order < modules.size(); ++order)
    writer.set_module_digest(order, trailer.module_digest(order));
  const auto old = trailer.artifact();
  std::vector<std::uint8_t> bytes(old.begin(), old.end());
  bytes.resize(old.size() + writer.size());
  write_head(bytes.data(), bytes.size());
  writer.finish(std::span(bytes).first(trailer.metadata().size()), bytes.data() + old.size());
  const Opened check(bytes);
  return bytes;
}

}  // namespace jaxexp::wire
