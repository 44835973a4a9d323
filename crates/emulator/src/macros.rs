//! Macros for entry points that share a shape, so that a family of them is a list of names, and for the
//! checks that a driver makes first ([`crate::process`]).

/// Non-null handle with nothing behind it.
pub(crate) const HANDLE: u64 = 0x3000_0000;

/// Defines functions that C code calls by name, each after a check that may refuse the call.
macro_rules! entry_points {
    (
        $check:expr;
        $(
            $(#[$meta:meta])*
            $vis:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $status:ty $body:block
        )*
    ) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)] // same arguments as the emulated function
        $vis unsafe extern "C" fn $name($($argument: $type),*) -> $status {
            if let Some(status) = $check {
                return status;
            }
            $body
        }
    )*};
}

/// Runtime functions that use the device and make its context current for the thread.
macro_rules! runtime {
    ($($functions:tt)*) => { entry_points! { $crate::process::runtime_refusal(); $($functions)* } };
}

/// Runtime functions that need the driver but leave the thread's context unchanged.
macro_rules! runtime_without_context {
    ($($functions:tt)*) => { entry_points! { $crate::process::runtime_refusal_if_forked(); $($functions)* } };
}

/// Runtime functions that only use what the runtime knows: they initialize the driver, and work in a forked
/// process.
macro_rules! runtime_query {
    ($($functions:tt)*) => { entry_points! { $crate::process::initialize_runtime(); $($functions)* } };
}

/// Driver functions that need no context.
macro_rules! driver {
    ($($functions:tt)*) => { entry_points! { $crate::process::driver_refusal(); $($functions)* } };
}

/// Driver functions that use the context of the calling thread.
macro_rules! driver_in_context {
    ($($functions:tt)*) => {
        entry_points! { $crate::process::driver_refusal_without_context(); $($functions)* }
    };
}

/// Functions without a check: they use no device, or they need a library handle that a refused process never
/// gets.
macro_rules! library {
    ($($functions:tt)*) => { entry_points! { None; $($functions)* } };
}

/// Functions that do nothing; library functions unless another kind is given.
macro_rules! no_op {
    ($kind:ident: $($name:ident)*) => {
        $kind! { $(fn $name() -> $crate::StatusCode { $crate::SUCCESS })* }
    };
    ($($name:ident)*) => { no_op! { library: $($name)* } };
}

/// Functions that do nothing here and put work on a stream, or choose the stream for work: a graph that is
/// being captured has nodes then.
macro_rules! does_work {
    ($kind:ident: $($name:ident)*) => {
        $kind! {
            $(fn $name() -> $crate::StatusCode {
                $crate::graphs::record_work();
                $crate::SUCCESS
            })*
        }
    };
    ($($name:ident)*) => { does_work! { library: $($name)* } };
}

/// Functions that return a handle through their first argument; library functions unless another kind is
/// given.
macro_rules! returns_handle {
    ($kind:ident: $($name:ident)*) => {
        $kind! {
            $(fn $name(to: *mut u64) -> $crate::StatusCode {
                unsafe { $crate::put(to, $crate::macros::HANDLE) };
                $crate::SUCCESS
            })*
        }
    };
    ($($name:ident)*) => { returns_handle! { library: $($name)* } };
}
