// VHLO never changes an operation: one with other attributes has another number behind its name. So this table, of the
// operations that JAX writes most, stays true. Its source is VhloOps.td in StableHLO.
#include "wire/bytecode/operations.h"

#include <algorithm>
#include <array>

namespace jaxexp::wire {
namespace {

constexpr std::string_view accuracy = "result_accuracy";
constexpr std::array<OperationAttributes, 45> table = {{
    {"all_gather_v1", "iigb", "all_gather_dim channel_id replica_groups use_global_device_ids"},
    {"all_gather_v2", "iigb", "all_gather_dim channel_id replica_groups use_global_device_ids"},
    {"all_reduce_v1", "igb", "channel_id replica_groups use_global_device_ids"},
    {"all_reduce_v2", "igb", "channel_id replica_groups use_global_device_ids"},
    {"all_to_all_v2", "iigii", "channel_id concat_dimension replica_groups split_count split_dimension"},
    {"broadcast_in_dim_v1", "t", "broadcast_dimensions"},
    {"call_v1", "s", "callee"},
    {"cbrt_v2", "u", accuracy},
    {"collective_permute_v1", "it", "channel_id source_target_pairs"},
    {"compare_v1", "kk", "compare_type comparison_direction"},
    {"concatenate_v1", "i", "dimension"},
    {"constant_v1", "t", "value"},
    {"cosine_v2", "u", accuracy},
    {"custom_call_v1", "vcsabaaa",
     "api_version backend_config call_target_name called_computations has_side_effect operand_layouts "
     "output_operand_aliases result_layouts"},
    {"custom_call_v2", "vcsabaaaa",
     "api_version backend_config call_target_name called_computations has_side_effect operand_layouts "
     "output_operand_aliases result_layouts result_tilings"},
    {"dot_general_v1", "ttatt",
     "lhs_batching_dimensions lhs_contracting_dimensions precision_config rhs_batching_dimensions "
     "rhs_contracting_dimensions"},
    {"dynamic_broadcast_in_dim_v1", "ttt",
     "broadcast_dimensions known_expanding_dimensions known_nonexpanding_dimensions"},
    {"dynamic_gather_v1", "tibtt",
     "collapsed_slice_dims index_vector_dim indices_are_sorted offset_dims start_index_map"},
    {"dynamic_gather_v2", "tibtttt",
     "collapsed_slice_dims index_vector_dim indices_are_sorted offset_dims operand_batching_dims start_index_map "
     "start_indices_batching_dims"},
    {"dynamic_iota_v1", "i", "iota_dimension"},
    {"dynamic_slice_v1", "t", "slice_sizes"},
    {"exponential_minus_one_v2", "u", accuracy},
    {"exponential_v2", "u", accuracy},
    {"func_v1", "DTDss", "arg_attrs function_type res_attrs sym_name sym_visibility"},
    {"gather_v1", "tibttt",
     "collapsed_slice_dims index_vector_dim indices_are_sorted offset_dims slice_sizes start_index_map"},
    {"gather_v2", "tibttttt",
     "collapsed_slice_dims index_vector_dim indices_are_sorted offset_dims operand_batching_dims slice_sizes "
     "start_index_map start_indices_batching_dims"},
    {"get_dimension_size_v1", "i", "dimension"},
    {"iota_v1", "i", "iota_dimension"},
    {"log_plus_one_v2", "u", accuracy},
    {"log_v2", "u", accuracy},
    {"logistic_v2", "u", accuracy},
    {"pad_v1", "ttt", "edge_padding_high edge_padding_low interior_padding"},
    {"reduce_scatter_v1", "igib", "channel_id replica_groups scatter_dimension use_global_device_ids"},
    {"reduce_v1", "t", "dimensions"},
    {"reverse_v1", "t", "dimensions"},
    {"rng_bit_generator_v1", "r", "rng_algorithm"},
    {"rsqrt_v2", "u", accuracy},
    {"scatter_v1", "ibttbt",
     "index_vector_dim indices_are_sorted inserted_window_dims scatter_dims_to_operand_dims unique_indices "
     "update_window_dims"},
    {"sine_v2", "u", accuracy},
    {"slice_v1", "ttt", "limit_indices start_indices strides"},
    {"sqrt_v2", "u", accuracy},
    {"tan_v2", "u", accuracy},
    {"tanh_v2", "u", accuracy},
    {"transpose_v1", "t", "permutation"},
    {"triangular_solve_v1", "bbxb", "left_side lower transpose_a unit_diagonal"},
}};

}  // namespace

const OperationAttributes* attributes_of(std::string_view operation) {
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const OperationAttributes& known) { return known.operation == operation; });
  return found == table.end() ? nullptr : &*found;
}

std::uint32_t number_of(const OperationAttributes& known) {
  return static_cast<std::uint32_t>(&known - table.data()) + 1;
}

bool is_kind(char letter, unsigned kind) {
  switch (letter) {
    case 'a': return kind == 1;                 // an array
    case 'D': return kind == 1;                 // an array of dictionaries
    case 'b': return kind == 2;                 // a bool
    case 'c': return kind == 14 || kind == 6;   // a string or a dictionary
    case 'd': return kind == 6;                 // a dictionary
    case 'g': return kind == 15 || kind == 23;  // groups of devices: a tensor, or axes of a mesh
    case 'i': return kind == 9;                 // an integer
    case 'k': return kind == 3 || kind == 4;    // how to compare
    case 'r': return kind == 12;                // an algorithm for random numbers
    case 's': return kind == 14;                // a string
    case 't': return kind == 15;                // a tensor
    case 'T': return kind == 17;                // a type
    case 'u': return kind == 19 || kind == 20;  // an accuracy
    case 'v': return kind == 5;                 // a version of the calling convention
    case 'x': return kind == 16;                // whether to transpose
    default: return false;
  }
}

}  // namespace jaxexp::wire
