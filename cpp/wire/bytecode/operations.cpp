// VHLO never changes an operation: one with other attributes has another number behind its name. So this table stays
// true. Its source is VhloOps.td in StableHLO.
#include "wire/bytecode/operations.h"

#include <algorithm>
#include <array>

namespace jaxexp::wire {
namespace {

constexpr std::string_view accuracy = "result_accuracy";
constexpr std::array<OperationAttributes, 77> table = {{
    {"all_gather_v1", "iigb", "all_gather_dim channel_id replica_groups use_global_device_ids"},
    {"all_gather_v2", "iigb", "all_gather_dim channel_id replica_groups use_global_device_ids"},
    {"all_reduce_v1", "igb", "channel_id replica_groups use_global_device_ids"},
    {"all_reduce_v2", "igb", "channel_id replica_groups use_global_device_ids"},
    {"all_to_all_v1", "iigii", "channel_id concat_dimension replica_groups split_count split_dimension"},
    {"all_to_all_v2", "iigii", "channel_id concat_dimension replica_groups split_count split_dimension"},
    {"batch_norm_grad_v1", "fi", "epsilon feature_index"},
    {"batch_norm_inference_v1", "fi", "epsilon feature_index"},
    {"batch_norm_training_v1", "fi", "epsilon feature_index"},
    {"broadcast_in_dim_v1", "t", "broadcast_dimensions"},
    {"broadcast_v1", "t", "broadcast_sizes"},
    {"call_v1", "s", "callee"},
    {"cbrt_v2", "u", accuracy},
    {"cholesky_v1", "b", "lower"},
    {"collective_broadcast_v1", "ig", "channel_id replica_groups"},
    {"collective_permute_v1", "it", "channel_id source_target_pairs"},
    {"compare_v1", "kK", "compare_type comparison_direction"},
    {"composite_v1", "dssi", "composite_attributes decomposition name version"},
    {"composite_v2", "dssi", "composite_attributes decomposition name version"},
    {"concatenate_v1", "i", "dimension"},
    {"constant_v1", "e", "value"},
    {"convolution_v1", "iiiitiittiittatwt",
     "batch_group_count feature_group_count input_batch_dimension input_feature_dimension input_spatial_dimensions "
     "kernel_input_feature_dimension kernel_output_feature_dimension kernel_spatial_dimensions lhs_dilation "
     "output_batch_dimension output_feature_dimension output_spatial_dimensions padding precision_config "
     "rhs_dilation window_reversal window_strides"},
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
    {"dot_general_v2", "TBtItTIatItT",
     "accumulation_type allow_imprecise_accumulation lhs_batching_dimensions lhs_component_count "
     "lhs_contracting_dimensions lhs_precision_type num_primitive_operations precision_config "
     "rhs_batching_dimensions rhs_component_count rhs_contracting_dimensions rhs_precision_type"},
    {"dynamic_broadcast_in_dim_v1", "ttt",
     "broadcast_dimensions known_expanding_dimensions known_nonexpanding_dimensions"},
    {"dynamic_conv_v1", "iiiitiittiittatwt",
     "batch_group_count feature_group_count input_batch_dimension input_feature_dimension input_spatial_dimensions "
     "kernel_input_feature_dimension kernel_output_feature_dimension kernel_spatial_dimensions lhs_dilation "
     "output_batch_dimension output_feature_dimension output_spatial_dimensions padding precision_config "
     "rhs_dilation window_reversal window_strides"},
    {"dynamic_conv_v2", "iiiitiittiitatwt",
     "batch_group_count feature_group_count input_batch_dimension input_feature_dimension input_spatial_dimensions "
     "kernel_input_feature_dimension kernel_output_feature_dimension kernel_spatial_dimensions lhs_dilation "
     "output_batch_dimension output_feature_dimension output_spatial_dimensions precision_config rhs_dilation "
     "window_reversal window_strides"},
    {"dynamic_gather_v1", "tibtt",
     "collapsed_slice_dims index_vector_dim indices_are_sorted offset_dims start_index_map"},
    {"dynamic_gather_v2", "tibtttt",
     "collapsed_slice_dims index_vector_dim indices_are_sorted offset_dims operand_batching_dims start_index_map "
     "start_indices_batching_dims"},
    {"dynamic_iota_v1", "i", "iota_dimension"},
    {"dynamic_slice_v1", "t", "slice_sizes"},
    {"einsum_v1", "s", "einsum_config"},
    {"exponential_minus_one_v2", "u", accuracy},
    {"exponential_v2", "u", accuracy},
    {"fft_v1", "tF", "fft_length fft_type"},
    {"func_v1", "DUDss", "arg_attrs function_type res_attrs sym_name sym_visibility"},
    {"gather_v1", "tibttt",
     "collapsed_slice_dims index_vector_dim indices_are_sorted offset_dims slice_sizes start_index_map"},
    {"gather_v2", "tibttttt",
     "collapsed_slice_dims index_vector_dim indices_are_sorted offset_dims operand_batching_dims slice_sizes "
     "start_index_map start_indices_batching_dims"},
    {"get_dimension_size_v1", "i", "dimension"},
    {"get_tuple_element_v1", "i", "index"},
    {"infeed_v1", "sa", "infeed_config layout"},
    {"iota_v1", "i", "iota_dimension"},
    {"log_plus_one_v2", "u", accuracy},
    {"log_v2", "u", accuracy},
    {"logistic_v2", "u", accuracy},
    {"map_v1", "t", "dimensions"},
    {"outfeed_v1", "s", "outfeed_config"},
    {"pad_v1", "ttt", "edge_padding_high edge_padding_low interior_padding"},
    {"recv_v1", "iib", "channel_id channel_type is_host_transfer"},
    {"recv_v2", "iibt", "channel_id channel_type is_host_transfer source_target_pairs"},
    {"reduce_precision_v1", "ii", "exponent_bits mantissa_bits"},
    {"reduce_scatter_v1", "igib", "channel_id replica_groups scatter_dimension use_global_device_ids"},
    {"reduce_v1", "t", "dimensions"},
    {"reduce_window_v1", "ttttt", "base_dilations padding window_dilations window_dimensions window_strides"},
    {"reverse_v1", "t", "dimensions"},
    {"rng_bit_generator_v1", "r", "rng_algorithm"},
    {"rng_v1", "R", "rng_distribution"},
    {"rsqrt_v2", "u", accuracy},
    {"scatter_v1", "ibttbt",
     "index_vector_dim indices_are_sorted inserted_window_dims scatter_dims_to_operand_dims unique_indices "
     "update_window_dims"},
    {"scatter_v2", "ibttttbt",
     "index_vector_dim indices_are_sorted input_batching_dims inserted_window_dims scatter_dims_to_operand_dims "
     "scatter_indices_batching_dims unique_indices update_window_dims"},
    {"select_and_scatter_v1", "ttt", "padding window_dimensions window_strides"},
    {"send_v1", "iib", "channel_id channel_type is_host_transfer"},
    {"send_v2", "iibt", "channel_id channel_type is_host_transfer source_target_pairs"},
    {"set_dimension_size_v1", "i", "dimension"},
    {"sine_v2", "u", accuracy},
    {"slice_v1", "ttt", "limit_indices start_indices strides"},
    {"sort_v1", "ib", "dimension is_stable"},
    {"sqrt_v2", "u", accuracy},
    {"tan_v2", "u", accuracy},
    {"tanh_v2", "u", accuracy},
    {"torch_index_select_v1", "ii", "batch_dims dim"},
    {"transpose_v1", "t", "permutation"},
    {"triangular_solve_v1", "bbxb", "left_side lower transpose_a unit_diagonal"},
    {"unary_einsum_v1", "s", "einsum_config"},
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
    case 'B': return kind == 2 || kind == 17;   // a bool, or the type of none
    case 'c': return kind == 14 || kind == 6;   // a string or a dictionary
    case 'd': return kind == 6;                 // a dictionary
    case 'e': return kind == 15;                // a tensor of any elements
    case 'f': return kind == 8;                 // a float
    case 'F': return kind == 7;                 // a kind of FFT
    case 'g': return kind == 15 || kind == 23;  // groups of devices: a tensor, or axes of a mesh
    case 'i': return kind == 9;                 // an integer
    case 'I': return kind == 9 || kind == 17;   // an integer, or the type of none
    case 'k': return kind == 4;                 // as what to compare
    case 'K': return kind == 3;                 // how to compare
    case 'r': return kind == 12;                // an algorithm for random numbers
    case 'R': return kind == 13;                // a distribution of random numbers
    case 's': return kind == 14;                // a string
    case 't': return kind == 15;                // a tensor of integers of 64 bits
    case 'T': return kind == 17;                // a type
    case 'u': return kind == 20;                // an accuracy
    case 'U': return kind == 17;                // a function's type
    case 'v': return kind == 5;                 // a version of the calling convention
    case 'w': return kind == 15;                // a tensor of truth values
    case 'x': return kind == 16;                // whether to transpose
    default: return false;
  }
}

}  // namespace jaxexp::wire
