// Two lists have to say the same of a value.
#include "wire/exported/check_values.h"

#include <string>

#include "wire/exported/limits.h"
#include "wire/exported/requirements.h"

namespace jaxexp::wire {

using std::to_string;

void ValueCheck::values(const Values& v, const schema::Exported& e, const Path& path, const Names& names) {
  if (v.avals_by_index()) {
    for (std::uint32_t i = 0; i < v.size(); ++i)
      require_index(v.aval_indices->Get(i), Values::length(v.unique_avals), {&path, names.aval_indices, i});
  } else {
    each(v.avals, path, names.avals, [&](const auto& aval, const Path& p) { avals_.check(aval, p); });
  }
  if (v.avals_by_index()) listed_avals(v, {&path, names.avals});
  const Path shardings{&path, v.shardings_by_index() ? names.sharding_indices : names.shardings};
  require_count(shardings, "shardings, one for each aval", v.size(), v.sharding_count());
  if (v.shardings_by_index()) {
    for (std::uint32_t i = 0; i < v.size(); ++i)
      require_index(v.sharding_indices->Get(i), Values::length(v.unique_named_shardings) + std::uint64_t{1},
                    {&path, names.sharding_indices, i});
  }
  if (v.shardings_by_index())
    listed_shardings(v, e, {&path, names.shardings});
  else
    each(v.shardings, path, names.shardings, [&](const auto& s, const Path& p) { shardings_.sharding(s, e, p); });
  fit(v, path, names);
}

void ValueCheck::listed_avals(const Values& v, const Path& path) {
  const std::uint32_t listed = Values::length(v.avals);
  if (listed == 0) return;
  require_count(path, "avals, one for each index", v.size(), listed);
  for (std::uint32_t i = 0; i < listed; ++i) {
    const Path p{path.parent, path.name, i};
    const schema::AbstractValue &one = *v.avals->Get(i), &other = v.aval(i);
    // An aval that equals a checked one needs no check.
    if (&one == &other || comparison_.same_aval(one, other, p)) continue;
    avals_.check(one, p);
    refuse_copy(p, "the aval that its index stands for");
  }
}

void ValueCheck::listed_shardings(const Values& v, const schema::Exported& e, const Path& path) {
  const std::uint32_t listed = Values::length(v.shardings);
  if (listed == 0) return;
  require_count(path, "shardings, one for each index", v.size(), listed);
  for (std::uint32_t i = 0; i < listed; ++i) {
    const Path p{path.parent, path.name, i};
    // An xla.OpSharding without a NamedSharding is older than the indices.
    const schema::Sharding& copy = *v.shardings->Get(i);
    const auto* one = copy.named_sharding();
    const auto* other = v.named_sharding(i);
    if (one == other) continue;
    const bool is_same = one && other && comparison_.same_sharding(*one, *other, p);
    if (is_same && copy.kind() <= schema::ShardingKind::named_sharding && copy.kind() >= schema::ShardingKind{})
      continue;
    shardings_.sharding(copy, e, p);
    if (!is_same) refuse_copy(p, "the sharding that its index stands for");
  }
}

/// A sharding has to fit the aval of its value.
void ValueCheck::fit(const Values& v, const Path& path, const Names& names) {
  if (v.shardings_by_index() && Values::length(v.unique_named_shardings) == 0) return;
  for (std::uint32_t i = 0; i < v.size(); ++i) {
    const auto* named = v.named_sharding(i);
    // Each argument may have a sharding of its own made of it.
    if (const auto* proto = v.hlo_sharding(i)) {
      const bool is_new = sharded_avals_.insert(v.aval(i), *proto);
      comparison_.spend((is_new ? 2 * steps_for_sharded_aval : 0) + proto->size() / 8, {&path, names.shardings, i});
    }
    if (!named) continue;
    if (sharded_avals_.insert(v.aval(i), *named))
      comparison_.spend(steps_for_sharded_aval + steps_for_axis * Values::length(v.aval(i).shape()),
                        {&path, names.shardings, i});
    const std::uint32_t partitions = Values::length(named->spec()->partitions()),
                        rank = Values::length(v.aval(i).shape());
    if (partitions > rank)
      throw Error({&path, v.shardings_by_index() ? names.sharding_indices : names.shardings, i},
                  "a sharding for the " + to_string(rank) + " dimensions of its aval",
                  "one with " + to_string(partitions) + " partitions");
  }
}

}  // namespace jaxexp::wire
