//! Shapes that many entry points have in common, so that a family of them is a list of names.

/// A handle that is not null; nobody looks behind it.
pub(crate) const HANDLE: u64 = 0x3000_0000;

/// Functions that have nothing to do.
macro_rules! does_nothing {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> $crate::Status {
            $crate::SUCCESS
        }
    )*};
}

/// Functions that give a handle through their first argument.
macro_rules! gives_handle {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(to: *mut u64) -> $crate::Status {
            unsafe { $crate::put(to, $crate::macros::HANDLE) };
            $crate::SUCCESS
        }
    )*};
}
