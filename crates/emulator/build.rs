//! The library answers for the driver: whoever opens `libcuda.so.1` by name is to find it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
}
