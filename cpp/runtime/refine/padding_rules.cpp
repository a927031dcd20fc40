// Every rule says which elements of the operands an element of a result is computed of. The elements that are kept may
// need only such as are kept, and in the same way. The rules follow StableHLO's specification.
#include "runtime/refine/padding_rules.h"

#include <algorithm>
#include <unordered_map>

namespace jaxexp::runtime::refine {
namespace {

bool contains(const Integers& numbers, std::size_t number) {
  return std::ranges::find(numbers, static_cast<std::int64_t>(number)) != numbers.end();
}

Integers optional_integers(const Pair& pair, std::string_view attribute) {
  return pair.tables.attribute(pair.given, attribute) ? pair.integers(attribute) : Integers();
}

bool always(const Pair&) { return true; }

bool if_nothing_grows(const Pair& pair) {
  const auto grows = [](const Shapes& one) { return one.grows(); };
  return std::ranges::none_of(pair.operands, grows) && std::ranges::none_of(pair.results, grows);
}

/// Whether only dimensions in front of the last `count` grow: what batches of matrices or vectors have there.
bool if_batch_grows(const Pair& pair, std::size_t count) {
  const auto is_batch = [&](const Shapes& one) { return one.rank() >= count && !one.grows_from(one.rank() - count); };
  return std::ranges::all_of(pair.operands, is_batch) && std::ranges::all_of(pair.results, is_batch);
}

bool if_batch_of_matrices_grows(const Pair& pair) { return if_batch_grows(pair, 2); }

/// What has to do with one matrix has its number in front: those of JAX's LAPACK calls, whose first operand is one.
bool lapack(const Pair& pair) {
  const std::size_t rank = pair.operands.empty() ? 0 : pair.operand(0).rank();
  const auto is_batch = [&](const Shapes& one) {
    return !one.grows_from(std::min(rank < 2 ? 0 : rank - 2, one.rank()));
  };
  return std::ranges::all_of(pair.operands, is_batch) && std::ranges::all_of(pair.results, is_batch);
}

/// A dimension of size 1 that is repeated must not be one that is padded.
bool broadcast_in_dim(const Pair& pair) {
  const Integers dimensions = pair.integers("broadcast_dimensions");
  for (std::size_t d = 0; d < pair.operand(0).rank(); ++d)
    if (pair.operand(0).grows(d) && pair.operand(0).given[d] == 1 &&
        size_at(pair.results.at(0).given, dimensions.at(d)) != 1)
      return false;
  return true;
}

/// Dimensions become others in groups of equal products. Of each group, only the first one may grow: its size plays no
/// part in where elements are.
bool reshape(const Pair& pair) {
  const Shapes sides[] = {pair.operand(0), pair.results.at(0)};
  std::size_t next[] = {0, 0};
  while (next[0] < sides[0].rank() && next[1] < sides[1].rank()) {
    std::uint64_t given[] = {1, 1}, padded[] = {1, 1};
    bool is_first[] = {true, true}, is_regular = true;
    const auto take = [&](std::size_t i) {
      if (next[i] == sides[i].rank()) return false;
      const std::size_t d = next[i]++;
      is_regular &= !sides[i].grows(d) || is_first[i];
      is_first[i] &= sides[i].given[d] == 1 && sides[i].padded[d] == 1;
      given[i] *= static_cast<std::uint64_t>(sides[i].given[d]);
      padded[i] *= static_cast<std::uint64_t>(sides[i].padded[d]);
      return true;
    };
    if (!take(0) || !take(1)) return false;
    while (given[0] != given[1] || padded[0] != padded[1])
      if (!take(given[0] != given[1] ? given[0] > given[1] : padded[0] > padded[1])) return false;
    if (!is_regular) return false;
  }
  return !sides[0].grows_from(next[0]) && !sides[1].grows_from(next[1]);
}

/// Only what is behind may be of another size: whatever follows would be elsewhere.
bool concatenate(const Pair& pair) {
  const std::size_t d = pair.integer("dimension");
  for (std::size_t i = 0; i + 1 < pair.operands.size(); ++i)
    if (pair.operand(i).grows(d)) return false;
  return true;
}

/// Behind an array that grows, nothing is added that is kept.
bool pad(const Pair& pair) {
  const Integers high = pair.integers("edge_padding_high");
  for (std::size_t d = 0; d < pair.operand(0).rank(); ++d)
    if (pair.operand(0).grows(d) && high.at(d) > 0) return false;
  return true;
}

/// Whether a slice is at the same place. Out of bounds, it is moved until it fits: so its start has to be known, or it
/// has to be moved as far.
bool is_in_place(const Shapes& array, std::size_t d, std::int64_t size, std::int64_t size_when_padded,
                 const std::optional<Range>& start = {}) {
  const std::int64_t last = array.given.at(d) - size, last_when_padded = array.padded.at(d) - size_when_padded;
  if (start && start->least >= 0 && start->greatest <= std::min(last, last_when_padded)) return true;
  const bool is_whole = last == 0 && last_when_padded == 0;
  return is_whole || (!array.grows(d) && size == size_when_padded);
}

bool dynamic_slice(const Pair& pair) {
  const Integers sizes = pair.integers("slice_sizes"), others = pair.integers_when_padded("slice_sizes");
  for (std::size_t d = 0; d < pair.operand(0).rank(); ++d)
    if (!is_in_place(pair.operand(0), d, sizes.at(d), others.at(d), pair.ranges.at(d + 1))) return false;
  return true;
}

/// An update that grows must not reach what is kept behind it.
bool dynamic_update_slice(const Pair& pair) {
  const Shapes &array = pair.operand(0), &update = pair.operand(1);
  for (std::size_t d = 0; d < array.rank(); ++d) {
    const auto& start = pair.ranges.at(d + 2);
    const bool ends_alike = !update.grows(d) || (start && start->least == array.given[d] - update.given.at(d));
    if (!is_in_place(array, d, update.given.at(d), update.padded.at(d), ends_alike ? start : std::nullopt))
      return false;
  }
  return true;
}

/// Whether indices are what they are said to be is not known of padding, unless each of a batch has one only.
bool keeps_promises(const Pair& pair, const Shapes& indices, std::size_t vectors, const Integers& batch) {
  const bool is_promised = pair.boolean("indices_are_sorted") ||
                           (pair.tables.attribute(pair.given, "unique_indices") && pair.boolean("unique_indices"));
  if (!is_promised || !indices.grows()) return true;
  for (std::size_t d = 0; d < indices.rank(); ++d)
    if (d != vectors && !contains(batch, d) && indices.padded[d] != 1) return false;
  return true;
}

bool gather(const Pair& pair) {
  const Shapes &array = pair.operand(0), &indices = pair.operand(1);
  const std::size_t vectors = pair.integer("index_vector_dim");
  const Integers batch = optional_integers(pair, "start_indices_batching_dims");
  if ((vectors < indices.rank() && indices.grows(vectors)) || !keeps_promises(pair, indices, vectors, batch))
    return false;
  const Integers sizes = pair.integers("slice_sizes"), others = pair.integers_when_padded("slice_sizes");
  const Integers map = pair.integers("start_index_map");
  const auto& parts = pair.parts.at(1);  // of vectors of indices
  const bool has_ranges = vectors + 1 == indices.rank() && parts.size() == map.size();
  for (std::size_t i = 0; i < map.size(); ++i) {
    const auto d = static_cast<std::size_t>(map[i]);
    const auto& start = has_ranges ? parts[i] : pair.ranges.at(1);
    if (!is_in_place(array, d, sizes.at(d), others.at(d), start)) return false;
  }
  return true;
}

/// Updates out of bounds are dropped. So one element of a dimension that grows may be updated, wherever it is; but the
/// updates have to be the same ones, or those of a batch.
bool scatter(const Pair& pair) {
  const std::size_t arrays = pair.results.size();
  const Shapes &array = pair.operand(0), &indices = pair.operand(arrays), &updates = pair.operand(arrays + 1);
  const std::size_t vectors = pair.integer("index_vector_dim");
  const Integers window = pair.integers("update_window_dims"), indexed = pair.integers("scatter_dims_to_operand_dims"),
                 batch = optional_integers(pair, "input_batching_dims"),
                 batch_of_indices = optional_integers(pair, "scatter_indices_batching_dims");
  if ((vectors < indices.rank() && indices.grows(vectors)) || !keeps_promises(pair, indices, vectors, batch_of_indices))
    return false;
  Integers dropped = pair.integers("inserted_window_dims");
  dropped.insert(dropped.end(), batch.begin(), batch.end());
  for (std::size_t u = 0, of_indices = 0; u < updates.rank(); ++u) {
    if (contains(window, u)) continue;
    of_indices += of_indices == vectors;
    if (updates.grows(u) && !contains(batch_of_indices, of_indices)) return false;
    ++of_indices;
  }
  for (std::size_t d = 0, next = 0; d < array.rank(); ++d) {
    if (contains(dropped, d)) continue;
    const auto u = static_cast<std::size_t>(window.at(next++));
    const std::int64_t size = updates.given.at(u);
    const bool is_same = !updates.grows(u) && (!array.grows(d) || !contains(indexed, d) || size == 1);
    if (!is_same && !is_in_place(array, d, size, updates.padded.at(u))) return false;
  }
  return true;
}

bool dot_general(const Pair& pair) {
  return !pair.operand(0).grows_in(pair.integers("lhs_contracting_dimensions")) &&
         !pair.operand(1).grows_in(pair.integers("rhs_contracting_dimensions"));
}

/// Whether windows over a dimension are at the same places, and those that are kept do not reach behind its end.
bool is_window_in_place(const Shapes& array, std::size_t d, const Integers& padding, const Integers& when_padded,
                        std::size_t i) {
  return padding.at(2 * i) == when_padded.at(2 * i) && (!array.grows(d) || padding.at(2 * i + 1) <= 0);
}

bool convolution(const Pair& pair) {
  const Shapes &array = pair.operand(0), &kernel = pair.operand(1);
  const Integers padding = pair.integers("padding"), when_padded = pair.integers_when_padded("padding"),
                 input = pair.integers("input_spatial_dimensions");
  const bool has_groups = pair.integer("feature_group_count") != 1 || pair.integer("batch_group_count") != 1;
  if (kernel.grows_in(pair.integers("kernel_spatial_dimensions")) ||
      kernel.grows(pair.integer("kernel_input_feature_dimension")) ||
      array.grows(pair.integer("input_feature_dimension")) ||
      (has_groups && kernel.grows(pair.integer("kernel_output_feature_dimension"))) ||
      (pair.integer("batch_group_count") != 1 && array.grows(pair.integer("input_batch_dimension"))))
    return false;
  for (std::size_t i = 0; i < input.size(); ++i)
    if (!is_window_in_place(array, static_cast<std::size_t>(input[i]), padding, when_padded, i)) return false;
  return true;
}

bool reduce_window(const Pair& pair) {
  const Integers padding = pair.integers("padding"), when_padded = pair.integers_when_padded("padding");
  for (std::size_t d = 0; d < pair.operand(0).rank(); ++d)
    if (!is_window_in_place(pair.operand(0), d, padding, when_padded, d)) return false;
  return true;
}

/// What is selected in one window lies in another one, too. So windows of one element have to follow each other.
bool select_and_scatter(const Pair& pair) {
  const Shapes& array = pair.operand(0);
  const Integers window = optional_integers(pair, "window_dimensions"),
                 strides = optional_integers(pair, "window_strides"), padding = optional_integers(pair, "padding");
  for (std::size_t d = 0; d < array.rank(); ++d) {
    const bool is_single = (window.empty() || window.at(d) == 1) && (strides.empty() || strides.at(d) == 1) &&
                           (padding.empty() || (padding.at(2 * d) == 0 && padding.at(2 * d + 1) == 0));
    if (!is_single && (array.grows(d) || pair.operand(1).grows(d))) return false;
  }
  return true;
}

bool reduce(const Pair& pair) {
  const Integers dimensions = pair.integers("dimensions");
  for (std::size_t i = 0; i < pair.results.size(); ++i)
    if (pair.operand(i).grows_in(dimensions)) return false;
  return true;
}

bool sort(const Pair& pair) {
  const std::size_t d = pair.integer("dimension");
  return std::ranges::none_of(pair.operands, [&](const Shapes& one) { return one.grows(d); });
}

bool reverse(const Pair& pair) { return !pair.operand(0).grows_in(pair.integers("dimensions")); }
bool fft(const Pair& pair) { return if_batch_grows(pair, pair.integers("fft_length").size()); }

const std::unordered_map<std::string_view, Rule> rules = {
    {"bitcast_convert", {always}},
    {"broadcast_in_dim", {broadcast_in_dim}},
    {"cholesky", {if_batch_of_matrices_grows}},
    {"clamp", {always}},
    {"concatenate", {concatenate}},
    {"convolution", {convolution, "padding"}},
    {"dot_general", {dot_general}},
    {"dynamic_slice", {dynamic_slice, "slice_sizes"}},
    {"dynamic_update_slice", {dynamic_update_slice}},
    {"fft", {fft}},
    {"gather", {gather, "slice_sizes"}},
    {"iota", {always}},
    {"map", {always}},
    {"optimization_barrier", {always}},
    {"pad", {pad, "edge_padding_high"}},
    {"reduce", {reduce}},
    {"reduce_window", {reduce_window, "padding"}},
    {"reshape", {reshape}},
    {"reverse", {reverse}},
    {"rng_bit_generator", {if_nothing_grows}},
    {"scatter", {scatter}},
    {"select", {always}},
    {"select_and_scatter", {select_and_scatter}},
    {"slice", {always, "limit_indices"}},
    {"sort", {sort}},
    {"transpose", {always}},
    {"triangular_solve", {if_batch_of_matrices_grows}},
};

}  // namespace

bool Shapes::grows_in(const Integers& dimensions) const {
  return std::ranges::any_of(dimensions, [&](std::int64_t d) { return grows(static_cast<std::size_t>(d)); });
}

bool Shapes::grows_from(std::size_t first) const {
  for (std::size_t d = first; d < rank(); ++d)
    if (grows(d)) return true;
  return false;
}

std::size_t Pair::integer(std::string_view attribute) const {
  return static_cast<std::size_t>(tables.integer(tables.needed(given, attribute)));
}

const Rule* rule_of(std::string_view base) {
  static constexpr Rule elementwise{always};
  if (is_elementwise(base)) return &elementwise;
  const auto found = rules.find(base);
  return found == rules.end() ? nullptr : &found->second;
}

const Rule* rule_of_call(std::string_view target) {
  static constexpr Rule same{always}, matrices{lapack};
  if (target == "Sharding" || target == "annotate_device_placement" || target == "LayoutConstraint") return &same;
  return target.starts_with("lapack_") && target.ends_with("_ffi") ? &matrices : nullptr;
}

}  // namespace jaxexp::runtime::refine
