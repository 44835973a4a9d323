//! Shapes that many entry points have in common, so that a family of them is a list of names, and what a driver checks
//! before it does anything ([`crate::process`]).

/// A handle that is not null; nobody looks behind it.
pub(crate) const HANDLE: u64 = 0x3000_0000;

/// Functions that C code calls by name, each with a check that may refuse the call.
macro_rules! entry_points {
    ($check:expr; $($(#[$meta:meta])* $vis:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $status:ty $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)] // as many as the function has that it stands for
        $vis unsafe extern "C" fn $name($($argument: $type),*) -> $status {
            if let Some(status) = $check {
                return status;
            }
            $body
        }
    )*};
}

/// Functions of the runtime that use the device. The thread has the device's context from then on.
macro_rules! runtime {
    ($($functions:tt)*) => { entry_points! { $crate::process::runtime_refuses(); $($functions)* } };
}

/// Functions of the runtime that need the driver, but leave the thread's context as it is.
macro_rules! runtime_without_context {
    ($($functions:tt)*) => { entry_points! { $crate::process::runtime_refuses_forked(); $($functions)* } };
}

/// Functions of the runtime that answer from what it knows: they initialize the driver, and work in a forked process.
macro_rules! runtime_query {
    ($($functions:tt)*) => { entry_points! { $crate::process::runtime_starts(); $($functions)* } };
}

/// Functions of the driver that need no context.
macro_rules! driver {
    ($($functions:tt)*) => { entry_points! { $crate::process::driver_refuses(); $($functions)* } };
}

/// Functions of the driver that use the context of the calling thread.
macro_rules! driver_in_context {
    ($($functions:tt)*) => { entry_points! { $crate::process::driver_refuses_without_context(); $($functions)* } };
}

/// Functions that nothing is checked for: they use no device, or a library's handle that a refused process does not get.
macro_rules! library {
    ($($functions:tt)*) => { entry_points! { None; $($functions)* } };
}

/// Functions that have nothing to do; of libraries, unless a kind from above comes first.
macro_rules! does_nothing {
    ($kind:ident: $($name:ident)*) => {
        $kind! { $(fn $name() -> $crate::Status { $crate::SUCCESS })* }
    };
    ($($name:ident)*) => { does_nothing! { library: $($name)* } };
}

/// Functions that give a handle through their first argument; of libraries, unless a kind from above comes first.
macro_rules! gives_handle {
    ($kind:ident: $($name:ident)*) => {
        $kind! {
            $(fn $name(to: *mut u64) -> $crate::Status {
                unsafe { $crate::put(to, $crate::macros::HANDLE) };
                $crate::SUCCESS
            })*
        }
    };
    ($($name:ident)*) => { gives_handle! { library: $($name)* } };
}
