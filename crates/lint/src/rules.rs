//! Rules, one file each. A new one needs a file and two lines here.

use crate::rule::Rule;

mod benchmark_with_varying_shapes;
mod cached_method_keeps_self;
mod closure_keeps_graph;
mod collect_in_loop;
mod create_graph_in_backward;
mod device_in_dataset;
mod device_tensors_kept;
mod empty_cache_in_loop;
mod eval_mistaken_for_no_grad;
mod evaluation_with_gradients;
mod exception_kept;
mod forward_keeps_activations;
mod gradients_kept;
mod gradients_never_reset;
mod gradients_zeroed_in_place;
mod hidden_state_not_detached;
mod hook_keeps_activations;
mod hook_registered_in_loop;
mod iterators_kept;
mod load_without_map_location;
mod logits_kept_on_device;
mod loss_accumulated_with_graph;
mod loss_kept_in_list;
mod metric_kept_with_graph;
mod module_holds_itself;
mod objects_hold_each_other;
mod optimizer_in_loop;
mod outputs_kept_with_graph;
mod outputs_written_with_graph;
mod parameters_added_in_loop;
mod pinned_in_dataset;
mod retain_graph_in_loop;
mod retry_inside_except;
mod slice_keeps_whole;
mod state_dicts_kept;
mod teacher_with_gradients;
mod tensor_on_ctx;
mod tensors_cached_by_key;
mod trainer_gathers_logits;
mod unbounded_tensor_cache;
mod weight_average_with_graph;

/// Every rule, by code.
pub const RULES: &[&Rule] = &[
    &loss_kept_in_list::RULE,
    &outputs_kept_with_graph::RULE,
    &loss_accumulated_with_graph::RULE,
    &metric_kept_with_graph::RULE,
    &logits_kept_on_device::RULE,
    &slice_keeps_whole::RULE,
    &hook_keeps_activations::RULE,
    &hidden_state_not_detached::RULE,
    &cached_method_keeps_self::RULE,
    &unbounded_tensor_cache::RULE,
    &closure_keeps_graph::RULE,
    &exception_kept::RULE,
    &retry_inside_except::RULE,
    &state_dicts_kept::RULE,
    &gradients_kept::RULE,
    &parameters_added_in_loop::RULE,
    &hook_registered_in_loop::RULE,
    &module_holds_itself::RULE,
    &objects_hold_each_other::RULE,
    &forward_keeps_activations::RULE,
    &device_tensors_kept::RULE,
    &iterators_kept::RULE,
    &tensors_cached_by_key::RULE,
    &retain_graph_in_loop::RULE,
    &create_graph_in_backward::RULE,
    &tensor_on_ctx::RULE,
    &weight_average_with_graph::RULE,
    &outputs_written_with_graph::RULE,
    &evaluation_with_gradients::RULE,
    &eval_mistaken_for_no_grad::RULE,
    &teacher_with_gradients::RULE,
    &empty_cache_in_loop::RULE,
    &collect_in_loop::RULE,
    &gradients_zeroed_in_place::RULE,
    &device_in_dataset::RULE,
    &pinned_in_dataset::RULE,
    &load_without_map_location::RULE,
    &benchmark_with_varying_shapes::RULE,
    &optimizer_in_loop::RULE,
    &trainer_gathers_logits::RULE,
    &gradients_never_reset::RULE,
];
