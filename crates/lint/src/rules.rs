//! The rules, one file each. A new one is a file and a line here.

use crate::rule::Rule;

macro_rules! rules {
    ($($module:ident),* $(,)?) => {
        $(mod $module;)*
        /// Every rule, by code.
        pub const RULES: &[&Rule] = &[$(&$module::RULE),*];
    };
}

rules![
    loss_kept_in_list,
    outputs_kept_with_graph,
    loss_accumulated_with_graph,
    metric_kept_with_graph,
    logits_kept_on_device,
    slice_keeps_whole,
    hook_keeps_activations,
    hidden_state_not_detached,
    cached_method_keeps_self,
    unbounded_tensor_cache,
    closure_keeps_graph,
    exception_kept,
    retry_inside_except,
    state_dicts_kept,
    gradients_kept,
    parameters_added_in_loop,
    hook_registered_in_loop,
    module_holds_itself,
    objects_hold_each_other,
    forward_keeps_activations,
    device_tensors_kept,
    iterators_kept,
    tensors_cached_by_key,
    retain_graph_in_loop,
    create_graph_in_backward,
    tensor_on_ctx,
    weight_average_with_graph,
    outputs_written_with_graph,
    evaluation_with_gradients,
    eval_mistaken_for_no_grad,
    empty_cache_in_loop,
    collect_in_loop,
    gradients_zeroed_in_place,
    device_in_dataset,
    pinned_in_dataset,
    load_without_map_location,
    benchmark_with_varying_shapes,
    optimizer_in_loop,
    trainer_gathers_logits,
    gradients_never_reset,
];
