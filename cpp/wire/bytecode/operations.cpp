// VHLO never changes an operation: one with other attributes has another number behind its name. So this table stays
// true. It has all of VHLO's operations up to StableHLO 1.22, from VhloOps.td, which says how many values each has;
// what these have to be is what the verifiers and the type inference of StableHLO take for granted. Of Shardy it has
// those that exports have.
#include "wire/bytecode/operations.h"

#include <algorithm>
#include <array>

namespace jaxexp::wire {
namespace {

constexpr std::string_view accuracy = "result_accuracy";
constexpr std::string_view convolution =
    "batch_group_count feature_group_count input_batch_dimension input_feature_dimension input_spatial_dimensions "
    "kernel_input_feature_dimension kernel_output_feature_dimension kernel_spatial_dimensions lhs_dilation "
    "output_batch_dimension output_feature_dimension output_spatial_dimensions padding precision_config "
    "rhs_dilation window_reversal window_strides";
constexpr auto table = std::to_array<KnownOperation>({
    {"abs_v1", "x>x"},
    {"add_v1", "xx>x"},
    {"after_all_v1", "k*>k"},
    {"all_gather_v1", "x>x", "", "iigb", "a...", "all_gather_dim channel_id replica_groups use_global_device_ids"},
    {"all_gather_v2", "x+>x+", "", "iigb", "a...", "all_gather_dim channel_id replica_groups use_global_device_ids"},
    {"all_reduce_v1", "x>x", "xx>x", "igb", "", "channel_id replica_groups use_global_device_ids"},
    {"all_reduce_v2", "x+>x+", "xx>x", "igb", "", "channel_id replica_groups use_global_device_ids"},
    {"all_to_all_v1", "x>x", "", "iigii", ".an.o",
     "channel_id concat_dimension replica_groups split_count split_dimension"},
    {"all_to_all_v2", "x+>x+", "", "iigii", ".an.o",
     "channel_id concat_dimension replica_groups split_count split_dimension"},
    {"and_v1", "xx>x"},
    {"async_done_v1", "f>v"},
    {"async_start_v1", "v*>f", "v*>v*"},
    {"atan2_v1", "xx>x"},
    {"batch_norm_grad_v1", "xxxxx>xxx", "", "fi", ".a", "epsilon feature_index"},
    {"batch_norm_inference_v1", "xxxxx>x", "", "fi", ".a", "epsilon feature_index"},
    {"batch_norm_training_v1", "xxx>xxx", "", "fi", ".a", "epsilon feature_index"},
    {"bitcast_convert_v1", "x>x"},
    {"broadcast_in_dim_v1", "x>x", "", "t", "m", "broadcast_dimensions"},
    {"broadcast_v1", "x>x", "", "t", "", "broadcast_sizes"},
    {"builtin.unrealized_conversion_cast", "v>v"},
    {"call_v1", "v*>v*", "", "s", "", "callee"},
    {"case_v1", "x>v#", ">v# +"},
    {"cbrt_v1", "x>x"},
    {"cbrt_v2", "x>x", "", "u", "", accuracy},
    {"ceil_v1", "x>x"},
    {"cholesky_v1", "x>x", "", "b", "", "lower"},
    {"clamp_v1", "xxx>x"},
    {"collective_broadcast_v1", "x>x", "", "ig", "", "channel_id replica_groups"},
    {"collective_broadcast_v2", "x+>x+", "", "ibg", "", "channel_id has_dynamic_root replica_groups"},
    {"collective_permute_v1", "x>x", "", "it", "", "channel_id source_target_pairs"},
    {"collective_reduce_v1", "x+>x+", "xx>x", "ibgb", "",
     "channel_id has_dynamic_root replica_groups use_global_device_ids"},
    {"compare_v1", "xx>x", "", "kK", "e.", "compare_type comparison_direction"},
    {"complex_v1", "xx>x"},
    {"composite_v1", "v*>v*", "", "dssi", "", "composite_attributes decomposition name version"},
    {"composite_v2", "v*>v*", "v*>v* *", "dssi", "", "composite_attributes decomposition name version"},
    {"concatenate_v1", "x+>x", "", "i", "a", "dimension"},
    {"constant_v1", ">x", "", "e", "", "value"},
    {"convert_v1", "x>x"},
    {"convolution_v1", "xx>x", "", "iiiitiittiittatwt", "..AAABBByRRRq.yyy", convolution},
    {"cosine_v1", "x>x"},
    {"cosine_v2", "x>x", "", "u", "", accuracy},
    {"count_leading_zeros_v1", "x>x"},
    {"create_token_v1", ">k"},
    {"cross-replica-sum_v1", "x>x", "", "g", "", "replica_groups"},
    {"custom_call_v1", "v*>v*", "", "vcsabaaa", "",
     "api_version backend_config call_target_name called_computations has_side_effect operand_layouts output_operand_aliases result_layouts"},
    {"custom_call_v2", "v*>v*", "", "vcsabaaaa", "",
     "api_version backend_config call_target_name called_computations has_side_effect operand_layouts output_operand_aliases result_layouts result_tilings"},
    {"divide_v1", "xx>x"},
    {"dot_general_v1", "xx>x", "", "ttatt", "aa.bb",
     "lhs_batching_dimensions lhs_contracting_dimensions precision_config rhs_batching_dimensions rhs_contracting_dimensions"},
    {"dot_general_v2", "xx>x", "", "TBtItTIatItT", "..a.a...b.b.",
     "accumulation_type allow_imprecise_accumulation lhs_batching_dimensions lhs_component_count lhs_contracting_dimensions lhs_precision_type num_primitive_operations precision_config rhs_batching_dimensions rhs_component_count rhs_contracting_dimensions rhs_precision_type"},
    {"dot_v1", "xx>x", "", "a", "", "precision_config"},
    {"dynamic_broadcast_in_dim_v1", "xx>x", "", "ttt", "maa",
     "broadcast_dimensions known_expanding_dimensions known_nonexpanding_dimensions"},
    {"dynamic_conv_v1", "xxx>x", "", "iiiitiittiittatwt", "..AAABBByRRRq.yyy", convolution},
    {"dynamic_conv_v2", "xxx>x", "", "iiiitiittiitatwt", "..AAABBByRRR.yyy",
     "batch_group_count feature_group_count input_batch_dimension input_feature_dimension input_spatial_dimensions kernel_input_feature_dimension kernel_output_feature_dimension kernel_spatial_dimensions lhs_dilation output_batch_dimension output_feature_dimension output_spatial_dimensions precision_config rhs_dilation window_reversal window_strides"},
    {"dynamic_gather_v1", "xxx>x", "", "tibtt", "av.ro",
     "collapsed_slice_dims index_vector_dim indices_are_sorted offset_dims start_index_map"},
    {"dynamic_gather_v2", "xxx>x", "", "tibtttt", "av.raob",
     "collapsed_slice_dims index_vector_dim indices_are_sorted offset_dims operand_batching_dims start_index_map start_indices_batching_dims"},
    {"dynamic_iota_v1", "x>x", "", "i", "r", "iota_dimension"},
    {"dynamic_pad_v1", "xxxxx>x"},
    {"dynamic_reshape_v1", "xx>x"},
    {"dynamic_slice_v1", "xx*>x", "", "t", "w", "slice_sizes"},
    {"dynamic_update_slice_v1", "xxx*>x"},
    {"einsum_v1", "xx>x", "", "s", "", "einsum_config"},
    {"exponential_minus_one_v1", "x>x"},
    {"exponential_minus_one_v2", "x>x", "", "u", "", accuracy},
    {"exponential_v1", "x>x"},
    {"exponential_v2", "x>x", "", "u", "", accuracy},
    {"fft_v1", "x>x", "", "tF", "l", "fft_length fft_type"},
    {"floor_v1", "x>x"},
    {"func_v1", ">", "v*>v*", "DUDss", "", "arg_attrs function_type res_attrs sym_name sym_visibility"},
    {"gather_v1", "xx>x", "", "tibttt", "av.rwo",
     "collapsed_slice_dims index_vector_dim indices_are_sorted offset_dims slice_sizes start_index_map"},
    {"gather_v2", "xx>x", "", "tibttttt", "av.rawob",
     "collapsed_slice_dims index_vector_dim indices_are_sorted offset_dims operand_batching_dims slice_sizes start_index_map start_indices_batching_dims"},
    {"get_dimension_size_v1", "x>x", "", "i", "a", "dimension"},
    {"get_tuple_element_v1", "p>v", "", "i", "", "index"},
    {"if_v1", "x>v#", ">v# >v#"},
    {"imag_v1", "x>x"},
    {"infeed_v1", "k>x*k", "", "sa", "", "infeed_config layout"},
    {"iota_v1", ">x", "", "i", "r", "iota_dimension"},
    {"is_finite_v1", "x>x"},
    {"log_plus_one_v1", "x>x"},
    {"log_plus_one_v2", "x>x", "", "u", "", accuracy},
    {"log_v1", "x>x"},
    {"log_v2", "x>x", "", "u", "", accuracy},
    {"logistic_v1", "x>x"},
    {"logistic_v2", "x>x", "", "u", "", accuracy},
    {"map_v1", "x+>x", "x+>x", "t", "A", "dimensions"},
    {"maximum_v1", "xx>x"},
    {"minimum_v1", "xx>x"},
    {"multiply_v1", "xx>x"},
    {"negate_v1", "x>x"},
    {"not_v1", "x>x"},
    {"optimization_barrier_v1", "v#>v#"},
    {"or_v1", "xx>x"},
    {"outfeed_v1", "x*k>k", "", "s", "", "outfeed_config"},
    {"pad_v1", "xx>x", "", "ttt", "www", "edge_padding_high edge_padding_low interior_padding"},
    {"partition_id_v1", ">x"},
    {"popcnt_v1", "x>x"},
    {"power_v1", "xx>x"},
    {"real_dynamic_slice_v1", "xxxx>x"},
    {"real_v1", "x>x"},
    {"recv_v1", "k>x*k", "", "iib", "", "channel_id channel_type is_host_transfer"},
    {"recv_v2", "k>x*k", "", "iibt", "", "channel_id channel_type is_host_transfer source_target_pairs"},
    {"reduce_precision_v1", "x>x", "", "ii", "", "exponent_bits mantissa_bits"},
    {"reduce_scatter_v1", "x>x", "xx>x", "igib", "..a.",
     "channel_id replica_groups scatter_dimension use_global_device_ids"},
    {"reduce_v1", "x+x+>x+", "x+x+>x+", "t", "a", "dimensions"},
    {"reduce_window_v1", "x+x+>x+", "x+x+>x+", "ttttt", "wpwww",
     "base_dilations padding window_dilations window_dimensions window_strides"},
    {"remainder_v1", "xx>x"},
    {"replica_id_v1", ">x"},
    {"reshape_v1", "x>x"},
    {"return_v1", "v*>"},
    {"reverse_v1", "x>x", "", "t", "a", "dimensions"},
    {"rng_bit_generator_v1", "x>xx", "", "r", "", "rng_algorithm"},
    {"rng_v1", "xxx>x", "", "R", "", "rng_distribution"},
    {"round_nearest_afz_v1", "x>x"},
    {"round_nearest_even_v1", "x>x"},
    {"rsqrt_v1", "x>x"},
    {"rsqrt_v2", "x>x", "", "u", "", accuracy},
    {"scatter_v1", "x+xx+>x+", "x+x+>x+", "ibttbt", "v.ao.c",
     "index_vector_dim indices_are_sorted inserted_window_dims scatter_dims_to_operand_dims unique_indices update_window_dims"},
    {"scatter_v2", "x+xx+>x+", "x+x+>x+", "ibttttbt", "v.aaob.c",
     "index_vector_dim indices_are_sorted input_batching_dims inserted_window_dims scatter_dims_to_operand_dims scatter_indices_batching_dims unique_indices update_window_dims"},
    {"sdy.all_gather", "v>v", "", "", "", "gathering_axes out_sharding"},
    {"sdy.all_reduce", "v>v", "", "", "", "out_sharding reduction_axes"},
    {"sdy.all_slice", "v>v", "", "", "", "out_sharding slicing_axes"},
    {"sdy.all_to_all", "v>v", "", "", "", "out_sharding params"},
    {"sdy.collective_permute", "v>v", "", "", "", "out_sharding"},
    {"sdy.constant", ">v", "", "", "", "value"},
    {"sdy.manual_computation", "v*>v*", "v*>v*", "", "", "in_shardings manual_axes out_shardings"},
    {"sdy.mesh", ">", "", "", "", "mesh sym_name"},
    {"sdy.named_computation", "v*>v*", "v*>v*", "", "", "in_shardings name out_shardings"},
    {"sdy.propagation_barrier", "v>v", "", "", "", "allowed_direction"},
    {"sdy.reduce_scatter", "v>v", "", "", "", "out_sharding reduce_scatter_axes"},
    {"sdy.replicated_to_unreduced", "v>v", "", "", "", "axes out_sharding"},
    {"sdy.reshard", "v>v", "", "", "", "sharding"},
    {"sdy.return", "v*>"},
    {"sdy.sharded_to_unreduced", "v>v", "", "", "", "axes out_sharding"},
    {"sdy.sharding_constraint", "v>v", "", "", "", "sharding"},
    {"sdy.sharding_group", "v>", "", "", "", "group_id"},
    {"select_and_scatter_v1", "xxx>x", "xx>i xx>x", "ttt", "pww", "padding window_dimensions window_strides"},
    {"select_v1", "xxx>x"},
    {"send_v1", "x*k>k", "", "iib", "", "channel_id channel_type is_host_transfer"},
    {"send_v2", "x*k>k", "", "iibt", "", "channel_id channel_type is_host_transfer source_target_pairs"},
    {"set_dimension_size_v1", "xx>x", "", "i", "a", "dimension"},
    {"shift_left_v1", "xx>x"},
    {"shift_right_arithmetic_v1", "xx>x"},
    {"shift_right_logical_v1", "xx>x"},
    {"sign_v1", "x>x"},
    {"sine_v1", "x>x"},
    {"sine_v2", "x>x", "", "u", "", accuracy},
    {"slice_v1", "x>x", "", "ttt", "www", "limit_indices start_indices strides"},
    {"sort_v1", "x+>x+", "x+x+>i", "ib", "d.", "dimension is_stable"},
    {"sqrt_v1", "x>x"},
    {"sqrt_v2", "x>x", "", "u", "", accuracy},
    {"subtract_v1", "xx>x"},
    {"tan_v1", "x>x"},
    {"tan_v2", "x>x", "", "u", "", accuracy},
    {"tanh_v1", "x>x"},
    {"tanh_v2", "x>x", "", "u", "", accuracy},
    {"torch_index_select_v1", "xx>x", "", "ii", "va", "batch_dims dim"},
    {"transpose_v1", "x>x", "", "t", "A", "permutation"},
    {"triangular_solve_v1", "xx>x", "", "bbxb", "", "left_side lower transpose_a unit_diagonal"},
    {"tuple_v1", "v*>p"},
    {"unary_einsum_v1", "x>x", "", "s", "", "einsum_config"},
    {"uniform_dequantize_v1", "x>x"},
    {"uniform_quantize_v1", "x>x"},
    {"while_v1", "v#>v#", "v#>i v#>v#"},
    {"xor_v1", "xx>x"},
});
static_assert(std::ranges::is_sorted(table, {}, &KnownOperation::name));
static_assert(std::ranges::all_of(table, [](const KnownOperation& one) {
  const auto names = static_cast<std::size_t>(std::ranges::count(one.names, ' ')) + !one.names.empty();
  return one.name.starts_with("sdy.") || one.kinds.size() == names;
}));

}  // namespace

std::vector<std::string_view> KnownOperation::attribute_names() const {
  std::vector<std::string_view> found;
  for (std::string_view left = names; !left.empty();) {
    found.push_back(left.substr(0, left.find(' ')));
    left.remove_prefix(std::min(found.back().size() + 1, left.size()));
  }
  return found;
}

std::optional<std::size_t> KnownOperation::place_of(std::string_view attribute) const {
  std::string_view left = names;
  for (std::size_t place = 0; !left.empty(); ++place) {
    const std::string_view one = left.substr(0, left.find(' '));
    if (one == attribute) return place;
    left.remove_prefix(std::min(one.size() + 1, left.size()));
  }
  return std::nullopt;
}

const KnownOperation* known_operation(std::string_view name) {
  const auto found = std::ranges::lower_bound(table, name, {}, &KnownOperation::name);
  return found != table.end() && found->name == name ? &*found : nullptr;
}

std::uint32_t number_of(const KnownOperation& known) { return static_cast<std::uint32_t>(&known - table.data()) + 1; }

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
