// The tables are searched once for each operator, when its facts are worked out, so they are kept
// in the order in which they read best.
#include "libtorch/operators/operator_tables.h"

#include <algorithm>
#include <iterator>

namespace reprise::libtorch {
namespace {

constexpr HiddenWrite kHiddenWrites[] = {
    // Batch norm: the running statistics are updated in training.
    {"aten::native_batch_norm", {"running_mean", "running_var"}, "training"},
    {"aten::cudnn_batch_norm", {"running_mean", "running_var"}, "training"},
    {"aten::miopen_batch_norm", {"running_mean", "running_var"}, "training"},
    {"aten::batch_norm", {"running_mean", "running_var"}, "training"},
    {"aten::_batch_norm_impl_index", {"running_mean", "running_var"}, "training"},
    {"aten::instance_norm", {"running_mean", "running_var"}, "use_input_stats"},
    {"aten::batch_norm_update_stats", {"running_mean", "running_var"}},
    {"aten::batch_norm_gather_stats", {"running_mean", "running_var"}},
    {"aten::batch_norm_gather_stats_with_counts", {"running_mean", "running_var"}},
    // The generator of cuDNN's dropout lives in a tensor; its backward works in the reserve.
    {"aten::_cudnn_rnn", {"dropout_state"}, "train"},
    {"aten::miopen_rnn", {"dropout_state"}, "train"},
    {"aten::_cudnn_rnn_backward", {"reserve"}},
    {"aten::miopen_rnn_backward", {"reserve"}},
    // What backends without memory of the host bring for copy_().
    {"aten::_copy_from", {"dst"}},
    {"aten::_copy_from_and_resize", {"dst"}},
    // Sums into what was there before.
    {"quantized::conv2d_add", {"qaccum"}},
    {"quantized::conv2d_add_relu", {"qaccum"}},
    {"onednn::qconv2d_pointwise", {"qaccum"}},
    {"onednn::qlinear_pointwise", {"other"}},
    // Collectives.
    {"c10d::allreduce_", {"tensors"}},
    {"c10d::allreduce_coalesced_", {"tensors"}},
    {"c10d::broadcast_", {"tensors"}},
    {"c10d::reduce_", {"tensors"}},
    {"c10d::allgather_", {"output_tensors"}},
    {"c10d::gather_into_tensor_", {"output_tensor"}},
    {"symm_mem::nccl_get_out", {"dst"}},
    {"symm_mem::nvshmem_get_out", {"dst"}},
    {"c10d::_allgather_base_", {"output_tensor"}},
    {"c10d::allgather_coalesced_", {"output_lists"}},
    {"c10d::allgather_into_tensor_coalesced_", {"outputs"}},
    {"c10d::reduce_scatter_", {"output_tensors"}},
    {"c10d::_reduce_scatter_base_", {"output_tensor"}},
    {"c10d::reduce_scatter_tensor_coalesced_", {"outputs"}},
    {"c10d::alltoall_", {"output_tensors"}},
    {"c10d::alltoall_base_", {"output"}},
    {"c10d::gather_", {"output_tensors"}},
    {"c10d::scatter_", {"output_tensors"}},
    {"c10d::recv_", {"tensors"}},
    {"c10d::recv_any_source_", {"tensors"}},
    {"_c10d_functional::irecv", {"tensor"}},
    {"_c10d_functional::batch_p2p_ops", {"tensors"}},
    {"symm_mem::one_shot_all_reduce_copy", {"symm_buffer"}},
    {"symm_mem::one_shot_all_reduce_copy_out", {"symm_buffer"}},
    // Of the compiler.
    {"inductor::accumulate_grad_", {"variable", "variable_grad"}},
    {"inductor::resize_storage_bytes_", {"variable"}},
};

constexpr std::string_view kOnlyAroundData[] = {
    "aten::_coalesced_",
    "aten::as_strided_",
    "aten::detach_",
    "aten::record_stream",
    "aten::rename_",
    "aten::requires_grad_",
    "aten::retain_grad",
    "aten::squeeze_",
    "aten::swapaxes_",
    "aten::swapdims_",
    "aten::t_",
    "aten::transpose_",
    "aten::unsqueeze_",
    "aten::set_data",
    "aten::align_to",
    "aten::set_",
    "prims::as_strided",
    "aten::_resize_output_",
    "aten::resize_",
    "aten::resize_as_",
    "prims::resize",
    "aten::resize_as_sparse_",
    "aten::sparse_resize_",
};

constexpr std::string_view kHiddenAliases[] = {
    "aten::_unsafe_view",
    "aten::unsafe_chunk",
    "aten::unsafe_split",
    "aten::unsafe_split_with_sizes",
    "aten::lift",
    "aten::data",
    "aten::_lazy_clone",
    "aten::_copy_from",
    "aten::_copy_from_and_resize",
    "aten::_nested_get_offsets",
    "aten::_nested_get_lengths",
    "aten::_nested_get_min_seqlen",
    "aten::_nested_get_max_seqlen",
    "aten::_nested_get_jagged_dummy",
    "aten::q_per_channel_scales",
    "aten::q_per_channel_zero_points",
    "_c10d_functional::wait_tensor",
    "_c10d_functional::irecv",
    "_c10d_functional::batch_p2p_ops",
    "export::access_subclass_inner_tensor",
    "inductor::_alloc_from_pool",
    "inductor::_reinterpret_tensor",
};

constexpr std::string_view kLeavesBytesUnset[] = {
    // Beyond the lengths of the targets.
    "aten::_ctc_loss",
    // Its workspace has rows of a rounded length.
    "aten::mkldnn_rnn_layer",
};

constexpr std::string_view kReadsBytesUnset[] = {
    // The driver gelsy reads pivots.
    "aten::linalg_lstsq",
};

constexpr std::string_view kMetadataOnly[] = {
    "aten::_assert_tensor_metadata",
    "aten::_debug_has_internal_overlap",
    "aten::_dimI",
    "aten::_dimV",
    "aten::_fused_sdp_choice",
    "aten::_has_compatible_shallow_copy_type",
    "aten::_has_same_storage_numel",
    "aten::_is_zerotensor",
    "aten::_nested_get_ragged_idx",
    "aten::_nnz",
    "aten::_version",
    "aten::cudnn_is_acceptable",
    "aten::dense_dim",
    "aten::dim",
    "aten::get_device",
    "aten::is_coalesced",
    "aten::is_complex",
    "aten::is_conj",
    "aten::is_contiguous",
    "aten::is_distributed",
    "aten::is_floating_point",
    "aten::is_inference",
    "aten::is_leaf",
    "aten::is_neg",
    "aten::is_pinned",
    "aten::is_same_size",
    "aten::is_set_to",
    "aten::is_signed",
    "aten::numel",
    "aten::output_nr",
    "aten::q_per_channel_axis",
    "aten::q_scale",
    "aten::q_zero_point",
    "aten::qscheme",
    "aten::retains_grad",
    "aten::size",
    "aten::sparse_dim",
    "aten::storage_offset",
    "aten::stride",
    "aten::sym_is_contiguous",
    "aten::sym_numel",
    "aten::sym_size",
    "aten::sym_storage_offset",
    "aten::sym_stride",
    "mkldnn::_nbytes",
    // The tensor stands for an object that the profiler has made, and knows by its deleter.
    "profiler::_record_function_enter",
    "profiler::_record_function_exit",
};

constexpr std::string_view kHarmless[] = {
    // State is read, or comes back as results.
    "aten::_batch_norm_no_update",
    "aten::_batch_norm_with_update_functional",
    "aten::_native_batch_norm_legit_functional",
    "aten::_native_batch_norm_legit_no_training",
    "aten::_fused_moving_avg_obs_fq_helper_functional",
    "aten::rrelu_with_noise_functional",
    "aten::_fused_adagrad",
    "aten::_fused_adagrad_",
    "aten::_fused_adam",
    "aten::_fused_adam_",
    "aten::_fused_adamw",
    "aten::_fused_adamw_",
    "aten::_sobol_engine_draw",
    "aten::_sobol_engine_ff_",
    "aten::_standard_gamma_grad",
    "aten::_cudnn_rnn",
    "aten::miopen_rnn",
    "aten::log_sigmoid_backward",
    // Accumulates into gradients, by operators of its own.
    "aten::_backward",
    // A graph edge for a compiler; no data.
    "aten::_propagate_xla_data",
    // Read data and give back no tensor, or reach for nothing at all.
    "aten::_assert_async",
    "aten::_assert_scalar",
    "aten::_choose_qparams_per_tensor",
    "aten::_cslt_sparse_mm_search",
    "aten::_cufft_clear_plan_cache",
    "aten::_cufft_get_plan_cache_max_size",
    "aten::_cufft_get_plan_cache_size",
    "aten::_cufft_set_plan_cache_max_size",
    "aten::_linalg_check_errors",
    "aten::_local_scalar_dense",
    "aten::_nested_tensor_from_mask_left_aligned",
    "aten::_nnpack_available",
    "aten::_print",
    "aten::_use_cudnn_ctc_loss",
    "aten::_use_cudnn_rnn_flatten_weight",
    "aten::_use_miopen_ctc_loss",
    "aten::_validate_compressed_sparse_indices",
    "aten::_validate_sparse_bsc_tensor_args",
    "aten::_validate_sparse_bsr_tensor_args",
    "aten::_validate_sparse_compressed_tensor_args",
    "aten::_validate_sparse_coo_tensor_args",
    "aten::_validate_sparse_csc_tensor_args",
    "aten::_validate_sparse_csr_tensor_args",
    "aten::allclose",
    "aten::can_cast",
    "aten::equal",
    "aten::is_nonzero",
    "aten::is_vulkan_available",
    "aten::item",
    "aten::promote_types",
    "aten::result_type",
    "aten::sym_constrain_range",
    "aten::sym_constrain_range_for_size",
    "_test::get_first",
    "c10d::barrier",
    "c10d::check_for_nan",
    "c10d::monitored_barrier_",
    "c10d::send",
    "debug_mode_ops::annotate",
    "mkldnn::_is_mkldnn_acl_supported",
    "mkldnn::_is_mkldnn_bf16_supported",
    "mkldnn::_is_mkldnn_fp16_supported",
    "mkldnn::data_ptr",
    "prims::_sink_tokens",
    "prims::item",
    "prims::maximum_value",
    "prims::minimum_value",
    "profiler::_record_function_enter_new",
    "profiler::_record_function_exit",
    // Signals between devices; the data goes by operators that say so.
    "symm_mem::_barrier",
    "symm_mem::_rendezvous",
    "symm_mem::nccl_put_signal",
    "symm_mem::nccl_put_with_signal",
    "symm_mem::nccl_wait_for_signal",
    "symm_mem::nccl_wait_signal",
    "symm_mem::nvshmem_put_with_signal",
    "symm_mem::nvshmem_wait_for_signal",
    // Names for an interpreter, which calls no operator by them.
    "static_runtime::VarTupleUnpack",
    "static_runtime::create_owned_ref",
    "static_runtime::dict_unpack",
    "static_runtime::fused_equally_split",
};

// Weights that were packed once and are only read.
constexpr std::string_view kImmutableObjects[] = {
    "quantized::",        "_quantized::", "sparse::",
    "mkldnn_prepacked::", "prepacked::",  "aten::quantized_",
};

template <std::size_t kCount>
bool is_in(const std::string_view (&table)[kCount], std::string_view name) {
  return std::find(std::begin(table), std::end(table), name) != std::end(table);
}

}  // namespace

const HiddenWrite* hidden_write_of(std::string_view name) {
  const auto* found = std::find_if(std::begin(kHiddenWrites), std::end(kHiddenWrites),
                                   [&](const HiddenWrite& entry) { return entry.name == name; });
  return found != std::end(kHiddenWrites) ? found : nullptr;
}

bool writes_only_around_data(std::string_view name) { return is_in(kOnlyAroundData, name); }
bool has_hidden_alias(std::string_view name) { return is_in(kHiddenAliases, name); }
bool leaves_bytes_unset(std::string_view name) { return is_in(kLeavesBytesUnset, name); }
bool reads_bytes_unset(std::string_view name) { return is_in(kReadsBytesUnset, name); }
bool reads_metadata_only(std::string_view name) { return is_in(kMetadataOnly, name); }

bool is_known_harmless(std::string_view name) {
  return is_in(kHarmless, name) ||
         std::any_of(std::begin(kImmutableObjects), std::end(kImmutableObjects),
                     [&](std::string_view start) { return name.substr(0, start.size()) == start; });
}

}  // namespace reprise::libtorch
