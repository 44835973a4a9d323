//! Engines that the real library does not know of or cannot plan for here: what it would say of them, we say.
//!
//! Their descriptors are created and destroyed by the real library, but nothing is set in them there.

use super::SUCCESS;
use super::Status;
use super::backend::attribute;
use crate::{notes, put};
use std::ffi::c_void;

/// An engine, the one configuration that it has, and its plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shadow {
    pub(super) engine: i64,
    pub(super) workspace: i64,
    pub(super) uses_tensor_cores: bool,
    /// What to note when its workspace is asked for.
    pub(super) model: &'static str,
}

impl Shadow {
    /// Answers what is asked of its engine, its configuration or its plan. Knobs, of which there are none, and
    /// everything else come to nothing.
    pub(super) unsafe fn get(&self, name: i32, room: i64, count: *mut i64, values: *mut c_void) -> Status {
        const TENSOR_CORE: i32 = 0; // `cudnnBackendNumericalNote_t`
        if name == attribute::EXECUTION_PLAN_WORKSPACE {
            notes::modelled(self.model);
        }
        let wants_value = room > 0 && !values.is_null();
        let found = match name {
            // The caller has put a descriptor of its own into the array: it becomes the answer.
            attribute::ENGINE_CONFIGURATION_ENGINE => 1,
            attribute::ENGINE_NUMERICAL_NOTES if self.uses_tensor_cores => {
                if wants_value {
                    unsafe { put(values.cast(), TENSOR_CORE) };
                }
                1
            }
            attribute::ENGINE_GLOBAL_INDEX | attribute::EXECUTION_PLAN_WORKSPACE => {
                let value = if name == attribute::ENGINE_GLOBAL_INDEX { self.engine } else { self.workspace };
                if wants_value {
                    unsafe { put(values.cast(), value) };
                }
                1
            }
            _ => 0,
        };
        unsafe { put(count, found) };
        SUCCESS
    }
}
