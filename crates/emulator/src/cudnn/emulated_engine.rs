//! Engines that the real library does not know or cannot plan for here: the emulator answers for them.
//!
//! The real library creates and destroys their descriptors, but nothing is set in them there.

use super::SUCCESS;
use super::StatusCode;
use super::backend::attribute;
use crate::{notes, put};
use std::ffi::c_void;

/// An engine, its only configuration, and its plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct EmulatedEngine {
    pub(super) engine: i64,
    pub(super) workspace: i64,
    pub(super) uses_tensor_cores: bool,
    /// Note to write when its workspace is queried.
    pub(super) model: &'static str,
}

impl EmulatedEngine {
    /// Answers a query about its engine, its configuration or its plan. There are no knobs, and everything
    /// else is empty.
    pub(super) unsafe fn get(
        &self,
        name: i32,
        room: i64,
        count: *mut i64,
        values: *mut c_void,
    ) -> StatusCode {
        const TENSOR_CORE: i32 = 0; // `cudnnBackendNumericalNote_t`
        if name == attribute::EXECUTION_PLAN_WORKSPACE {
            notes::modeled(self.model);
        }
        let wants_value = room > 0 && !values.is_null();
        let found = match name {
            // The caller has put its own descriptor into the array; it becomes the answer.
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
